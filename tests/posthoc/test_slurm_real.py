"""A real SLURM of two nodes on this machine: arrays, two-node jobs, requeue, preemption, a node set down."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memaudit.cli import main
from memaudit.posthoc.slurm.sweep_file import read_sweep
from memaudit.posthoc.stable import stable_content
from tests.conftest import shared_path
from tests.helpers import tiny_llama, tiny_tokenizer
from tests.posthoc.shards import scored_keys

ROOT = Path(__file__).resolve().parents[2]
REPORT = "memaudit-report.json"
FAST = "--real-sample 0"
pytestmark = [pytest.mark.slow, pytest.mark.distributed]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("the cluster's daemons need root")
    script = str(shared_path("slurm", "cluster"))
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 16817)) == 0:
            pytest.skip("another SLURM of these tests runs on this machine")
    place = tmp_path_factory.mktemp("slurm")
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PYTHONPATH", "OMP_NUM_THREADS", "PATH")}
    # Debian puts the daemons where a user's PATH does not always look.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    started = subprocess.run(
        ["bash", script, "start", str(place), "2"], capture_output=True, text=True, timeout=400
    )
    assert started.returncode == 0, started.stderr
    os.environ.update(SLURM_CONF=str(place / "slurm.conf"), PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1")
    try:
        yield
    finally:
        subprocess.run(["scancel", "--user", "root"], check=False)
        subprocess.run(["bash", script, "stop", str(place)], check=False)
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def submit(run: Path, out: Path, checkpoints: str, *more: str) -> int:
    arguments = [
        "slurm",
        "--checkpoints",
        checkpoints,
        "--manifest",
        str(run / "manifest.json"),
        "-o",
        str(out),
    ]
    assert main([*arguments, "--submit", "true", *more]) == 0
    sweep = read_sweep(out)
    assert sweep is not None and sweep.array_job is not None
    return sweep.array_job


def squeue(*more: str) -> str:
    return subprocess.run(["squeue", "--noheader", *more], capture_output=True, text=True, check=True).stdout


def until_done(out: Path, seconds: float = 280.0) -> None:
    deadline = time.monotonic() + seconds
    while squeue().strip():
        assert time.monotonic() < deadline, squeue() + logs(out)
        time.sleep(1.0)


def until_scored(store: Path, at_least: int, out: Path, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while len(list(store.glob("*/*.arrow"))) < at_least:
        assert time.monotonic() < deadline, squeue() + logs(out)
        time.sleep(0.05)


def logs(out: Path) -> str:
    return "\n".join(
        f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted((out / "logs").glob("*.log"))
    )


def content(folder: Path) -> str:
    return stable_content(json.loads((folder / REPORT).read_text()))


def alone(run: Path, folder: Path, checkpoint: str, *more: str) -> str:
    """The report of the same audit in one process."""
    arguments = ["--manifest", str(run / "manifest.json"), "--output-dir", str(folder), "--real-sample", "0"]
    assert main(["audit", "--model", str(run / checkpoint), *arguments, *more]) == 0
    return content(folder)


def test_array_over_three_checkpoints_and_its_merge(cluster: None, run: Path, tmp_path: Path) -> None:
    out, ref = tmp_path / "sweep", str(run / "base")
    submit(run, out, str(run / "checkpoint-[123]0"), "--ref", ref, f"--audit={FAST}")
    until_done(out)
    for step in (10, 20, 30):
        expected = alone(run, tmp_path / f"alone-{step}", f"checkpoint-{step}", "--ref", ref)
        assert content(out / f"checkpoint-{step}") == expected, logs(out)
    curve = json.loads((out / "memaudit-curve.json").read_text())
    assert [point["step"] for point in curve["points"]] == [10, 20, 30]
    assert (out / "memaudit-curve.html").is_file()


def test_two_nodes_and_a_broken_checkpoint(cluster: None, run: Path, tmp_path: Path) -> None:
    """One rank on each of two nodes, weights sharded over both; the merge names a checkpoint that failed."""
    both = tmp_path / "run"
    shutil.copytree(run / "checkpoint-30", both / "checkpoint-30")
    shutil.copytree(run / "checkpoint-30", both / "checkpoint-40")
    out, ref = tmp_path / "two", str(run / "base")
    arguments = ("--nodes", "2", "--strategy", "fsdp2", "--ref", ref, f"--audit={FAST}", "--at-once", "1")
    # checkpoint-40 is damaged after the files were written: only its task can notice.
    assert main(["slurm", "--checkpoints", str(both / "checkpoint-*"), "--manifest", str(run / "manifest.json"),
                 "-o", str(out), *arguments]) == 0  # fmt: skip
    (both / "checkpoint-40" / "model.safetensors").write_bytes(b"x" * 100)
    subprocess.run(["sbatch", "--wait", str(out / "audit.sbatch")], capture_output=True, timeout=280)
    report = json.loads((out / "checkpoint-30" / REPORT).read_text())
    assert report["distributed"]["world_size"] == 2 and report["distributed"]["sharded"], logs(out)
    expected = json.loads(alone(run, tmp_path / "alone", "checkpoint-30", "--ref", ref))
    found = json.loads(content(out / "checkpoint-30"))
    expected["model"].pop("name_or_path"), found["model"].pop("name_or_path")
    assert found == expected
    assert main(["merge", str(out)]) == 2
    assert main(["merge", str(out), "--allow-missing", "true"]) == 0
    curve = json.loads((out / "memaudit-curve.json").read_text())
    assert len(curve["points"]) == 1 and "checkpoint-40" in curve["missing"][0]


def test_requeued_preempted_and_a_node_set_down(cluster: None, run: Path, tmp_path: Path) -> None:
    """Two slices told to end and requeued in the middle, and a whole audit whose node goes down."""
    slow = tmp_path / "run"
    tokenizer = tiny_tokenizer("bytelevel")
    tiny_llama(len(tokenizer), layers=8, hidden=384, seed=3).save_pretrained(slow / "checkpoint-5")
    tokenizer.save_pretrained(slow / "checkpoint-5")
    cut, down = tmp_path / "cut", tmp_path / "down"
    common = ("--ref", "none", "--skip-generation", "true", "--batch-size", "1", f"--audit={FAST}")
    place = str(slow / "checkpoint-5")
    job = submit(
        run, cut, place, *common, "--array-by", "canaries", "--slices", "2", "--sbatch=--nodelist=node1"
    )
    until_scored(cut / "signals", 12, cut)
    # Task 0 as SLURM warns before the time limit, task 1 as an operator requeues.
    subprocess.run(["scancel", "--batch", "--signal=USR1", f"{job}_0"], check=True)
    subprocess.run(["scontrol", "requeue", f"{job}_1"], check=False)
    scored = len(list((cut / "signals").glob("*/*.arrow")))
    assert scored < 108, "both slices were done already: nothing was interrupted"
    submit(run, down, place, *common, "--sbatch=--nodelist=node2")
    until_scored(down / "signals", 8, down)
    subprocess.run(["scontrol", "update", "nodename=node2", "state=down", "reason=test"], check=True)
    assert len(list((down / "signals").glob("*/*.arrow"))) < 108, "the audit was done already"
    time.sleep(3.0)
    # The node's daemon may have brought it back already (ReturnToService=2): then there is nothing to resume.
    subprocess.run(["scontrol", "update", "nodename=node2", "state=resume"], check=False)
    until_done(cut)
    more = ("--ref", "none", "--skip-generation", "true", "--batch-size", "1")
    arguments = ["--manifest", str(run / "manifest.json"), "--output-dir", str(tmp_path / "alone"), *more]
    assert main(["audit", "--model", place, "--real-sample", "0", *arguments]) == 0
    expected = content(tmp_path / "alone")
    assert content(cut / "checkpoint-5") == expected, logs(cut)
    assert content(down / "checkpoint-5") == expected, logs(down)
    assert "try 1:" in logs(cut) and "back into the queue" in logs(cut), logs(cut)
    assert "try 1:" in logs(down), logs(down)
    for out in (cut, down):
        (keys,) = scored_keys(out / "signals").values()
        assert len(keys) == 108 and max(keys.values()) == 1, "a probe was scored twice"
