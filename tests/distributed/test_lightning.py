"""Lightning on two real ranks: the scores of the consolidated model, and the same training to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.launcher import run_checked

WORKER = Path(__file__).with_name("lightning_worker.py")


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_lightning_audits_shards_and_changes_no_bit(kind: str, tmp_path: Path) -> None:
    finished = run_checked(WORKER, [kind, str(tmp_path)], ranks=2, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["strategy"] == kind == found["report"] and found["world"] == 2, found
    if kind == "fsdp2":
        assert found["sharded"] and found["local"] < 0.6 * found["total"], found
    assert found["missing"] == [], found
    assert found["difference"] <= 1e-5, found
    assert found["steps"] == [0, 2, 4], finished.everything
    assert found["reference"] == "initial"
    assert found["moved"] and found["same_bits"], found
    assert found["forwards"][0] == found["forwards"][1] > 0  # the work was shared
    lines = (tmp_path / "often" / "memaudit-timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 2, 4]  # written once, by rank 0
