"""One tiny fine-tune with planted canaries and three checkpoints, made once for every post-hoc test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from memaudit import generate_canaries, inject
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with base/, checkpoint-10, -20, -30 (each with its tokenizer) and manifest.json."""
    out = tmp_path_factory.mktemp("run")
    tokenizer = tiny_tokenizer("bytelevel")
    canaries = generate_canaries(tokenizer, n=8, n_controls=100, family="random", seed=0, secret_len=25)
    rows, manifest = inject(Dataset.from_dict({"text": sample_text(8)}), canaries, seed=0)
    manifest.save(out / "manifest.json")
    model = tiny_llama(len(tokenizer), positions=256, seed=1)
    for name in ("base", "checkpoint-0"):
        model.save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, foreach=False)
    texts = [tokenizer(row["text"])["input_ids"][:96] for row in rows]
    width = max(map(len, texts))
    for step in range(1, 31):
        batch = [texts[(8 * step + i) % len(texts)] for i in range(8)]
        ids = torch.tensor([text + [0] * (width - len(text)) for text in batch])
        labels = torch.tensor([text + [-100] * (width - len(text)) for text in batch])
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            model.save_pretrained(out / f"checkpoint-{step}")
            tokenizer.save_pretrained(out / f"checkpoint-{step}")
    return out


@pytest.fixture
def command(run: Path) -> Callable[..., list[str]]:
    """Make the arguments of ``memaudit audit`` for a checkpoint of the run."""

    def make(output: Path, *more: str, checkpoint: str = "checkpoint-30", ref: str = "base") -> list[str]:
        where = str(run / ref) if ref == "base" else ref
        return [
            "audit", "--model", str(run / checkpoint), "--manifest", str(run / "manifest.json"),
            "--ref", where, "--output-dir", str(output), "--batch-size", "4", "--real-sample", "0", *more,
        ]  # fmt: skip

    return make
