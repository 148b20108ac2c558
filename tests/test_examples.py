"""Every example runs as it stands, and what it writes verifies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memaudit.report.build import load_report, verify_report
from tests.distributed.launcher import run_checked

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

REFERENCES = {
    "hf_trainer": "step0",
    "trl_sft": "disable_adapter",
    "lightning_module": "step0",
    "accelerate_loop": "step0",
}
"""The examples of the integrations, and the reference that each gets by default."""


def run(name: str, folder: Path) -> str:
    """Run an example as a user would, with an output folder; return what it printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_the_integrations_are_shown_in_a_page(name: str) -> None:
    """At most about 40 lines each."""
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 45


@pytest.mark.parametrize(
    "name", ["hf_trainer", "trl_sft", "accelerate_loop"]
)  # Lightning's: test_lightning.py
def test_an_example_runs_and_its_report_verifies(name: str, tmp_path: Path) -> None:
    printed = run(name, tmp_path)
    path = tmp_path / "memaudit-report.json"
    assert verify_report(path).intact
    report = load_report(path)
    assert report.reference.mode == REFERENCES[name]
    assert report.distributed["strategy"] == "single"
    # A tiny model that trains for seconds: members stand out, and the claim that it prints is the report's.
    assert report.membership.auc is not None and report.membership.auc > 0.6
    assert report.membership.detection_claim and report.membership.detection_claim in printed
    assert report.timeline[-1]["step"] == report.step > 0


@pytest.mark.distributed
def test_the_loop_runs_on_two_ranks(tmp_path: Path) -> None:
    run_checked(EXAMPLES / "accelerate_loop.py", [str(tmp_path)], ranks=2, timeout=400)
    assert verify_report(tmp_path / "memaudit-report.json").intact
    report = load_report(tmp_path / "memaudit-report.json")
    assert report.distributed["strategy"] == "ddp" and report.distributed["world_size"] == 2
    assert [line["epoch"] for line in report.timeline] == [1, 2, 3]
