"""What extraction found, per record: frozen dataclasses that hold numbers and ids, never a secret's text or
ids."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Source = Literal["teacher_forced", "generated", "not_run"]
"""What decided the near-verbatim verdict: the scoring forward, a generation, or nothing yet."""

EXACT_INTEGER = 2**53
"""Larger integers are not kept exactly by every JSON reader; their base-10 logarithm is given alone."""


@dataclass(frozen=True, slots=True)
class Tries:
    """How many independent samples give the suffix at least once with probability ``p``.

    Args:
        p: the probability asked for, in (0, 1).
        n: the number of samples, None where it is too large for a float or where no number suffices.
        log10_n: its base-10 logarithm, None where the scheme can never emit the suffix.

    Example:
        >>> Tries(p=0.5, n=None, log10_n=400.0).to_dict()
        {'p': 0.5, 'n': None, 'log10_n': 400.0}
    """

    p: float
    n: int | None
    log10_n: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        exact = self.n if self.n is not None and self.n <= EXACT_INTEGER else None
        return {"p": self.p, "n": exact, "log10_n": self.log10_n}


@dataclass(frozen=True, slots=True)
class PrefixResult:
    """Whether one record's suffix comes back after one prefix of it, under greedy decoding.

    Args:
        fraction: the share of the secret's tokens that is given.
        n_prefix_tokens: that share in tokens.
        n_suffix_tokens: the tokens that are left to come back; 0 is never a hit.
        verbatim: every suffix token is the argmax given the true tokens before it: greedy decoding emits it.
        near_verbatim: BLEU above its limit or edit distance at most its limit; true where verbatim; None
            where neither the signals nor a generation decided it.
        bleu: in [0, 1]; None where the verdict was certain before the output was known whole.
        edit_distance: normalised, in [0, 1]; None as for ``bleu``.
        source: what decided ``near_verbatim``.
        log_probability: decoding scheme to natural log of the probability of sampling the suffix, -inf where
            the scheme can never emit it.
        n_for_p: decoding scheme to the samples needed, one entry per probability asked for.
    """

    fraction: float
    n_prefix_tokens: int
    n_suffix_tokens: int
    verbatim: bool
    near_verbatim: bool | None
    bleu: float | None
    edit_distance: float | None
    source: Source
    log_probability: Mapping[str, float] = field(default_factory=dict)
    n_for_p: Mapping[str, tuple[Tries, ...]] = field(default_factory=dict)

    @property
    def regurgitated(self) -> bool | None:
        """Verbatim or near-verbatim; None where the latter is open and the former is false."""
        return True if self.verbatim else self.near_verbatim

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; a log-probability of -inf becomes None."""
        return {
            "fraction": self.fraction,
            "n_prefix_tokens": self.n_prefix_tokens,
            "n_suffix_tokens": self.n_suffix_tokens,
            "verbatim": self.verbatim,
            "near_verbatim": self.near_verbatim,
            "bleu": self.bleu,
            "edit_distance": self.edit_distance,
            "source": self.source,
            "log_probability": _finite(self.log_probability),
            "n_for_p": _tries(self.n_for_p),
        }


@dataclass(frozen=True, slots=True)
class CanaryExtraction:
    """Everything about one record.

    Args:
        id: the record's id.
        n_tokens: tokens of the secret.
        by_prefix: one result per fraction, in the order asked for.
        longest_run: the most consecutive tokens that are the argmax given the true tokens before them.
        shortest_prefix: the fewest secret tokens after which greedy decoding gives all the rest; 0 means that
            the record's context alone gives the whole secret, None that no prefix does.
        log_probability: decoding scheme to the log-probability of the whole secret given the record's context
            alone (from the second token on where the secret opens the record: nothing predicts the first).
        n_for_p: decoding scheme to the samples that the whole secret needs.
    """

    id: str
    n_tokens: int
    by_prefix: tuple[PrefixResult, ...]
    longest_run: int
    shortest_prefix: int | None
    log_probability: Mapping[str, float] = field(default_factory=dict)
    n_for_p: Mapping[str, tuple[Tries, ...]] = field(default_factory=dict)

    @property
    def regurgitated(self) -> bool | None:
        """Whether any prefix gives the suffix back; None where none does and at least one is open."""
        verdicts = [result.regurgitated for result in self.by_prefix]
        if any(verdicts):
            return True
        return None if None in verdicts else False

    @property
    def verbatim(self) -> bool:
        """Whether any prefix gives the suffix back verbatim."""
        return any(result.verbatim for result in self.by_prefix)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "id": self.id,
            "n_tokens": self.n_tokens,
            "by_prefix": [result.to_dict() for result in self.by_prefix],
            "longest_run": self.longest_run,
            "shortest_prefix": self.shortest_prefix,
            "log_probability": _finite(self.log_probability),
            "n_for_p": _tries(self.n_for_p),
        }


@dataclass(frozen=True, slots=True)
class GenerationCounts:
    """Why each (record, prefix) pair was generated or not; the parts add up to ``pairs``.

    Args:
        pairs: records times fractions.
        verbatim: skipped, the signals show that greedy decoding gives the suffix.
        decided: skipped, the signals decide the near-verbatim verdict (see extraction/decide.py).
        generated: answered by a generation.
        not_run: left open because generation was switched off or no strategy was given.
        prompts: texts generated; fewer than ``generated`` where prefixes share their continuation.
        given_up: texts whose generation ended early, since nothing that follows could have matched.
        calls: calls of Strategy.generate on each rank.
    """

    pairs: int
    verbatim: int
    decided: int
    generated: int
    not_run: int
    prompts: int
    given_up: int
    calls: int

    def to_dict(self) -> dict[str, int]:
        """Return the counts."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ExtractionOutcome:
    """Results by id, what generation they took, and the records that could not be judged.

    ``unscorable`` holds the ids whose signals are not numbers: they are reported, never silently left out.
    ``unit`` says what BLEU and edit distance compared: "text" (words and characters) or "tokens".
    """

    by_id: Mapping[str, CanaryExtraction]
    counts: GenerationCounts
    unscorable: tuple[str, ...]
    unit: Literal["text", "tokens"]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            "records": [self.by_id[name].to_dict() for name in sorted(self.by_id)],
            "counts": self.counts.to_dict(),
            "unscorable": list(self.unscorable),
            "unit": self.unit,
        }


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: (float(value) if math.isfinite(value) else None) for name, value in values.items()}


def _tries(values: Mapping[str, tuple[Tries, ...]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [one.to_dict() for one in tries] for name, tries in values.items()}
