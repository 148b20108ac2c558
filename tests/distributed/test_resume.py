"""A fine-tune on shards that is cut off and resumed: the same reference, the same scores, the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.launcher import run_checked

WORKER = Path(__file__).with_name("resume_worker.py")

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "zero3"])
def test_a_resumed_run_on_shards_goes_on_as_if_nothing_had_happened(kind: str, tmp_path: Path) -> None:
    ranks: dict[str, list[dict[str, Any]]] = {}
    for phase in ("first", "second"):
        run_checked(WORKER, [kind, phase, str(tmp_path)], ranks=2, timeout=240)
        ranks[phase] = json.loads((tmp_path / f"{phase}.json").read_text())
    whole, resumed = (ranks["first"][0]["whole"], ranks["second"][0]["resumed"])

    wanted = {"ddp": "DistributedDataParallel", "fsdp2": "FSDPModule", "zero3": "DeepSpeedEngine"}[kind]
    for part in (whole, resumed):
        assert wanted in part["wrapper"]
        local, total = part["shares"]
        assert local == total if kind == "ddp" else local < 0.6 * total

    assert whole["steps"] == [2, 4, 6, 8] and whole["reference"]["forwarded"]
    assert resumed["steps"] == [6, 8] and not resumed["reference"]["forwarded"]
    assert resumed["reference"]["mode"] == "initial"
    assert "before this run was resumed" in resumed["reference"]["note"]
    assert resumed["reference"]["logprobs"] == whole["reference"]["logprobs"]
    # Training moved the scores, and what was resumed ends where the whole run does, to the bit.
    assert max(abs(value) for value in whole["scores"][-1].values()) > 0.1
    assert resumed["scores"] == whole["scores"][2:]
    first, second = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "resumed"))
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
    assert ranks["first"][1]["whole"]["scores"] == whole["scores"]
    assert ranks["second"][1]["resumed"]["scores"] == resumed["scores"]
    timeline = (tmp_path / "parts" / "memaudit-timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in timeline] == [2, 4, 6, 8]

    for rank in ranks["second"]:  # refused on every rank: none waits for another
        assert "at step 4, after training has begun" in rank["late"]["refusal"]
