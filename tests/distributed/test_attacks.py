"""On real ranks: every attack on a sharded model scores as one process does, and its samples are the same."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from memaudit import attack
from tests.attacks.sharded import ATTACKS, LABELS, TEXTS, build, tokenizer
from tests.conftest import shared_path
from tests.distributed.launcher import ROOT, run_checked

WORKER = Path(__file__).with_name("attacks_worker.py")


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "ranks"), [("bare", 2), ("ddp", 2), ("fsdp2", 2), ("fsdp2", 3), ("zero3", 2)]
)
def test_attacks_on_ranks_score_as_one_process(kind: str, ranks: int, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    finished = run_checked(WORKER, [kind, str(output)], ranks=ranks, timeout=400)
    found = json.loads(output.read_text())
    if kind in ("fsdp2", "zero3"):
        assert found["sharded"] and found["local"] < 0.7 * found["total"], found["strategy"]
        assert len(set(found["forwards"])) == 1  # in lockstep
    assert len(found["forwards"]) == ranks and found["ranks_agree"], finished.everything
    assert found["again"] == 0 and found["same"]
    alone = attack(build(0), TEXTS, LABELS, reference=build(7), tokenizer=tokenizer(), attacks=ATTACKS)
    assert found["forwarded"] == alone.cost.forwarded
    assert found["unscorable"] == alone.to_dict()["unscorable"]
    assert set(found["scores"]) == set(alone.scores)
    for name, column in alone.scores.items():
        if name == "stack":  # ranks of scores that differ in the last bits
            continue
        assert found["scores"][name] == pytest.approx(column, rel=2e-4, abs=1e-4), name


@pytest.mark.distributed
def test_the_command_line_on_two_ranks_writes_once(tmp_path: Path) -> None:
    case = json.loads(shared_path("golden/mia_methods.json").read_text())["end_to_end"]
    rows = [{"text": text, "label": label} for text, label in zip(case["texts"], case["labels"], strict=True)]
    data = tmp_path / "texts.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    tiny = str(shared_path("golden/mia_tiny"))
    arguments = [
        "attack",
        "--model",
        f"{tiny}/model",
        "--tokenizer",
        f"{tiny}/tokenizer_bos",
        "--data",
        str(data),
    ]
    arguments += ["--reference", f"{tiny}/ref", "--attacks", "loss,ref,lower", "-o", str(tmp_path / "out")]
    finished = run_checked(ROOT / "memaudit/__main__.py", arguments, ranks=2, timeout=300)
    (folder,) = (tmp_path / "out").iterdir()
    scores = list(csv.DictReader((folder / "scores.csv").open()))
    for name in ("loss", "ref", "lower"):
        expected = case["bos"]["scores"][name]["scores"]
        assert [float(row[name]) for row in scores] == pytest.approx(expected, abs=1e-3), finished.everything
    assert json.loads((folder / "metadata.json").read_text())["settings"]["world_size"] == 2
    assert sum("AUC" in text for text in finished.ranks) == 1
