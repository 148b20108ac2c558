"""On real ranks: every attack on a sharded model scores as one process does, and its samples are the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memaudit import attack
from tests.attacks.sharded import ATTACKS, LABELS, TEXTS, build, tokenizer
from tests.distributed.launcher import run_checked

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
