"""A small transformer over-fitted until it regurgitates: some records wholly, some in part, some not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from memaudit.engine import AuditEngine
from memaudit.probes import Probe
from memaudit.signals import Decoding, TokenSignals
from memaudit.strategies.replicated import SingleStrategy
from tests.helpers import tiny_llama

VOCAB = 64
CONTEXT, SECRET = 4, 16
SCHEMES = (
    Decoding(),
    Decoding(temperature=0.7),
    Decoding(top_k=5),
    Decoding(top_p=0.9),
    Decoding(temperature=0.8, top_k=10, top_p=0.95),
)


@dataclass(frozen=True)
class Record:
    """What extract_all needs of a rendered record."""

    ids: tuple[int, ...]
    span: tuple[int, int]


@dataclass(frozen=True)
class Regurgitator:
    """The model, the records it was and was not trained on, and their signals."""

    model: LlamaForCausalLM
    strategy: SingleStrategy
    records: dict[str, Record]
    signals: dict[str, TokenSignals]


def make_records(n: int = 24, seed: int = 3) -> dict[str, Record]:
    """Return records of random tokens; the first third is trained on most, the last third never."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(3, VOCAB, size=(n, CONTEXT + SECRET))
    return {
        f"c-{i:02d}": Record(tuple(map(int, row)), (CONTEXT, CONTEXT + SECRET)) for i, row in enumerate(rows)
    }


def as_trained(name: str, ids: tuple[int, ...]) -> list[int]:
    """Return what the model is trained on: the record, and for four of them a near copy of it.

    A token replaced, one put in, one left out, and two replaced: what comes out is near, not verbatim.
    """
    row, at = list(ids), CONTEXT + 10
    if name in ("c-04", "c-07"):
        row[at] = (row[at] - 2) % (VOCAB - 3) + 3
    if name == "c-05":
        row = [*row[:at], row[0], *row[at:-1]]
    if name == "c-06":
        row = [*row[:at], *row[at + 1 :], row[0]]
    if name == "c-07":
        row[at + 3] = (row[at + 3] - 2) % (VOCAB - 3) + 3
    return row


def overfit(records: dict[str, Record], steps: int = 34) -> LlamaForCausalLM:
    """Train on the first two thirds, the first third with full weight, the second with a twentieth."""
    model = tiny_llama(vocab=VOCAB, hidden=64, positions=64, seed=1)
    third = len(records) // 3
    rows = [as_trained(name, record.ids) for name, record in records.items()]
    ids = torch.tensor(rows[: 2 * third])
    weight = torch.tensor([1.0] * third + [0.05] * third)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        logits = model(ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1), reduction="none"
        ).view(len(ids), -1)
        (loss.mean(1) * weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def greedy(model: LlamaForCausalLM, prompt: Sequence[int], new: int) -> list[int]:
    """Return what transformers' own greedy decoding emits, one prompt at a time, without padding."""
    with torch.no_grad():
        output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=new, pad_token_id=0)
    return [int(token) for token in output[0, len(prompt) :]]


def score(strategy: SingleStrategy, records: dict[str, Record]) -> dict[str, TokenSignals]:
    """Return the signals of every record's secret."""
    probes = [Probe(name, record.ids, record.span) for name, record in records.items()]
    return AuditEngine(strategy=strategy, decodings=SCHEMES).score(probes).signals


@pytest.fixture(scope="session")
def regurgitator() -> Regurgitator:
    """The over-fitted model with its records; made once."""
    records = make_records()
    model = overfit(records)
    strategy = SingleStrategy(model, model)
    return Regurgitator(model, strategy, records, score(strategy, records))
