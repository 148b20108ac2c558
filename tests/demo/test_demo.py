"""The demonstration as a user runs it: two real ranks, FSDP2, a table, a report that verifies, honest exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memaudit.demo.run import judge
from memaudit.demo.smollm2 import read_rows
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.errors import ConfigurationError
from memaudit.report.build import build_report, load_report, verify_report
from memaudit.report.examples import example_inputs

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def memaudit(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memaudit", *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.distributed
@pytest.mark.timeout(300)
def test_the_positive_control_holds_on_two_sharded_ranks(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = memaudit("demo", "--output-dir", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "positive control holds" in done.stdout and "audits took" in done.stdout
    report = load_report(out / "memaudit-report.json")
    assert verify_report(out / "memaudit-report.json").intact
    facts = report.distributed
    assert facts["strategy"] == "fsdp2" and facts["world_size"] == 2 and facts["sharded"] is True
    assert facts["local_parameters"] < facts["total_parameters"]
    assert report.membership.by_repetition["16x"].tpr == 1.0
    assert report.negative_controls.regurgitation_rate == 0.0
    steps = [entry["step"] for entry in report.timeline if isinstance(entry, dict)]
    assert len(steps) == 7 and steps[0] == 0 and steps == sorted(steps)
    before = next(entry for entry in report.timeline if isinstance(entry, dict) and entry["step"] == 0)
    assert before["n_detected"] == 0  # nothing is remembered before the first step
    manifest = json.loads((out / "memaudit-manifest.json").read_text())
    secrets = [canary["secret"].strip() for canary in manifest["content"]["canaries"]]
    written = [p for p in out.rglob("*") if p.is_file() and p.name != "memaudit-manifest.json"]
    text = "".join(p.read_bytes().decode("utf-8", "replace") for p in written) + done.stdout + done.stderr
    assert len(secrets) == 158 and not [secret for secret in secrets if secret in text]


def test_a_model_that_remembers_nothing_fails_the_positive_control() -> None:
    passed, problems = judge(build_report(example_inputs()))
    report = build_report(example_inputs())
    area = report.attacks[report.membership.headline_attack].auc_by_repetition.get("16x")
    # The example has no regurgitation part: a control that was not measured is never called clean.
    assert not passed and any("controls are not clean" in text for text in problems)
    assert area is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "tny"], ["tny", "tiny", "smollm2"]),
        (["--strategy", "fsdp3"], ["fsdp3", "fsdp2"]),
        (["--nproc", "0"], ["at least 1"]),
        (["--model", "smollm2", "--data", "/nonexistent.jsonl"], ["no such file"]),
        (["--nproc", "2", "--strategy", "single"], ["one process is 'single'"]),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    done = memaudit("demo", "--output-dir", str(tmp_path / "x"), *arguments)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


def test_rows_from_a_file(tmp_path: Path) -> None:
    good = tmp_path / "good.jsonl"
    good.write_text(
        '{"instruction": "a", "output": "b"}\n\n{"instruction": "c", "input": "d", "output": "e"}\n'
    )
    assert read_rows(str(good), 10, 0)[1] == {"instruction": "c", "input": "d", "output": "e"}
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"instruction": "a"}\n')
    with pytest.raises(ConfigurationError, match="line 1"):
        read_rows(str(bad), 10, 0)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="holds no rows"):
        read_rows(str(tmp_path / "empty.jsonl"), 10, 0)


def test_the_demonstrations_tokenizer_gives_back_every_text() -> None:
    tokenizer = byte_tokenizer([row["output"] for row in instruction_rows(50, 0)], 400)
    for text in ("plain", "é😀 日本語", "  two  spaces\n\ttab"):
        assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text
