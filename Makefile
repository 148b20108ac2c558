# Everything here needs Python (3.10 or later) and make; the rest goes into a virtual environment in .venv.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check

# One thread a process: tests and ranks run side by side, and sums come out in the same order every time.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-fast lint format clean

help:
	@echo "make demo       train a small transformer on two ranks, audit it in the loop, print the table"
	@echo "make test       pass the tests (make test-fast: without the slow and the distributed ones)"
	@echo "make lint       ruff, mypy --strict, import-linter"
	@echo "make format     let ruff put the code in order"
	@echo "make venv       only make the virtual environment in $(VENV)"
	@echo "make clean      remove the virtual environment and what the tools left"

venv: $(STAMP)

# torch comes first and with its dependencies, which differ by platform; the rest is a closed set, so nothing is
# resolved (--no-deps), which makes the difference between two minutes and six.
$(STAMP): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "memaudit needs Python 3.10 or later; name one: make PYTHON=python3.11"; exit 1; }
	@echo "Making the virtual environment in $(VENV): about two minutes, once"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -qq --constraint constraints.txt torch
	@$(PIP) install -qq --no-deps --requirement constraints.txt
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)
	$(BIN)/memaudit demo --output-dir memaudit-demo

# Distributed tests start torchrun themselves and come last, one at a time. Both parts run, and either one fails it.
test: $(STAMP)
	@status=0; \
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not distributed" || status=1; \
	$(BIN)/python -m pytest -m distributed tests || status=1; \
	exit $$status

test-fast: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not distributed"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict memaudit
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
