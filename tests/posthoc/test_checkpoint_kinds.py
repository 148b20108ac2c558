"""Every kind of checkpoint, saved by two ranks, read by 1, 2 and 4: the scores are those taken in the loop."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = {
    "adapter": "adapter", "dcp-tied": "dcp", "dcp-untied": "dcp", "hf-tied": "huggingface",
    "hf-untied": "huggingface", "lightning-plain": "lightning", "lightning-sharded": "dcp",
    "merged": "huggingface", "zero1": "zero", "zero2": "zero", "zero3": "zero",
}  # fmt: skip


def launch(ranks: int, script: str, *arguments: str) -> None:
    """Run a script of this folder on ranks of its own, with the output of all of them in a failure."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(port)]
    command = [
        sys.executable,
        *(torchrun if ranks > 1 else []),
        str(ROOT / "tests/posthoc" / script),
        *arguments,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("deepspeed")
    pytest.importorskip("lightning")
    pytest.importorskip("peft")
    out = tmp_path_factory.mktemp("saved")
    launch(2, "save_all.py", str(out))
    return out


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("ranks", "strategies"), [(1, ["single"]), (2, ["ddp", "fsdp2", "zero3"]), (4, ["fsdp2", "zero3"])]
)
def test_scores_are_those_of_the_loop(saved: Path, tmp_path: Path, ranks: int, strategies: list[str]) -> None:
    launch(ranks, "score_all.py", str(saved), str(tmp_path / "scores.json"), *strategies)
    expected: dict[str, list[list[float]]] = json.loads((saved / "in-loop.json").read_text())
    assert {name.split("/")[0] for name in expected} == set(KINDS)
    outcome = json.loads((tmp_path / "scores.json").read_text())
    assert outcome["world"] == ranks
    for key, found in outcome["results"].items():
        name, strategy = key.split("|")
        kind = KINDS[name.split("/")[0]]
        if kind == "adapter" and strategy == "zero3":
            assert "use --strategy fsdp2" in found["error"]
            continue
        check(found, expected[name], kind, strategy, ranks, key)


def check(
    found: dict[str, Any], expected: list[list[float]], kind: str, strategy: str, ranks: int, key: str
) -> None:
    assert "error" not in found, f"{key}: {found.get('trace')}"
    assert found["kind"] == kind
    sharded = strategy in ("fsdp2", "zero3")
    assert found["strategy"] == {"ddp": "replicated"}.get(strategy, strategy), key
    if sharded:
        assert found["local"] <= found["total"] / ranks + 64, f"{key}: not sharded"
    worst = max(
        abs(a - b)
        for one, two in zip(expected, found["scores"], strict=True)
        for a, b in zip(one, two, strict=True)
    )
    assert worst <= 1e-5, f"{key}: {worst}"
