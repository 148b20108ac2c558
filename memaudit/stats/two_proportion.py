"""Lower bounds on epsilon from a true-positive and a false-positive count at one threshold.

The threshold is fixed beforehand or taken from controls alone. All assume independent records: they are certified
over independent training runs, and model-based when the counts come from one run.
(epsilon, delta)-DP implies TPR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon (1 - TPR) + delta.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import as_scores, check_counts, check_rate
from memaudit.stats.intervals import binomial_lower, binomial_upper
from memaudit.stats.quadrature import legendre

_KATZ_VARIANTS = ("katz", "adjusted", "bailey", "inverse-sinh")


def _ratio_epsilon(tpr_low: float, fpr_high: float, delta: float) -> float:
    """The larger of the two bounds that a lower limit of the TPR and an upper limit of the FPR give."""
    best = 0.0
    for gain, cost in ((tpr_low - delta, fpr_high), (1.0 - fpr_high - delta, 1.0 - tpr_low)):
        if gain > 0.0 and cost > 0.0:
            best = max(best, math.log(gain) - math.log(cost))
    return best


def _check(tp: int, n1: int, fp: int, n0: int, delta: float, alpha: float) -> tuple[int, int, int, int]:
    check_rate(alpha, "alpha")
    if not 0.0 <= delta <= 1.0:
        raise ConfigurationError(f"delta is {delta}; give a number from 0 to 1")
    tp, n1 = check_counts(tp, n1)
    fp, n0 = check_counts(fp, n0)
    if n1 == 0 or n0 == 0:
        raise ConfigurationError(f"{n1} members and {n0} non-members; give at least one of each")
    return tp, n1, fp, n0


def clopper_pearson_epsilon(
    tp: int, n1: int, fp: int, n0: int, delta: float = 0.0, alpha: float = 0.05
) -> float:
    """Exact bound from Clopper and Pearson's limits, alpha/2 for each rate; both ratios use the same two limits.

    Args:
        tp: members flagged, of ``n1``.
        n1: number of members.
        fp: non-members flagged, of ``n0``.
        n0: number of non-members.
        delta: the delta at which epsilon is bounded.
        alpha: significance.

    Returns:
        Lower bound on epsilon, at least 0.

    Raises:
        ConfigurationError: counts or parameters out of range.

    Example:
        >>> round(clopper_pearson_epsilon(80, 100, 10, 100), 4)
        1.3909
    """
    tp, n1, fp, n0 = _check(tp, n1, fp, n0, delta, alpha)
    return _ratio_epsilon(binomial_lower(tp, n1, alpha / 2.0), binomial_upper(fp, n0, alpha / 2.0), delta)


def katz_epsilon(tp: int, n1: int, fp: int, n0: int, alpha: float = 0.05, *, variant: str = "katz") -> float:
    """Asymptotic one-sided bound on ln(TPR/FPR) at delta 0.

    Args:
        tp: members flagged, of ``n1``.
        n1: number of members.
        fp: non-members flagged, of ``n0``.
        n0: number of non-members.
        alpha: significance.
        variant: ``katz`` (Katz et al. 1978), ``adjusted`` (a half added to every count), ``bailey`` (Bailey 1987)
            or ``inverse-sinh`` (Newcombe 2001).

    Returns:
        Lower bound on epsilon, at least 0; 0 where the variant has no value.

    Raises:
        ConfigurationError: counts, significance or variant out of range.

    Example:
        >>> round(katz_epsilon(80, 100, 10, 100), 4)
        1.5792
    """
    tp, n1, fp, n0 = _check(tp, n1, fp, n0, 0.0, alpha)
    if variant not in _KATZ_VARIANTS:
        raise ConfigurationError(f"variant is {variant!r}; give one of {', '.join(_KATZ_VARIANTS)}")
    if tp == 0:
        return 0.0
    z = float(special.ndtri(1.0 - alpha))
    if variant == "adjusted":
        hits, members, false, others = tp + 0.5, n1 + 0.5, fp + 0.5, n0 + 0.5
    else:
        full = tp == n1 and fp == n0
        hits, false = (tp - 0.5, fp - 0.5) if full else (float(tp), float(fp) if fp else 0.5)
        members, others = float(n1), float(n0)
    log_ratio = math.log(hits / members) - math.log(false / others)
    spread_p, spread_n = 1.0 / hits - 1.0 / members, 1.0 / false - 1.0 / others
    spread = math.sqrt(max(0.0, spread_p + spread_n))
    if variant == "inverse-sinh":
        return max(0.0, log_ratio - 2.0 * math.asinh(z / 2.0 * spread))
    if variant == "bailey":
        inner = spread_p + spread_n - z * z * spread_p * spread_n / 9.0
        below = 1.0 - z * z * spread_n / 9.0
        if inner < 0.0 or below <= 0.0:
            return 0.0
        root = (1.0 - z / 3.0 * math.sqrt(inner)) / below
        return max(0.0, log_ratio + 3.0 * math.log(root)) if root > 0.0 else 0.0
    return max(0.0, log_ratio - z * spread)


def jeffreys_epsilon(tp: int, n1: int, fp: int, n0: int, delta: float = 0.0, alpha: float = 0.05) -> float:
    """Bound from the limits of Jeffreys' posterior, alpha/2 for each rate; credible, not exact.

    Example:
        >>> round(jeffreys_epsilon(80, 100, 10, 100), 4)
        1.434
    """
    tp, n1, fp, n0 = _check(tp, n1, fp, n0, delta, alpha)
    low = float(special.betaincinv(tp + 0.5, n1 - tp + 0.5, alpha / 2.0))
    high = float(special.betainccinv(fp + 0.5, n0 - fp + 0.5, alpha / 2.0))
    return _ratio_epsilon(low, high, delta)


def zanella_beguelin_epsilon(
    tp: int, n1: int, fp: int, n0: int, delta: float = 0.0, alpha: float = 0.05
) -> float:
    """Bayesian bound of Zanella-Beguelin et al. 2023: the ``alpha`` quantile of the posterior of epsilon.

    FNR ~ Beta(fn + 1/2, tp + 1/2) and FPR ~ Beta(fp + 1/2, tn + 1/2), independent; epsilon is the smallest whose
    privacy region holds the pair. A credible bound: its coverage is not guaranteed.

    Args:
        tp: members flagged, of ``n1``.
        n1: number of members.
        fp: non-members flagged, of ``n0``.
        n0: number of non-members.
        delta: the delta at which epsilon is bounded.
        alpha: posterior probability that epsilon is smaller.

    Returns:
        Lower bound on epsilon, at least 0.

    Raises:
        ConfigurationError: counts or parameters out of range.

    Example:
        >>> round(zanella_beguelin_epsilon(80, 100, 10, 100), 4)
        1.6199
    """
    tp, n1, fp, n0 = _check(tp, n1, fp, n0, delta, alpha)
    if delta == 1.0:
        return 0.0

    def inside(epsilon: float) -> float:
        return _mass_inside(tp, n1 - tp, fp, n0 - fp, epsilon, delta)

    if inside(0.0) >= alpha:
        return 0.0
    low, high = 0.0, 1.0
    while inside(high) < alpha and high < 700.0:
        low, high = high, 2.0 * high
    while high - low > 1e-10:
        middle = 0.5 * (low + high)
        if inside(middle) < alpha:
            low = middle
        else:
            high = middle
    return low


def _mass_inside(tp: int, fn: int, fp: int, tn: int, epsilon: float, delta: float) -> float:
    """Posterior probability of the privacy region of (epsilon, delta)."""
    growth, shrink = math.exp(epsilon), math.exp(-epsilon)
    a, b = fp + 0.5, tn + 0.5

    def least_fnr(x: Any) -> Any:
        return np.maximum(0.0, np.maximum(1.0 - delta - growth * x, (1.0 - delta - x) * shrink))

    # x = sin^2(angle) removes the poles of Beta(1/2, .) at both ends; the region's corners split the range.
    low, high = special.betaincinv(a, b, 1e-18), special.betainccinv(a, b, 1e-18)
    corner = (1.0 - delta) / (1.0 + growth)
    cuts = [low, *sorted(c for c in (corner, 1.0 - corner, delta, 1.0 - delta) if low < c < high), high]
    angles = np.arcsin(np.sqrt(np.asarray(cuts, dtype=np.float64)))
    nodes, weights = legendre()
    # The posterior of the FNR may rise like a square root from a corner: 3s^2 - 2s^3 flattens both ends.
    s = 0.5 * (nodes + 1.0)
    step, weights = s * s * (3.0 - 2.0 * s), 3.0 * s * (1.0 - s) * weights
    total = 0.0
    for left, right in itertools.pairwise(angles):
        angle = left + (right - left) * step
        sine, cosine = np.sin(angle), np.cos(angle)
        density = np.exp(
            special.xlogy(2 * a - 1, sine)
            + special.xlogy(2 * b - 1, cosine)
            + math.log(2.0)
            - special.betaln(a, b)
        )
        x = sine * sine
        floor, ceiling = least_fnr(x), 1.0 - least_fnr(cosine * cosine)
        width = special.betainc(fn + 0.5, tp + 0.5, np.clip(ceiling, 0.0, 1.0)) - special.betainc(
            fn + 0.5, tp + 0.5, np.clip(floor, 0.0, 1.0)
        )
        total += (right - left) * float(np.dot(weights, density * np.maximum(width, 0.0)))
    return total


def order_statistic_epsilon(
    members: Any, controls: Any, allowed: int, delta: float = 0.0, alpha: float = 0.05
) -> float:
    """Bound at the threshold that leaves ``allowed`` controls above it, a number fixed beforehand.

    The FPR given the threshold is Beta(allowed + 1, n - allowed), so no correction for choosing it is due.

    Args:
        members: scores of members, shape (n1,).
        controls: scores of non-members, shape (n0,).
        allowed: number of controls above the threshold, 0 to n0 - 1.
        delta: the delta at which epsilon is bounded.
        alpha: significance.

    Returns:
        Lower bound on epsilon, at least 0.

    Raises:
        ConfigurationError: NaN scores, no members, ``allowed`` out of range.

    Example:
        >>> round(order_statistic_epsilon([2.0] * 100, [float(i) / 100 for i in range(100)], 0), 4)
        3.2813
    """
    p = as_scores(members, "member scores", minimum=1)
    n = np.sort(as_scores(controls, "control scores", minimum=1))
    if not 0 <= allowed < n.size:
        raise ConfigurationError(
            f"allowed is {allowed}; give a number from 0 to {n.size - 1}, fixed beforehand"
        )
    check_rate(alpha, "alpha")
    threshold = n[n.size - 1 - allowed]
    hits = int(np.count_nonzero(p > threshold))
    fpr_high = float(special.betainccinv(allowed + 1, n.size - allowed, alpha / 2.0))
    return _ratio_epsilon(binomial_lower(hits, p.size, alpha / 2.0), fpr_high, delta)
