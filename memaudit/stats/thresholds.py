"""Thresholds from control scores by an order statistic, with a false-positive rate that holds for finite samples.

The rule is written once, in :func:`conformal_pvalues`: a record is detected when the share of controls at or
above it, the record itself counted, is at most the false-positive rate. A tie counts against detection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import Bools, Floats, as_scores, check_rate


@dataclass(frozen=True)
class Threshold:
    """A score threshold; a score is detected when it is strictly above ``value``.

    Attributes:
        value: the threshold; ``inf`` when so few controls cannot resolve the rate.
        n_controls: number of control scores it was taken from.
        fpr: the false-positive rate that was asked for.
        allowed: how many controls may lie above the threshold; -1 when none resolves the rate.
        resolvable_fpr: the smallest rate that so many controls resolve, 1/(n_controls + 1).
        identified: whether the rate could be resolved.
        rule: ``conformal`` (the mean false-positive rate is at most ``fpr``) or ``pac`` (the false-positive
            rate given these controls is at most ``fpr`` with probability ``confidence``).
        confidence: of the ``pac`` rule, otherwise None.
    """

    value: float
    n_controls: int
    fpr: float
    allowed: int
    resolvable_fpr: float
    identified: bool
    rule: str = "conformal"
    confidence: float | None = None

    @property
    def expected_fpr(self) -> float:
        """Exact mean false-positive rate of a fresh non-member: (allowed + 1)/(n_controls + 1), 0 if unidentified."""
        return (self.allowed + 1) / (self.n_controls + 1) if self.identified else 0.0

    def fpr_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Exact range of the false-positive rate given these controls, which is Beta(allowed + 1, n - allowed).

        Holds for continuous scores; ties between controls can only lower the rate.
        """
        if not self.identified:
            return 0.0, 0.0
        tail = (1.0 - check_rate(level, "level")) / 2.0
        a, b = self.allowed + 1, self.n_controls - self.allowed
        return float(special.betaincinv(a, b, tail)), float(special.betainccinv(a, b, tail))


def allowed_above(n_controls: int, fpr: float) -> int:
    """How many of ``n_controls`` may lie at or above a detected score: floor(fpr (n + 1)) - 1, so -1 means none.

    Example:
        >>> allowed_above(99, 0.01), allowed_above(98, 0.01), allowed_above(199, 0.01)
        (0, -1, 1)
    """
    # The factor forgives the rounding of rates such as 0.01 that no float holds exactly.
    return math.floor(fpr * (n_controls + 1) * (1.0 + 1e-12)) - 1


def conformal_threshold(controls: Any, fpr: float) -> Threshold:
    """Threshold at which a fresh non-member is detected with probability at most ``fpr``, for any finite sample.

    Args:
        controls: scores of records known not to be members, shape (n,), higher = more member-like;
            they must be exchangeable with the non-members that the claim is about.
        fpr: false-positive rate, strictly between 0 and 1.

    Returns:
        A Threshold; ``identified`` is False and ``value`` is ``inf`` when n + 1 < 1/fpr.

    Raises:
        ConfigurationError: NaN scores or a rate out of range.

    Example:
        >>> t = conformal_threshold(range(100), 0.05)
        >>> t.value, t.allowed, t.identified
        (95.0, 4, True)
    """
    scores = as_scores(controls, "control scores")
    rate = check_rate(fpr, "fpr")
    return _at_rank(scores, rate, allowed_above(scores.size, rate), "conformal", None)


def pac_threshold(controls: Any, fpr: float, confidence: float = 0.95) -> Threshold:
    """Threshold whose false-positive rate given these controls is at most ``fpr`` with probability ``confidence``.

    Needs n >= ln(1 - confidence)/ln(1 - fpr) controls: 299 for 1 % at 95 %.

    Args:
        controls: scores of independent non-members, shape (n,).
        fpr: false-positive rate, strictly between 0 and 1.
        confidence: probability over the draw of the controls.

    Returns:
        A Threshold with ``rule="pac"``; unidentified when there are too few controls.

    Raises:
        ConfigurationError: NaN scores or a rate out of range.

    Example:
        >>> pac_threshold(range(299), 0.01).identified, pac_threshold(range(298), 0.01).identified
        (True, False)
    """
    scores = as_scores(controls, "control scores")
    rate, sure = check_rate(fpr, "fpr"), check_rate(confidence, "confidence")
    n = scores.size
    # FPR given the controls is Beta(j + 1, n - j) when j controls lie above: find the largest j by bisection.
    low, high = -1, n
    while high - low > 1:
        middle = (low + high) // 2
        if middle < n and special.betainc(middle + 1, n - middle, rate) >= sure:
            low = middle
        else:
            high = middle
    return _at_rank(scores, rate, low, "pac", sure)


def _at_rank(scores: Floats, fpr: float, allowed: int, rule: str, confidence: float | None) -> Threshold:
    n = scores.size
    identified = 0 <= allowed < n
    value = float(np.partition(scores, n - 1 - allowed)[n - 1 - allowed]) if identified else math.inf
    return Threshold(
        value, n, fpr, allowed if identified else -1, 1.0 / (n + 1), identified, rule, confidence
    )


def conformal_pvalues(scores: Any, controls: Any) -> Floats:
    """Conformal p-value of each score: (1 + number of controls at or above it)/(n + 1).

    Args:
        scores: scores to judge, shape (k,).
        controls: scores of non-members, shape (n,).

    Returns:
        p-values, shape (k,), each uniform or larger for a fresh non-member.

    Raises:
        ConfigurationError: NaN scores.

    Example:
        >>> conformal_pvalues([3.0, 1.0], [0.0, 1.0, 2.0])
        array([0.25, 0.75])
    """
    judged = as_scores(scores, "scores")
    ordered = np.sort(as_scores(controls, "control scores"))
    at_or_above = ordered.size - np.searchsorted(ordered, judged, side="left")
    return np.asarray((1 + at_or_above) / (ordered.size + 1), dtype=np.float64)


def detections(scores: Any, controls: Any, fpr: float) -> Bools:
    """Which scores are detected at ``fpr``: those whose conformal p-value is at most ``fpr``.

    Args:
        scores: scores to judge, shape (k,).
        controls: scores of non-members, shape (n,).
        fpr: false-positive rate, strictly between 0 and 1.

    Returns:
        Booleans, shape (k,). Constant scores give no detection.

    Raises:
        ConfigurationError: NaN scores or a rate out of range.

    Example:
        >>> detections([0.5, 2.0], [0.5] * 99, 0.01)
        array([False,  True])
    """
    return above(as_scores(scores, "scores"), conformal_threshold(controls, fpr))


def above(scores: Any, threshold: Threshold) -> Bools:
    """Which scores lie strictly above the threshold; none when the threshold is not identified."""
    judged = as_scores(scores, "scores")
    if not threshold.identified:
        return np.zeros(judged.size, dtype=np.bool_)
    return np.asarray(judged > threshold.value, dtype=np.bool_)


def controls_needed(fpr: float, confidence: float | None = None) -> int:
    """Fewest controls that resolve ``fpr``: by the conformal rule, or by the PAC rule at ``confidence``.

    Example:
        >>> controls_needed(0.01), controls_needed(0.01, 0.95), controls_needed(0.001, 0.95)
        (99, 299, 2995)
    """
    rate = check_rate(fpr, "fpr")
    if confidence is None:
        n = max(0, math.ceil(1.0 / rate) - 2)
        while allowed_above(n, rate) < 0:
            n += 1
        return n
    gamma = 1.0 - check_rate(confidence, "confidence")
    if gamma <= 0.0:
        raise ConfigurationError(f"confidence is {confidence}; give a number strictly between 0 and 1")
    return math.ceil(math.log(gamma) / math.log1p(-rate))
