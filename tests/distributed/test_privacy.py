"""On real ranks: canary scores over shards equal those of one process on the whole model, on every rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.launcher import run_checked

WORKER = Path(__file__).with_name("privacy_worker.py")


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "zero3"])
def test_scores_on_shards_equal_those_of_one_process(kind: str, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    run_checked(WORKER, [kind, str(output)], ranks=2, timeout=300)
    found = [json.loads(Path(f"{output}.{rank}").read_text()) for rank in range(2)]
    for one in found:
        assert len(one["loss"]) == 17
        assert one["loss"] == pytest.approx(one["expected_loss"], abs=2e-5)
        assert one["gradient"] == pytest.approx(one["expected_gradient"], rel=1e-3)
    assert found[0]["loss"] == found[1]["loss"]
