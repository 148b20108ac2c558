"""Verbatim verdicts: arithmetic against brute force, and against real greedy generation on a regurgitating model."""

from __future__ import annotations

from itertools import product

import pytest

from memaudit.errors import ConfigurationError
from memaudit.extraction.teacher_forced import (
    first_miss,
    longest_run,
    prefix_tokens,
    shortest_prefix,
    verbatim,
)
from memaudit.signals import TokenSignals
from tests.extraction.conftest import CONTEXT, SECRET, Regurgitator, greedy


def from_hits(hits: tuple[bool, ...] | list[bool]) -> TokenSignals:
    """Return signals with the given greedy hits."""
    n = len(hits)
    return TokenSignals.from_lists(
        token_ids=range(n),
        top1_id=[i if hit else i + 1000 for i, hit in enumerate(hits)],
        rank=[0 if hit else 1 for hit in hits],
        logprob=[-0.5] * n,
        mean=[-1.0] * n,
        std=[1.0] * n,
        top1_logprob=[-0.4] * n,
    )


@pytest.mark.parametrize("hits", list(product([True, False], repeat=6)))
def test_all_patterns_of_hits_against_brute_force(hits: tuple[bool, ...]) -> None:
    signals = from_hits(hits)
    ends = [k for k in range(6) if all(hits[k:])]
    for prefix in range(7):
        assert verbatim(signals, prefix) is (prefix in ends)
        misses = [i for i in range(prefix, 6) if not hits[i]]
        assert first_miss(signals, prefix) == (misses[0] if misses else None)
    assert shortest_prefix(signals) == (min(ends) if ends else None)
    runs = [j - i for i in range(7) for j in range(i, 7) if all(hits[i:j])]
    assert longest_run(signals) == max(runs)


@pytest.mark.parametrize("hits", list(product([True, False], repeat=4)))
def test_a_secret_that_opens_its_record_has_no_signal_for_its_first_token(hits: tuple[bool, ...]) -> None:
    """Five tokens, four signals: positions count from the secret's first token all the same."""
    signals = from_hits(hits)
    whole = from_hits((False, *hits))
    for prefix in range(1, 6):
        assert verbatim(signals, prefix, n_tokens=5) is verbatim(whole, prefix)
        assert first_miss(signals, prefix, n_tokens=5) == first_miss(whole, prefix)
    assert shortest_prefix(signals, n_tokens=5) == shortest_prefix(whole)
    with pytest.raises(ConfigurationError, match="first token"):
        verbatim(signals, 0, n_tokens=5)


def test_prefix_is_the_floor_and_at_least_one() -> None:
    for n in range(1, 200):
        assert prefix_tokens(n, 0.25) == max(1, n // 4)
        assert prefix_tokens(n, 0.5) == max(1, n // 2)
        for hundredth in range(1, 100):
            assert prefix_tokens(n, hundredth / 100) == max(1, hundredth * n // 100)


def test_a_blank_suffix_is_no_hit() -> None:
    assert not verbatim(from_hits([True]), 1)
    assert not verbatim(from_hits([]), 0)
    assert longest_run(from_hits([])) == 0 and shortest_prefix(from_hits([])) is None


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_other_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(ConfigurationError, match=r"\(0, 1\)"):
        prefix_tokens(10, fraction)


def test_signals_of_another_length_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="3 signals were given for a secret of 8 tokens"):
        shortest_prefix(from_hits([True] * 3), n_tokens=8)


def test_verdict_equals_real_greedy_generation_for_every_record_and_prefix(
    regurgitator: Regurgitator,
) -> None:
    """24 records x 16 prefixes, each decoded for real; the model gives some wholly, some in part, some not."""
    positive = negative = 0
    for name, record in regurgitator.records.items():
        signals = regurgitator.signals[name]
        real = []
        for prefix in range(SECRET):
            cut = CONTEXT + prefix
            output = greedy(regurgitator.model, record.ids[:cut], SECRET - prefix)
            real.append(output == list(record.ids[cut:]))
            assert verbatim(signals, prefix) is real[-1], (name, prefix)
            hits = next(
                (i for i, (a, b) in enumerate(zip(output, record.ids[cut:], strict=True)) if a != b), None
            )
            assert first_miss(signals, prefix) == (None if hits is None else prefix + hits)
        assert shortest_prefix(signals) == (real.index(True) if any(real) else None)
        positive, negative = positive + sum(real), negative + len(real) - sum(real)
    assert positive >= 50 and negative >= 50  # the test means something in both directions
