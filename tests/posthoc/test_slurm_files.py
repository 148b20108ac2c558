"""The sbatch files: readable, quoted, any option passed on; bash can read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from memaudit.cli import main
from memaudit.errors import ConfigurationError
from memaudit.posthoc.slurm.render import JobOptions, render
from memaudit.posthoc.slurm.sweep_file import Sweep, SweepCheckpoint, read_sweep

SWEEP = Sweep(
    checkpoints=(
        SweepCheckpoint(path="/out/run 1/checkpoint-10", folder="checkpoint-10"),
        SweepCheckpoint(path="/out/$(touch x)/checkpoint-20", folder="checkpoint-20"),
    ),
    slices=3,
    manifest="/out/it's.json",
)


@pytest.mark.parametrize(
    "job", [JobOptions(), JobOptions(nodes=2, ntasks_per_node=4, setup=["module load cuda"])]
)
def test_bash_reads_them(job: JobOptions, tmp_path: Path) -> None:
    for text in render(SWEEP, tmp_path / "a b", job):
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "{{" not in text and "{%" not in text


def test_each_task_gets_its_checkpoint_and_slice(tmp_path: Path) -> None:
    """The file is run by bash with srun and scontrol replaced by programs that print their arguments."""
    audit, _ = render(SWEEP, tmp_path, JobOptions(python="py"))
    for name in ("srun", "scontrol", "scancel"):
        (tmp_path / name).write_text('#!/bin/bash\nprintf "<%s>" "$@"\n')
        (tmp_path / name).chmod(0o755)
    for task, path, part in (
        (0, "/out/run 1/checkpoint-10", "0/3"),
        (5, "/out/$(touch x)/checkpoint-20", "2/3"),
    ):
        done = subprocess.run(
            ["bash", "-c", audit],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": str(task), "SLURM_JOB_ID": "7",
                 "SLURM_JOB_NODELIST": "node1"},
            capture_output=True, text=True, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"<--model><{path}>" in done.stdout and f"<--slice><{part}>" in done.stdout
        assert "<--manifest><" + "/out/it's.json>" in done.stdout
    assert not (tmp_path / "x").exists()


def test_options_pass_through(tmp_path: Path) -> None:
    audit, merge = render(
        SWEEP,
        tmp_path,
        JobOptions(options=["--gres=gpu:4", "--time=1:00:00"], merge_options=["--partition=cpu"]),
    )
    head = audit.split("checkpoints=(")[0]
    for line in ("--gres=gpu:4", "--time=1:00:00", "--array=0-5", "--requeue", "--signal=B:USR1@120"):
        assert f"#SBATCH {line}\n" in head
    assert "#SBATCH --partition=cpu\n" in merge
    for wrong in ("--array=0-9", "gres", "--time=1\nrm"):
        with pytest.raises(ConfigurationError):
            JobOptions(options=[wrong])


def test_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep"
    arguments = ["slurm", "--checkpoints", str(run / "checkpoint-*"), "--manifest", str(run / "manifest.json"),
                 "-o", str(out), "--ref", str(run / "base"), "--partition", "gpu",
                 "--sbatch=--exclude=node7"]  # fmt: skip
    assert main(arguments) == 0
    sweep = read_sweep(out)
    assert sweep is not None and [one.step for one in sweep.checkpoints] == [0, 10, 20, 30]
    text = (out / "audit.sbatch").read_text()
    assert "#SBATCH --partition=gpu\n" in text and "#SBATCH --exclude=node7\n" in text
    capsys.readouterr()
    assert main(["slurm", "--status", str(out)]) == 0
    assert "0 of 4 tasks done" in capsys.readouterr().out
    for wrong, words in (
        (
            ["--checkpoints", str(run / "nothing-*"), "--manifest", str(run / "manifest.json")],
            "no checkpoint matches",
        ),
        (["--checkpoints", str(run / "checkpoint-*"), "--manifest", str(run / "no.json")], "no manifest"),
        (["--status", str(tmp_path)], "memaudit-slurm.json"),
        ([], "--checkpoints"),
    ):
        assert main(["slurm", *wrong]) == 2
        assert words in capsys.readouterr().err


def test_submit_without_slurm(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = [
        "slurm",
        "--checkpoints",
        str(run / "checkpoint-*"),
        "--manifest",
        str(run / "manifest.json"),
    ]
    assert main([*arguments, "-o", str(tmp_path / "a"), "--submit", "true"]) == 2
    assert "no sbatch on this machine" in capsys.readouterr().err
