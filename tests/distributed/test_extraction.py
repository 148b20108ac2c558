"""On real ranks: the verdicts from sharded weights equal plain greedy generation, for every record and prefix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.launcher import run_checked

WORKER = Path(__file__).with_name("extraction_worker.py")


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "zero3"])
def test_verdicts_from_shards_equal_plain_greedy_generation(kind: str, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    finished = run_checked(WORKER, [kind, str(output)], ranks=2, timeout=300)
    found = json.loads(output.read_text())
    assert found["world"] == 2 and found["strategy"].startswith({"zero3": "zero3"}.get(kind, kind)), found
    if kind != "ddp":
        assert found["sharded"] and found["local"] < 0.6 * found["total"], found
    assert found["judged"] == 24 * 3
    assert found["verbatim"] >= 10 and found["near"] >= 1, found
    assert found["wrong"] == [], finished.everything
    assert found["ranks_agree"]
    counts = found["counts"]
    assert counts["generated"] > 0 and counts["not_run"] == 0
    assert counts["verbatim"] == found["verbatim"]
