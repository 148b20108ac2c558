"""The user's own records beside the canaries: duplicates, a descriptive ranking, a set-level test.

None of it is evidence about a single record: no false-positive rate is attached to the ranking, and the set-level
test needs records that were really held out, from the same distribution.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memaudit.attacks import canary_scores
from memaudit.errors import ConfigurationError, InjectionError
from memaudit.extraction import extract_all
from memaudit.injection import Rendered
from memaudit.injection.formats import detect
from memaudit.probes import Probe
from memaudit.seeds import generator
from memaudit.stats.set_tests import blind_baseline, mann_whitney, welch

if TYPE_CHECKING:
    from memaudit.session import AuditSession

MAX_ROWS_READ = 50_000
"""Rows looked at for duplicates and for the sample; a stream is never read to its end."""

LARGEST_CONTEXT = 1024
ATTACKS = ("loss", "mink", "minkpp")


@dataclass(frozen=True, slots=True)
class RealRecord:
    """One record as tokens: the first 16 digits of its SHA-256, its ids, and its text where it has one."""

    digest: str
    ids: tuple[int, ...]
    text: str | None


def audit_real_records(session: AuditSession) -> tuple[dict[str, Any] | None, str | None]:
    """Score a sample of the training records, and of held-out ones where there are any; every rank calls.

    Args:
        session: whose ``real_records`` holds (training records, held-out records); either may be None.

    Returns:
        The fields of the report's ``real_records``, and the reason where nothing was done.
    """
    rows, held_out = session.real_records
    size = session.options.real_sample
    if size == 0:
        return None, "real_sample_zero"
    if rows is None:
        return None, "no_dataset"
    seed = session.options.seeds[0]
    secret_ids = [c.secret_ids for c in session.manifest.members]
    # Data that is dealt out by rank differs between ranks, and every rank must plan for the same records.
    gather = session.strategy.gather
    train, n_read, duplicates = gather([_sample(rows, size, seed, session, secret_ids)])[0]
    if not train:
        return None, "no_extractable_records"
    scores = _scores(session, train, "train")
    found: dict[str, Any] = {
        "sample_seed": seed,
        "n_rows_read": n_read,
        "n_train_sampled": len(train),
        "n_comparison_split": None,
        "comparison_population": "descriptive_ranking_only",
        "exact_dup_rate": duplicates,
        "set_level": None,
        "ranked": [
            {"hash": record.digest, "score": value}
            for record, value in sorted(zip(train, scores["minkpp"], strict=True), key=lambda pair: -pair[1])[
                :50
            ]
        ],
        "redacted": True,
        "verbatim": _verbatim(session, train),
    }
    if held_out is not None:
        others, _, _ = gather([_sample(held_out, size, seed, session, [])])[0]
        if len(others) >= 8 and len(train) >= 8:
            against = _scores(session, others, "held-out")
            found["n_comparison_split"] = len(others)
            found["comparison_population"] = "held_out"
            found["set_level"] = {
                "assumption": "training and held-out records come from one distribution",
                "blind_baseline": _blind(train, others, seed),
                "mann_whitney": {
                    name: mann_whitney(scores[name], against[name]).to_dict() for name in ATTACKS
                },
                "welch": {name: welch(scores[name], against[name]).to_dict() for name in ATTACKS},
            }
        else:
            found["set_level_reason"] = (
                f"{len(others)} held-out and {len(train)} training records; 8 of each are needed"
            )
    return found, None


def _sample(
    rows: Iterable[Any], size: int, seed: int, session: AuditSession, planted: Sequence[tuple[int, ...]]
) -> tuple[list[RealRecord], int, float | None]:
    """Draw ``size`` records evenly from the first rows, canaries left out; say how many repeat an earlier one."""
    rng = generator(seed, "real-records")
    length = _length(rows)
    limit = min(length, MAX_ROWS_READ) if length is not None else MAX_ROWS_READ
    texts: Counter[str] = Counter()
    kept: list[RealRecord] = []
    read = 0
    for row in itertools.islice(iter(rows), limit):
        record = _record(row, session)
        read += 1
        if record is None or any(_contains(record.ids, secret) for secret in planted):
            continue
        texts[record.digest] += 1
        if texts[record.digest] > 1:
            continue
        # Reservoir sampling: every record read has the same chance, in one pass.
        if len(kept) < size:
            kept.append(record)
        else:
            place = int(rng.integers(len(texts)))
            if place < size:
                kept[place] = record
    total = sum(texts.values())
    return kept, read, (total - len(texts)) / total if total else None


def _record(row: Any, session: AuditSession) -> RealRecord | None:
    """Tokenise a row as training does; None where it has no format that is known, or too few tokens."""
    if not isinstance(row, Mapping):
        return None
    limit = min(LARGEST_CONTEXT, session.options.max_length or LARGEST_CONTEXT, _positions(session))
    try:
        form, columns, _ = detect(row)
        tokenised = form.tokenise(row, columns, session.tokenizer)
    except (InjectionError, ConfigurationError, KeyError, TypeError, ValueError):
        return None
    ids = tuple(int(token) for token in tokenised.ids[:limit])
    if len(ids) < 2:
        return None
    source = tokenised.text if tokenised.text is not None else str(tuple(tokenised.ids))
    return RealRecord(hashlib.sha256(source.encode()).hexdigest()[:16], ids, tokenised.text)


def _scores(session: AuditSession, records: Sequence[RealRecord], what: str) -> dict[str, list[float]]:
    """Score the records' tokens from the second on with the target model, in the records' order."""
    weights = session.weights()
    names = [f"{what}/{index}" for index in range(len(records))]
    probes = [Probe(name, one.ids, (1, len(one.ids))) for name, one in zip(names, records, strict=True)]
    signals = session.engine.score(probes, fingerprint=weights).signals
    good = {name: signals[name] for name in names if signals[name].is_finite}
    by_attack = canary_scores(ATTACKS, good)
    return {attack: [by_attack[attack].get(name, float("nan")) for name in names] for attack in ATTACKS}


def _verbatim(session: AuditSession, records: Sequence[RealRecord]) -> dict[str, Any]:
    """How many records come back verbatim after each prefix share, read off the scores just taken."""
    weights = session.weights()
    rendered = {
        f"train/{index}": Rendered(one.ids, (1, len(one.ids)), "")
        for index, one in enumerate(records)
        if len(one.ids) > 4
    }
    probes = [Probe(name, one.ids, one.span) for name, one in rendered.items()]
    signals = session.engine.score(probes, fingerprint=weights).signals
    outcome = extract_all(
        rendered, signals, fractions=session.options.prefix_fractions, decodings=(), generate_open=False
    )
    by_prefix = {
        f"{fraction:g}": sum(
            any(p.verbatim for p in one.by_prefix if p.fraction == fraction) for one in outcome.by_id.values()
        )
        for fraction in session.options.prefix_fractions
    }
    return {
        "n": len(outcome.by_id),
        "n_verbatim_by_prefix": by_prefix,
        "decoding": "greedy, read off the signals",
    }


def _blind(train: Sequence[RealRecord], others: Sequence[RealRecord], seed: int) -> dict[str, Any]:
    left = [one.text if one.text is not None else " ".join(map(str, one.ids)) for one in train]
    right = [one.text if one.text is not None else " ".join(map(str, one.ids)) for one in others]
    return blind_baseline(left, right, seed=seed).to_dict()


def _positions(session: AuditSession) -> int:
    positions = getattr(getattr(session.strategy.model, "config", None), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else LARGEST_CONTEXT


def _contains(ids: Sequence[int], secret: Sequence[int]) -> bool:
    first, size = secret[0], len(secret)
    return any(
        ids[start] == first and tuple(ids[start : start + size]) == tuple(secret)
        for start in range(len(ids) - size + 1)
    )


def _length(rows: Any) -> int | None:
    try:
        return len(rows)
    except TypeError:
        return None
