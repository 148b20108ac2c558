"""Runs inside the peer's own environment: draws and injects its canaries, or audits with it. Called by audit.py."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any


def inject_rows(folder: Path, n: int, controls: int) -> None:
    """Draw canaries of the family random, plant them among host rows, and write rows and manifest."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    import memaudit

    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    began = time.perf_counter()
    canaries = memaudit.generate_canaries(
        tokenizer, n=n, n_controls=controls, family="random", repetitions=(1, 4, 16), seed=0, secret_len=32
    )
    host = [{"text": text} for text in (folder / "host.txt").read_text().splitlines()]
    data, manifest = memaudit.inject(
        Dataset.from_list(host), canaries, fmt="text", seed=0, include_prob=0.5, tokenizer=tokenizer
    )
    seconds = time.perf_counter() - began
    (folder / "rows.json").write_text(json.dumps([row["text"] for row in data]))
    (folder / "peer-manifest.json").write_text(json.dumps(manifest))
    (folder / "peer-inject.json").write_text(json.dumps({"seconds": seconds}))


def audit(folder: Path, threads: int) -> None:
    """Audit the adapter with the peer as it is, and count its forwards."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import memaudit

    torch.set_num_threads(threads)
    random.seed(0)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    base = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "adapter").eval()
    forwards = [0]
    base.register_forward_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))
    manifest = json.loads((folder / "peer-manifest.json").read_text())
    began, cpu = time.perf_counter(), time.process_time()
    report: dict[str, Any] = memaudit.run_audit(
        model,
        tokenizer,
        manifest,
        dataset=None,
        ref="auto",
        real_sample=0,
        output_path=str(folder / "peer.json"),
    )
    result = {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu,
        "forwards": forwards[0],
        "report": report,
    }
    (folder / "peer-result.json").write_text(json.dumps(result, default=str))


if __name__ == "__main__":
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "inject":
        inject_rows(where, int(sys.argv[3]), int(sys.argv[4]))
    else:
        audit(where, int(sys.argv[3]))
