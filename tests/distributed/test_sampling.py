"""On real ranks: all draw, all hold the same canaries, and their perplexities are the consolidated model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.launcher import run_checked

WORKER = Path(__file__).with_name("sampling_worker.py")


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("kind", "count"), [("ddp", 6), ("fsdp2", 6), ("zero3", 1)]
)  # zero3 gathers at each layer
def test_canaries_sampled_on_shards(kind: str, count: int, tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    finished = run_checked(WORKER, [kind, str(output), str(count)], ranks=2, timeout=500)
    found = json.loads(output.read_text())
    assert found["world"] == 2 and found["sharded"] == (kind != "ddp"), finished.everything
    assert found["agree"] and found["quiet"]
    assert found["in_band"] == 2 * count
    assert found["largest"] < 1e-4
