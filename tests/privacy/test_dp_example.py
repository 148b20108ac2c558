"""The DP-SGD example: the certified lower bound never exceeds the accountant's upper bound, and catches broken DP."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("opacus")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "dp_sgd_audit.py"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", name="example")
def example_fixture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dp_sgd_audit", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["dp_sgd_audit"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(5))
def test_lower_is_at_most_upper_and_sees_something(example: ModuleType, seed: int) -> None:
    found = example.run(seed)
    assert 0.3 < found.lower <= found.upper
    assert found.gaussian <= found.upper
    assert found.lower.guarantee == "certified"


def test_more_noise_lowers_both(example: ModuleType) -> None:
    loud, quiet = example.run(0, noise=4.0), example.run(0, noise=0.5)
    assert loud.upper < quiet.upper
    assert loud.lower < quiet.lower


def test_an_accountant_that_is_told_another_noise_is_found_out(example: ModuleType) -> None:
    """Noise 0.05 in training, noise 5 on the books: the audit's lower bound exceeds the booked epsilon."""
    booked = example.run(0, noise=5.0).upper
    assert example.run(0, noise=0.05).lower > booked


def test_it_runs_as_it_stands() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(EXAMPLE), "--canaries", "200"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "accountant: epsilon <= " in done.stdout
    assert "audit:      epsilon >= " in done.stdout and "certified" in done.stdout
