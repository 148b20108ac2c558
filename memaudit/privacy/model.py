"""Canaries scored by a model or a strategy's shards, through the engine that the in-loop audit uses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError
from memaudit.privacy.coins import CoinFlip
from memaudit.privacy.records import Spans, token_record


def as_strategy(target: Any) -> Any:
    """Return ``target`` where it is a strategy already, else the strategy that fits it."""
    if hasattr(target, "scoring") and hasattr(target, "gradient_norms"):
        return target
    from memaudit.strategies.resolve import resolve

    return resolve(target)


def token_records(
    strategy: Any, dataset: Any, coin_flip: CoinFlip, tokenizer: Any, max_length: int | None
) -> list[tuple[list[int], Spans]]:
    """Return ids and target spans of every canary, in the order of the partition."""
    limit = getattr(getattr(strategy.model, "config", None), "max_position_embeddings", None)
    return [
        token_record(
            dataset[int(index)],
            index=int(index),
            tokenizer=tokenizer,
            max_length=max_length,
            limit=limit if isinstance(limit, int) else None,
        )
        for index in coin_flip.canary_indices
    ]


def mean_log_probabilities(
    strategy: Any, records: list[tuple[list[int], Spans]], *, batch_size: int, which: str
) -> NDArray[np.float64]:
    """Return the mean log-probability of each record's target tokens, in nats, shape (m,), on every rank."""
    from memaudit.engine import AuditEngine
    from memaudit.probes import Probe

    if which not in ("target", "reference"):
        raise ConfigurationError(f"which is {which!r}; give 'target', or 'reference' for adapters off")
    probes = [
        Probe(f"{number}/{part}", tuple(ids), span)
        for number, (ids, spans) in enumerate(records)
        for part, span in enumerate(spans)
    ]
    engine = AuditEngine(strategy=strategy, max_batch_size=batch_size)
    signals = engine.score(probes, "target" if which == "target" else "reference").signals
    means = np.empty(len(records))
    for number, (_, spans) in enumerate(records):
        parts = [signals[f"{number}/{part}"].logprob for part in range(len(spans))]
        means[number] = float(np.concatenate(parts).astype(np.float64).mean())
    return means


def gradient_norms(
    strategy: Any, records: list[tuple[list[int], Spans]], coin_flip: CoinFlip
) -> NDArray[np.float64]:
    """Return the squared gradient norm of each record's mean loss, shape (m,), over all shards."""
    for index, (_, spans) in zip(coin_flip.canary_indices, records, strict=True):
        if len(spans) > 1:
            raise ConfigurationError(
                f"record {int(index)} has {len(spans)} separate runs of labels; gradient scores take one, "
                "use loss_scores or a functional loss"
            )
    norms = strategy.gradient_norms([ids for ids, _ in records], [spans[0] for _, spans in records])
    return np.asarray(norms, dtype=np.float64)
