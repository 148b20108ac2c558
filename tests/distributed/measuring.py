"""Records, scorings of them in the loop and by the plain model, and the differences: what the workers measure with."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

LENGTHS = (9, 14, 6, 11, 7, 5, 12)


def records(count: int, seed: int = 0) -> list[tuple[list[int], tuple[int, int]]]:
    """Return records of uneven length with the span to score."""
    rng = random.Random(seed)
    made = []
    for index in range(count):
        length = LENGTHS[index % len(LENGTHS)]
        ids = [rng.randrange(2, 96) for _ in range(length)]
        start = rng.randrange(1, length - 2)
        made.append((ids, (start, rng.randrange(start + 1, length + 1))))
    return made


def score_batch(forward: Any, batch: list[tuple[list[int], tuple[int, int]]]) -> list[list[float]]:
    """Return the target tokens' log-probabilities of right-padded records."""
    length = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in batch])
    mask = torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids, _ in batch])
    rows, targets, sizes = [], [], []
    for index, (tokens, (start, stop)) in enumerate(batch):
        rows += [index * length + position - 1 for position in range(start, stop)]
        targets += tokens[start:stop]
        sizes.append(stop - start)
    logits = forward(ids, mask, torch.tensor(rows))
    values = logits.float().log_softmax(-1)[torch.arange(len(rows)), torch.tensor(targets)].tolist()
    found, at = [], 0
    for size in sizes:
        found.append(values[at : at + size])
        at += size
    return found


def score(strategy: Any, work: list[Any], *, batch: int, reference: bool = False) -> dict[int, list[float]]:
    """Score records shared out over record ranks, with dummies where the strategy is in lockstep."""
    mine = list(range(strategy.record_rank, len(work), strategy.record_world))
    chunks = [mine[i : i + batch] for i in range(0, len(mine), batch)]
    longest = -(-len(work) // strategy.record_world)
    turns = -(-longest // batch) if strategy.lockstep else len(chunks)
    found: dict[int, list[float]] = {}
    with strategy.reference() if reference else strategy.scoring() as forward:
        for turn in range(turns):
            chunk = chunks[turn] if turn < len(chunks) else []
            if not chunk:
                score_batch(forward, [([5, 6], (1, 2))])
                continue
            found.update(zip(chunk, score_batch(forward, [work[i] for i in chunk]), strict=True))
    return dict(strategy.gather(list(found.items())))


def engine_scores(strategy: Any, work: list[Any], *, which: str = "target") -> dict[int, list[float]]:
    """Score by the product's engine; records of ten tokens and more as a shared prefix with a text after it."""
    from memaudit.engine import AuditEngine
    from memaudit.probes import Probe

    probes = []
    for index, (ids, (start, stop)) in enumerate(work):
        cut = 4 if len(ids) >= 10 and start >= 4 else 0
        probes.append(Probe(str(index), tuple(ids[cut:]), (start - cut, stop - cut), tuple(ids[:cut])))
    assert any(probe.prefix_ids for probe in probes), "no record is long enough"
    signals = AuditEngine(strategy=strategy, max_batch_size=2).score(probes, which).signals
    return {int(name): found.logprob.tolist() for name, found in signals.items()}


def plain_scores(model: nn.Module, work: list[Any]) -> dict[int, list[float]]:
    """Score by the model's own forward, one record at a time, every row projected: the independent path."""
    model.eval()
    found = {}
    with torch.no_grad():
        for index, (ids, (start, stop)) in enumerate(work):
            logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
            found[index] = [float(logits[t - 1, ids[t]]) for t in range(start, stop)]
    return found


def plain_gradient(model: nn.Module, ids: list[int], span: tuple[int, int]) -> float:
    """Return the squared gradient norm by an ordinary backward on the plain model."""
    model.eval()
    model.zero_grad()
    logits = model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)
    loss = -sum(logits[t - 1, ids[t]] for t in range(*span)) / (span[1] - span[0])
    loss.backward()
    total = sum(float(p.grad.double().pow(2).sum()) for p in model.parameters() if p.grad is not None)
    model.zero_grad()
    return total


def plain_generation(model: nn.Module, prompt: list[int], count: int) -> list[int]:
    """Decode greedily by the plain forward, up to the end token 1."""
    ids, new = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            if token == 1:
                break
            ids.append(token)
            new.append(token)
    return new


def largest_difference(a: dict[int, list[float]], b: dict[int, list[float]]) -> float:
    """Return the largest difference between two scorings of the same records."""
    if sorted(a) != sorted(b):
        return float("inf")
    return max(abs(x - y) for key in a for x, y in zip(a[key], b[key], strict=True))


def fresh(seed: int) -> None:
    """Set every random state."""
    random.seed(seed)
    torch.manual_seed(seed)
