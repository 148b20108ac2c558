"""(n, p)-discoverable extraction (Hayes et al. 2024, arXiv:2410.19482), in logarithms throughout.

A suffix is (n, p)-extractable under a decoding scheme when n independent samples contain it at least once
with probability p or more: 1 - (1 - p_z)^n >= p, so n >= ln(1 - p) / ln(1 - p_z). The probability p_z of a
suffix is far below what a float holds next to 1, so 1 - p_z is never formed: everything starts from ln p_z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memaudit.errors import ConfigurationError, SignalStoreError
from memaudit.extraction.results import Tries
from memaudit.signals import Decoding, TokenSignals

PLAIN = Decoding()
"""Sampling from the model's own distribution; its log-probabilities are the signals' own."""

CURVE_N = (1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)

LN10 = math.log(10.0)
TINY = -700.0
"""Below this ln p_z the largest float is near for n: ln(1 - p_z) is -p_z and only log10 n is of use."""


def scheme_logprobs(signals: TokenSignals, decoding: Decoding) -> NDArray[np.float64]:
    """Return the log-probability of each target under a decoding scheme, [n_targets], -inf where truncated.

    Raises:
        SignalStoreError: the signals were scored without this scheme.

    Example:
        >>> signals = TokenSignals.from_lists(token_ids=[4], top1_id=[4], rank=[0], logprob=[-0.1],
        ...                                   mean=[-1.0], std=[1.0], top1_logprob=[-0.1])
        >>> scheme_logprobs(signals, Decoding()).tolist()
        [-0.1]
    """
    if decoding.name in signals.decodings:
        return signals.decodings[decoding.name]
    if decoding == PLAIN:
        return signals.logprob
    raise SignalStoreError(
        f"signals hold the decoding schemes {sorted(signals.decodings)}, not {decoding.name}; "
        "name it in decodings= when scoring, and score again"
    )


def suffix_logprob(signals: TokenSignals, decoding: Decoding, start: int = 0) -> float:
    """Return the natural log of the probability of sampling the targets from ``start`` on, given those
    before.

    Args:
        signals: signals of the secret's tokens in the record's context, [n_targets].
        decoding: the scheme that samples.
        start: position among the signals of the suffix's first token.

    Returns:
        The sum of the targets' log-probabilities, -inf where the scheme truncates one of them.

    Raises:
        SignalStoreError: the signals were scored without this scheme.
        ConfigurationError: the suffix is blank; its probability would be 1 and mean nothing.

    Example:
        >>> signals = TokenSignals.from_lists(token_ids=[4, 5], top1_id=[4, 5], rank=[0, 0],
        ...     logprob=[-0.5, -0.25], mean=[-1.0] * 2, std=[1.0] * 2, top1_logprob=[-0.5, -0.25])
        >>> suffix_logprob(signals, Decoding()), suffix_logprob(signals, Decoding(), start=1)
        (-0.75, -0.25)
    """
    values = scheme_logprobs(signals, decoding)[start:]
    if len(values) == 0:
        raise ConfigurationError(
            "a blank suffix has no probability; leave at least one token after the prefix"
        )
    return float(values.sum())


def log1mexp(log_probability: ArrayLike) -> NDArray[np.float64]:
    """Return ln(1 - exp(x)) for x <= 0 without loss at either end (Maechler 2012).

    Example:
        >>> round(float(log1mexp(-1e-12)), 6), float(log1mexp(-50.0)) < 0
        (-27.631021, True)
    """
    x = np.minimum(np.asarray(log_probability, dtype=np.float64), 0.0)  # a sum of rounded logs may exceed 0
    with np.errstate(divide="ignore"):
        return np.where(x > -math.log(2.0), np.log(-np.expm1(x)), np.log1p(-np.exp(x)))


def probability_within(log_probability: ArrayLike, n: ArrayLike) -> NDArray[np.float64]:
    """Return the probability that n independent samples contain the suffix at least once.

    Args:
        log_probability: ln p_z, at most 0; broadcast against ``n``.
        n: number of samples, at least 0.

    Returns:
        1 - (1 - p_z)^n, as -expm1(n ln(1 - p_z)), float64.

    Example:
        >>> float(probability_within(-50.0, 1e6))  # 1 - (1 - p_z)**n in floats would be 0
        1.9287498479639175e-16
    """
    samples = np.asarray(n, dtype=np.float64)
    if (samples < 0).any():
        raise ConfigurationError("a number of samples cannot be negative")
    with np.errstate(invalid="ignore"):
        exponent = samples * log1mexp(log_probability)
    return np.asarray(-np.expm1(np.where(samples == 0, 0.0, exponent)), dtype=np.float64)


def tries_needed(log_probability: float, p: float) -> Tries:
    """Return the fewest samples that contain the suffix at least once with probability ``p``.

    Args:
        log_probability: ln p_z, at most 0; -inf where the scheme can never emit the suffix.
        p: the probability asked for, in (0, 1).

    Returns:
        n = max(1, ceil(ln(1 - p) / ln(1 - p_z))) with its base-10 logarithm; n is None where only the
        logarithm fits a float, both are None where no number of samples suffices.

    Raises:
        ConfigurationError: ``p`` is not inside (0, 1), or ``log_probability`` is not a number at most 0.

    Example:
        >>> tries_needed(-10.0, 0.5).n, tries_needed(float("-inf"), 0.5).log10_n
        (15268, None)
        >>> round(tries_needed(-5000.0, 0.5).log10_n, 3)
        2171.313
    """
    if not 0.0 < p < 1.0:
        raise ConfigurationError(f"the probability of extraction {p} is not inside (0, 1)")
    if math.isnan(log_probability) or log_probability > 1e-6:
        raise ConfigurationError(f"the log-probability of a suffix is {log_probability}; expected at most 0")
    if log_probability == -math.inf:
        return Tries(p=p, n=None, log10_n=None)
    wanted = -math.log1p(-p)
    if log_probability < TINY:
        return Tries(p=p, n=None, log10_n=math.log10(wanted) - log_probability / LN10)
    missed = -float(log1mexp(log_probability))
    if missed == math.inf:  # p_z is 1
        return Tries(p=p, n=1, log10_n=0.0)
    ratio = wanted / missed
    # p_z = p is one sample, whatever the last bit of two logarithms says; far out no float tells integers apart.
    nearest = round(ratio)
    on_integer = nearest < 1e9 and abs(ratio - nearest) <= 4e-15 * ratio
    n = max(1, nearest if on_integer else math.ceil(ratio))
    return Tries(p=p, n=n, log10_n=math.log10(n))


@dataclass(frozen=True, slots=True, eq=False)
class ExtractionCurve:
    """The share of records that are (n, p)-extractable, over n and p.

    Args:
        decoding: name of the decoding scheme.
        n_records: records the shares are of.
        n: numbers of samples, [N].
        p: probabilities, [P].
        share: share of records with 1 - (1 - p_z)^n >= p, [P, N].
        expected: expected share of records that n samples each extract at least once, [N].
    """

    decoding: str
    n_records: int
    n: NDArray[np.float64]
    p: NDArray[np.float64]
    share: NDArray[np.float64]
    expected: NDArray[np.float64]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready lists."""
        return {
            "decoding": self.decoding,
            "n_records": self.n_records,
            "n": self.n.tolist(),
            "p": self.p.tolist(),
            "share": self.share.tolist(),
            "expected": self.expected.tolist(),
        }


def extraction_curve(
    log_probabilities: Sequence[float],
    *,
    decoding: str = PLAIN.name,
    n: Sequence[float] = CURVE_N,
    p: Sequence[float] = (0.1, 0.5, 0.9, 0.99),
) -> ExtractionCurve:
    """Return how the share of extractable records grows with the number of samples.

    Args:
        log_probabilities: ln p_z of each record's suffix, [records].
        decoding: name of the scheme they are under.
        n: numbers of samples, each at least 1.
        p: probabilities, each in (0, 1).

    Returns:
        The curve.

    Raises:
        ConfigurationError: there is no record, or ``n`` or ``p`` is out of range.

    Example:
        >>> extraction_curve([-0.1, -10.0], n=[1, 100_000], p=[0.5]).share.tolist()
        [[0.5, 1.0]]
    """
    values = np.asarray(log_probabilities, dtype=np.float64)
    samples, levels = np.asarray(n, dtype=np.float64), np.asarray(p, dtype=np.float64)
    if values.size == 0:
        raise ConfigurationError("a curve over no record says nothing; give at least one log-probability")
    if not ((samples >= 1).all() and ((levels > 0) & (levels < 1)).all()):
        raise ConfigurationError(
            "a curve needs numbers of samples of at least 1 and probabilities inside (0, 1)"
        )
    reached = probability_within(values[:, None], samples[None, :])
    # Compared through the tries needed, so that a curve and n_for_p never contradict each other.
    needed = np.array([[_log10_or_inf(tries_needed(float(v), float(q))) for q in levels] for v in values])
    share = (needed[:, :, None] <= np.log10(samples)[None, None, :] + 1e-12).mean(axis=0)
    return ExtractionCurve(
        decoding=decoding,
        n_records=values.size,
        n=samples,
        p=levels,
        share=share,
        expected=reached.mean(axis=0),
    )


def _log10_or_inf(tries: Tries) -> float:
    return math.inf if tries.log10_n is None else tries.log10_n
