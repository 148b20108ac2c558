"""memaudit audit and merge from the command line: ranks, slices, references, wrong inputs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from memaudit import generate_canaries, inject
from memaudit.cli import main
from memaudit.posthoc.stable import stable_content
from tests.helpers import sample_text, tiny_tokenizer
from tests.posthoc.test_checkpoint_kinds import ROOT

Command = Callable[..., list[str]]
REPORT = "memaudit-report.json"


def content(folder: Path) -> str:
    return stable_content(json.loads((folder / REPORT).read_text()))


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> None:
    capsys.readouterr()
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("memaudit")]
    assert len(lines) == 1, lines
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert main([
        "audit", "--model", str(run / "checkpoint-30"), "--manifest", str(run / "manifest.json"), "--ref",
        str(run / "base"), "--output-dir", str(folder), "--batch-size", "4", "--real-sample", "0",
    ]) == 0  # fmt: skip
    return folder


@pytest.mark.slow
@pytest.mark.distributed
def test_two_sharded_ranks_write_the_same_report(command: Command, tmp_path: Path, whole: Path) -> None:
    import os
    import socket
    import subprocess
    import sys

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    done = subprocess.run(
        [*launcher, "-m", "memaudit", *command(tmp_path / "a", "--strategy", "fsdp2")],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads((tmp_path / "a" / REPORT).read_text())
    assert report["distributed"]["sharded"] and report["distributed"]["world_size"] == 2
    assert content(tmp_path / "a") == content(whole)


def test_slices_merge_to_the_whole(
    command: Command, tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "slices"
    assert main(command(folder, "--slice", "0/3")) == 0
    assert not (folder / REPORT).exists()
    refused(capsys, ["merge", str(folder)], "1/3 (never started)", "2/3 (never started)")
    # The others in folders and stores of their own, as on machines that share nothing.
    assert main(command(tmp_path / "other", "--slice", "2/3")) == 0
    assert main(command(tmp_path / "third", "--slice", "1/3")) == 0
    also = f"{tmp_path / 'other'},{tmp_path / 'third'}"
    assert main(["merge", str(folder), "--also", also]) == 0
    assert content(folder) == content(whole)


def test_merge_refuses_what_does_not_belong(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    skip = ("--skip-generation", "true")
    assert main(command(first, "--slice", "0/2", *skip)) == 0
    assert main(command(second, "--slice", "1/2", *skip, checkpoint="checkpoint-20")) == 0
    refused(
        capsys, ["merge", str(first), "--also", str(second)], "different models", "slice 0/2", "slice 1/2"
    )
    record = next((first / "memaudit-jobs").glob("*.json"))
    for field, value, word in (
        ("tool_version", "0.0.1", "versions"),
        ("manifest_sha256", "f" * 64, "manifests"),
    ):
        shutil.copytree(first, tmp_path / field)
        changed = json.loads(record.read_text()) | {field: value, "slice_index": 1}
        (tmp_path / field / "memaudit-jobs" / record.name).write_text(json.dumps(changed))
        refused(capsys, ["merge", str(first), "--also", str(tmp_path / field)], f"different {word}")
    refused(capsys, ["merge", str(tmp_path / "nothing")], "no folder")
    (tmp_path / "empty").mkdir()
    refused(capsys, ["merge", str(tmp_path / "empty")], "holds no jobs")
    # Signals of a finished job that are gone are named, never made up.
    assert main(command(first, "--slice", "1/2", *skip)) == 0
    shards = sorted((first / "memaudit-signals").glob("*/*.arrow"))
    shards[0].unlink()
    refused(capsys, ["merge", str(first)], "lacks the", "scores")


def test_wrong_inputs(
    run: Path, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a"
    other = tiny_tokenizer("metaspace")
    drawn = generate_canaries(other, n=4, n_controls=4, family="random", seed=0, secret_len=25)
    from datasets import Dataset

    _, manifest = inject(Dataset.from_dict({"text": sample_text(4)}), drawn, seed=0)
    manifest.save(tmp_path / "other.json")
    arguments = command(out)
    arguments[arguments.index("--manifest") + 1] = str(tmp_path / "other.json")
    refused(capsys, arguments, "manifest was made for the tokenizer")
    refused(
        capsys, command(out, ref="auto"), "--ref auto", "no adapters", "--ref BASE_CHECKPOINT", "--ref none"
    )
    refused(capsys, command(out, ref="initial"), "--ref initial", "memaudit-initial.json")
    refused(capsys, command(out, ref=str(tmp_path / "nowhere")), "no checkpoint at")
    refused(capsys, command(out, "--slice", "4/4"), "slice 4/4")
    refused(capsys, command(out, "--seeds", "x"), "seeds")
    refused(capsys, command(out, "--strategy", "fsdp2"), "torchrun")
    refused(capsys, command(out, "--dataset", str(tmp_path / "no.jsonl")), "no dataset")
    refused(capsys, command(out, checkpoint="checkpoint-99"), "no checkpoint at")
    (tmp_path / "file").write_text("x")
    refused(capsys, command(tmp_path / "file"), "cannot write")
    assert not (out / REPORT).exists()


def test_reference_kept_from_step_0(run: Path, command: Command, tmp_path: Path) -> None:
    """What a training run kept serves as reference, and equals the base checkpoint's scores."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from memaudit import AuditSession

    model = AutoModelForCausalLM.from_pretrained(run / "base")
    tokenizer = AutoTokenizer.from_pretrained(run / "base")
    session = AuditSession(
        model,
        tokenizer,
        run / "manifest.json",
        output_dir=tmp_path / "a",
        ref="initial",
        skip_generation=True,
    )
    session.reference(0)
    skip = ("--skip-generation", "true")
    assert main(command(tmp_path / "a", *skip, ref="auto")) == 0
    assert main(command(tmp_path / "b", *skip)) == 0
    one, two = (json.loads((tmp_path / name / REPORT).read_text()) for name in "ab")
    assert one["reference"]["mode"] == "step0" and two["reference"]["mode"] == "checkpoint"
    assert one["membership"]["auc"] == pytest.approx(two["membership"]["auc"], abs=1e-6)
    for a, b in zip(one["per_canary"], two["per_canary"], strict=True):
        assert a["id"] == b["id"]
    assert one["attacks"]["ref"]["member_mean"] == pytest.approx(
        two["attacks"]["ref"]["member_mean"], abs=1e-4
    )


def test_curve_over_checkpoints(command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "sweep"
    for step in (0, 10, 30):
        name = f"checkpoint-{step}"
        assert main(command(root / name, "--store", str(root / "signals"), checkpoint=name)) == 0
    capsys.readouterr()
    assert main(["merge", str(root)]) == 0
    curve = json.loads((root / "memaudit-curve.json").read_text())
    assert [point["step"] for point in curve["points"]] == [0, 10, 30] and not curve["missing"]
    for point in curve["points"]:
        report = json.loads(Path(point["report"]).read_text())
        assert point["auc"] == report["membership"]["auc"]
        assert point["tpr"] == report["membership"]["tpr_at_target_fpr"]
    # The base itself shows nothing; three epochs of repeated canaries show.
    assert curve["points"][2]["auc"] > 0.9 > curve["points"][0]["auc"]
    page = (root / "memaudit-curve.html").read_text()
    assert page.count("<svg") == 4 and "src=" not in page and "@import" not in page
    shutil.rmtree(root / "checkpoint-10" / "memaudit-jobs")
    before = (root / "memaudit-curve.json").read_bytes()
    assert main(["merge", str(root)]) == 0  # the folder no longer counts as one of ours
    assert (root / "memaudit-curve.json").read_bytes() != before
