"""ROC of a membership attack: AUC with intervals, TPR at FPR and FPR at TPR, bands. O(n log n) time, O(n) memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.seeds import generator
from memaudit.stats.arrays import Floats, as_scores, check_rate
from memaudit.stats.intervals import clopper_pearson
from memaudit.stats.thresholds import Threshold, above, conformal_threshold, pac_threshold


class RocCurve(NamedTuple):
    """Empirical ROC; point i flags every score at or above ``thresholds[i]``, the first point flags nothing."""

    fpr: Floats
    tpr: Floats
    thresholds: Floats


class RocBand(NamedTuple):
    """Simultaneous band: with the stated confidence the true ROC lies between ``tpr_low`` and ``tpr_high``."""

    fpr: Floats
    tpr: Floats
    tpr_low: Floats
    tpr_high: Floats


@dataclass(frozen=True)
class TprAtFpr:
    """True-positive rate at a false-positive rate fixed by controls, with its exact interval given the threshold."""

    tpr: float
    ci_low: float
    ci_high: float
    n_detected: int
    n_members: int
    threshold: Threshold
    level: float

    @property
    def identified(self) -> bool:
        """Whether there were controls enough to resolve the rate."""
        return self.threshold.identified


@dataclass(frozen=True)
class FprAtTpr:
    """False-positive rate at the threshold that detects at least the wanted share of members."""

    fpr: float
    ci_low: float
    ci_high: float
    n_false: int
    n_nonmembers: int
    threshold: float
    tpr: float
    level: float


@dataclass(frozen=True)
class JointInterval:
    """A rectangle that holds (TPR, FPR) of one threshold with the stated joint confidence (Bonferroni)."""

    tpr_low: float
    tpr_high: float
    fpr_low: float
    fpr_high: float
    level: float


def _placements(members: Any, nonmembers: Any) -> tuple[Floats, Floats]:
    """For each member the share of non-members below it, and for each non-member the share of members above it."""
    p = as_scores(members, "member scores", minimum=1)
    n = as_scores(nonmembers, "non-member scores", minimum=1)
    sorted_p, sorted_n = np.sort(p), np.sort(n)
    # Half the sum of the two insertion points counts a tie as one half; infinities compare as any number does.
    below = np.searchsorted(sorted_n, p, "left") + np.searchsorted(sorted_n, p, "right")
    above_count = 2 * p.size - np.searchsorted(sorted_p, n, "left") - np.searchsorted(sorted_p, n, "right")
    return below / (2.0 * n.size), above_count / (2.0 * p.size)


def auc(members: Any, nonmembers: Any) -> float:
    """Area under the ROC: the probability that a member scores above a non-member, a tie counting one half.

    Args:
        members: scores of members, shape (n1,), higher = more member-like.
        nonmembers: scores of non-members, shape (n0,).

    Returns:
        A number from 0 to 1. Far below 0.5 is leakage too, with the sign of the score turned.

    Raises:
        ConfigurationError: an empty side or NaN scores.

    Example:
        >>> auc([1, 2, 2, 3], [0, 1, 2, 2])
        0.71875
    """
    return float(_placements(members, nonmembers)[0].mean())


def delong_variance(members: Any, nonmembers: Any) -> tuple[float, float]:
    """AUC and its variance by DeLong, DeLong and Clarke-Pearson 1988, by sorting.

    Returns:
        AUC and variance; the variance is NaN-free: a side of one record contributes 0.

    Example:
        >>> value, variance = delong_variance([2.0, 3.0, 1.0], [0.0, 1.5, 1.0])
        >>> round(value, 4), round(variance, 4)
        (0.8333, 0.037)
    """
    v10, v01 = _placements(members, nonmembers)
    s10 = float(v10.var(ddof=1)) if v10.size > 1 else 0.0
    s01 = float(v01.var(ddof=1)) if v01.size > 1 else 0.0
    return float(v10.mean()), s10 / v10.size + s01 / v01.size


def delong_interval(
    members: Any, nonmembers: Any, level: float = 0.95, *, scale: str = "logit"
) -> tuple[float, float]:
    """Interval of the AUC from DeLong's variance; assumes independent records.

    Where the variance is 0 (perfect separation, constant scores, a single record) it says nothing, and the limits
    come from :func:`pairs_interval` instead, which is exact or conservative.

    Args:
        members: scores of members, shape (n1,).
        nonmembers: scores of non-members, shape (n0,).
        level: confidence.
        scale: ``logit`` (stays inside 0 and 1, better near 1) or ``wald``.

    Returns:
        Lower and upper limit.

    Raises:
        ConfigurationError: empty side, NaN scores, unknown scale.

    Example:
        >>> low, high = delong_interval([2.0, 3.0, 1.0, 4.0], [0.0, 1.5, 1.0, 0.5])
        >>> 0.0 < low < high < 1.0
        True
    """
    if scale not in ("logit", "wald"):
        raise ConfigurationError(f"scale is {scale!r}; give 'logit' or 'wald'")
    value, variance = delong_variance(members, nonmembers)
    z = float(special.ndtri(0.5 + check_rate(level, "level") / 2.0))
    if variance <= 0.0 or value in (0.0, 1.0):
        return pairs_interval(value, min(len(members), len(nonmembers)), level)
    if scale == "wald":
        half = z * math.sqrt(variance)
        return max(0.0, value - half), min(1.0, value + half)
    centre = math.log(value) - math.log1p(-value)
    half = z * math.sqrt(variance) / (value * (1.0 - value))
    return float(special.expit(centre - half)), float(special.expit(centre + half))


def pairs_interval(value: float, pairs: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of an AUC whose estimated variance is 0, from ``pairs`` disjoint member and non-member pairs.

    At 0 or 1 no pair (or every pair) is out of order, so Clopper and Pearson's limits apply to the disjoint pairs,
    which are independent; elsewhere Hoeffding's inequality is used.

    Example:
        >>> [round(limit, 4) for limit in pairs_interval(1.0, 100)]
        [0.9638, 1.0]
    """
    if value in (0.0, 1.0):
        return clopper_pearson(pairs if value == 1.0 else 0, pairs, level)
    half = math.sqrt(math.log(2.0 / (1.0 - check_rate(level, "level"))) / (2.0 * pairs))
    return max(0.0, value - half), min(1.0, value + half)


def bootstrap_auc_interval(
    members: Any,
    nonmembers: Any,
    level: float = 0.95,
    *,
    resamples: int = 1000,
    seed: int = 0,
    method: str = "bc",
) -> tuple[float, float]:
    """Interval of the AUC by resampling members and non-members with replacement, each within itself.

    Args:
        members: scores of members, shape (n1,).
        nonmembers: scores of non-members, shape (n0,).
        level: confidence.
        resamples: number of resamples, at least 100.
        seed: root seed of the resampling.
        method: ``bc`` (bias-corrected percentile, Efron 1981) or ``percentile``.

    Returns:
        Lower and upper limit; at perfect separation and for constant scores, where every resample is alike,
        those of :func:`pairs_interval`.

    Raises:
        ConfigurationError: empty side, NaN scores, unknown method, too few resamples.

    Example:
        >>> low, high = bootstrap_auc_interval([2.0, 3.0, 1.0, 4.0], [0.0, 1.5, 1.0, 0.5])
        >>> 0.0 <= low < high <= 1.0
        True
    """
    if method not in ("bc", "percentile"):
        raise ConfigurationError(f"method is {method!r}; give 'bc' or 'percentile'")
    if resamples < 100:
        raise ConfigurationError(f"resamples is {resamples}; give at least 100")
    tail = (1.0 - check_rate(level, "level")) / 2.0
    value = auc(members, nonmembers)
    p, n = as_scores(members, "member scores"), as_scores(nonmembers, "non-member scores")
    codes = np.unique(np.concatenate([p, n]), return_inverse=True)[1].reshape(-1)
    width = int(codes.max()) + 1
    rng = generator(seed, "bootstrap-auc")
    draws = np.empty(resamples)
    for index in range(resamples):
        count_p = np.bincount(codes[: p.size][rng.integers(0, p.size, p.size)], minlength=width)
        count_n = np.bincount(codes[p.size :][rng.integers(0, n.size, n.size)], minlength=width)
        draws[index] = float(np.dot(count_p, np.cumsum(count_n) - 0.5 * count_n)) / (p.size * n.size)
    if value in (0.0, 1.0) or bool(np.all(draws == draws[0])):
        return pairs_interval(value, min(p.size, n.size), level)
    low_rank, high_rank = tail, 1.0 - tail
    if method == "bc":
        below = (np.count_nonzero(draws < value) + 0.5 * np.count_nonzero(draws == value)) / resamples
        bias = float(special.ndtri(min(max(below, 0.5 / resamples), 1.0 - 0.5 / resamples)))
        z = float(special.ndtri(tail))
        low_rank, high_rank = float(special.ndtr(2 * bias + z)), float(special.ndtr(2 * bias - z))
    low, high = np.quantile(draws, [low_rank, high_rank])
    return float(low), float(high)


def tpr_at_fpr(
    members: Any, controls: Any, fpr: float, *, level: float = 0.95, confidence: float | None = None
) -> TprAtFpr:
    """Share of members detected at a false-positive rate that the controls guarantee.

    The interval is Clopper and Pearson's given the threshold: exact when members are independent of the controls.

    Args:
        members: scores of members, shape (n1,).
        controls: scores of non-members, shape (n0,).
        fpr: false-positive rate, strictly between 0 and 1.
        level: confidence of the interval.
        confidence: None for the conformal threshold (mean rate at most ``fpr``); a number for the PAC threshold.

    Returns:
        A TprAtFpr; with too few controls nothing is detected and ``identified`` is False.

    Raises:
        ConfigurationError: NaN scores, rates out of range.

    Example:
        >>> found = tpr_at_fpr([5.0, 200.0], range(100), 0.01)
        >>> found.tpr, found.n_detected, found.threshold.value
        (0.5, 1, 99.0)
    """
    scores = as_scores(members, "member scores")
    threshold = (
        conformal_threshold(controls, fpr) if confidence is None else pac_threshold(controls, fpr, confidence)
    )
    hits = int(np.count_nonzero(above(scores, threshold)))
    low, high = clopper_pearson(hits, scores.size, level)
    return TprAtFpr(
        tpr=hits / scores.size if scores.size else 0.0,
        ci_low=low,
        ci_high=high,
        n_detected=hits,
        n_members=scores.size,
        threshold=threshold,
        level=level,
    )


def fpr_at_tpr(members: Any, nonmembers: Any, tpr: float, *, level: float = 0.95) -> FprAtTpr:
    """False-positive rate at the highest threshold that still detects a share ``tpr`` of the members.

    The threshold depends on the members alone, so the interval over the non-members is exact given it.

    Args:
        members: scores of members, shape (n1,), n1 >= 1.
        nonmembers: scores of non-members, shape (n0,).
        tpr: wanted share of members, above 0 and at most 1.
        level: confidence of the interval.

    Returns:
        A FprAtTpr; the rule flags scores at or above its threshold.

    Raises:
        ConfigurationError: no members, NaN scores, a share out of range.

    Example:
        >>> fpr_at_tpr([1.0, 2.0, 3.0, 4.0], [0.0, 2.5, 1.0, 0.5], 0.75).fpr
        0.25
    """
    if not 0.0 < tpr <= 1.0:
        raise ConfigurationError(f"tpr is {tpr}; give a number above 0 and at most 1")
    p = np.sort(as_scores(members, "member scores", minimum=1))
    n = as_scores(nonmembers, "non-member scores")
    rank = max(1, math.ceil(tpr * p.size * (1.0 - 1e-12)))
    value = float(p[p.size - rank])
    false = int(np.count_nonzero(n >= value))
    low, high = clopper_pearson(false, n.size, level)
    return FprAtTpr(
        fpr=false / n.size if n.size else 0.0,
        ci_low=low,
        ci_high=high,
        n_false=false,
        n_nonmembers=n.size,
        threshold=value,
        tpr=float(np.count_nonzero(p >= value)) / p.size,
        level=level,
    )


def roc_curve(members: Any, nonmembers: Any) -> RocCurve:
    """Empirical ROC at every distinct score, from (0, 0) to (1, 1).

    Example:
        >>> curve = roc_curve([2.0, 1.0], [1.0, 0.0])
        >>> curve.fpr.tolist(), curve.tpr.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    p = as_scores(members, "member scores", minimum=1)
    n = as_scores(nonmembers, "non-member scores", minimum=1)
    values, codes = np.unique(np.concatenate([p, n]), return_inverse=True)
    codes = codes.reshape(-1)
    hits = np.bincount(codes[: p.size], minlength=values.size)[::-1].cumsum()
    false = np.bincount(codes[p.size :], minlength=values.size)[::-1].cumsum()
    zero = np.zeros(1)
    return RocCurve(
        np.concatenate([zero, false / n.size]),
        np.concatenate([zero, hits / p.size]),
        np.concatenate([[math.inf], values[::-1]]),
    )


def roc_band(members: Any, nonmembers: Any, level: float = 0.95) -> RocBand:
    """Simultaneous band for the whole ROC by the Dvoretzky-Kiefer-Wolfowitz inequality (Massart's constant).

    Half of the error is spent on each axis: sqrt(ln(4/(1 - level))/(2 n)). Assumes independent records.

    Example:
        >>> band = roc_band([1.0, 2.0], [0.0, 1.0])
        >>> bool((band.tpr_low <= band.tpr).all() and (band.tpr <= band.tpr_high).all())
        True
    """
    curve = roc_curve(members, nonmembers)
    spent = (1.0 - check_rate(level, "level")) / 2.0
    reach_p = math.sqrt(math.log(2.0 / spent) / (2.0 * len(members)))
    reach_n = math.sqrt(math.log(2.0 / spent) / (2.0 * len(nonmembers)))
    # A threshold whose observed rate is x has a true rate within reach_n of x: read the TPR at both ends.
    left = np.searchsorted(curve.fpr, curve.fpr - reach_n, side="right") - 1
    low = np.where(left >= 0, curve.tpr[np.maximum(left, 0)] - reach_p, 0.0)
    right = np.searchsorted(curve.fpr, curve.fpr + reach_n, side="left")
    high = np.where(right < curve.fpr.size, curve.tpr[np.minimum(right, curve.fpr.size - 1)] + reach_p, 1.0)
    return RocBand(curve.fpr, curve.tpr, np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0))


def joint_interval(
    hits: int, n_members: int, false: int, n_nonmembers: int, level: float = 0.95
) -> JointInterval:
    """Joint interval of (TPR, FPR) at a threshold fixed beforehand: half of the error is spent on each rate.

    Example:
        >>> box = joint_interval(8, 10, 1, 10)
        >>> box.tpr_low < 0.8 < box.tpr_high and box.fpr_low < 0.1 < box.fpr_high
        True
    """
    each = 1.0 - (1.0 - check_rate(level, "level")) / 2.0
    tpr_low, tpr_high = clopper_pearson(hits, n_members, each)
    fpr_low, fpr_high = clopper_pearson(false, n_nonmembers, each)
    return JointInterval(tpr_low, tpr_high, fpr_low, fpr_high, level)


def joint_interval_at_fpr(members: Any, controls: Any, fpr: float, level: float = 0.95) -> JointInterval:
    """Joint interval of (TPR, FPR) at the conformal threshold, the FPR's from its Beta law given the controls."""
    each = 1.0 - (1.0 - check_rate(level, "level")) / 2.0
    found = tpr_at_fpr(members, controls, fpr, level=each)
    fpr_low, fpr_high = found.threshold.fpr_interval(each)
    return JointInterval(found.ci_low, found.ci_high, fpr_low, fpr_high, level)
