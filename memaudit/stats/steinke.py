"""One-run lower bound of Steinke, Nasr and Jagielski 2023 (arXiv 2305.08846), with abstention.

Certified: it holds for every (epsilon, delta)-DP mechanism, however the canaries depend on each other, when the
coins are fair and independent and the guesses depend on the scores alone, never on the coins.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import check_counts, check_rate
from memaudit.stats.roots import largest_rejected


def check_guesses(m: int, r: int, v: int) -> tuple[int, int, int]:
    """Return the counts as integers if 0 <= v <= r <= m.

    Example:
        >>> check_guesses(10, 5, 3)
        (10, 5, 3)
    """
    hits, guesses = check_counts(v, r)
    canaries = int(m)
    if canaries != m or guesses > canaries:
        raise ConfigurationError(f"{r} guesses for {m} canaries; give at most one guess per canary")
    return canaries, guesses, hits


def _check_delta(delta: float) -> float:
    value = float(delta)
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"delta is {delta}; give a number from 0 to 1")
    return value


def _at_least(r: int, k: int, q: float) -> float:
    """P[Bin(r, q) >= k]."""
    if k <= 0:
        return 1.0
    return float(special.betainc(k, r - k + 1, q)) if k <= r else 0.0


def _below(r: int, k: int, q: float) -> float:
    """P[Bin(r, q) < k]."""
    if k <= 0:
        return 0.0
    return float(special.betaincc(k, r - k + 1, q)) if k <= r else 1.0


def _densest(r: int, v: int, q: float) -> float:
    """max over 1 <= i <= v of P[v - i <= Bin(r, q) < v]/i, in O(log v).

    The binomial law has one mode, so the mean of the i probabilities just below v grows until the next one is
    smaller than the mean and falls from there on: the turning point is found by bisection.
    """
    log_q, log_p = math.log(q), math.log1p(-q)
    log_all = math.lgamma(r + 1)
    upper_tail = v - 1 > r * q

    def window(i: int) -> float:
        if upper_tail:
            return _at_least(r, v - i, q) - _at_least(r, v, q)
        return _below(r, v, q) - _below(r, v - i, q)

    def falls_after(i: int) -> bool:
        j = v - 1 - i
        if j < 0:
            return True
        log_next = log_all - math.lgamma(j + 1) - math.lgamma(r - j + 1) + j * log_q + (r - j) * log_p
        mean = window(i) / i
        return mean > 0.0 and log_next < math.log(mean)

    low, high = 0, v
    while high - low > 1:
        middle = (low + high) // 2
        if falls_after(middle):
            high = middle
        else:
            low = middle
    return window(high) / high


def steinke_pvalue(m: int, r: int, v: int, epsilon: float, delta: float = 0.0) -> float:
    """Bound on the probability that an (epsilon, delta)-DP mechanism lets v or more of r guesses be right.

    min(1, P[Bin(r, q) >= v] + 2 m delta max_i P[v - i <= Bin(r, q) < v]/i), q = 1/(1 + exp(-epsilon)).

    Args:
        m: number of canaries whose coins were flipped.
        r: number of guesses made, m - r abstentions.
        v: number of correct guesses.
        epsilon: hypothesised epsilon, at least 0.
        delta: hypothesised delta, from 0 to 1.

    Returns:
        The p-value of the hypothesis.

    Raises:
        ConfigurationError: counts or parameters out of range.

    Example:
        >>> steinke_pvalue(10, 2, 2, 0.0), round(steinke_pvalue(10, 2, 2, 0.0, 1e-3), 6)
        (0.25, 0.26)
    """
    canaries, guesses, hits = check_guesses(m, r, v)
    slack = _check_delta(delta)
    if not epsilon >= 0.0:
        raise ConfigurationError(f"epsilon is {epsilon}; give a number of at least 0")
    return _pvalue(canaries, guesses, hits, float(epsilon), slack)


def _pvalue(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    q = float(special.expit(epsilon))
    if v == 0 or q >= 1.0:
        return 1.0
    tail = _at_least(r, v, q)
    if delta > 0.0 and tail < 1.0:
        tail += 2.0 * m * delta * _densest(r, v, q)
    return min(1.0, tail)


def steinke_epsilon(m: int, r: int, v: int, delta: float = 0.0, alpha: float = 0.05) -> float:
    """Lower bound on epsilon at confidence ``1 - alpha``: the largest epsilon that is rejected, 0 if none is.

    Args:
        m: number of canaries whose coins were flipped.
        r: number of guesses made.
        v: number of correct guesses.
        delta: the delta at which epsilon is bounded, from 0 to 1.
        alpha: significance, strictly between 0 and 1.

    Returns:
        Epsilon, rounded down by at most 1e-10.

    Raises:
        ConfigurationError: counts or parameters out of range.

    Example:
        >>> round(steinke_epsilon(1000, 1000, 700), 4), steinke_epsilon(1000, 1000, 500)
        (0.732, 0.0)
    """
    canaries, guesses, hits = check_guesses(m, r, v)
    level, slack = check_rate(alpha, "alpha"), _check_delta(delta)
    return _epsilon(canaries, guesses, hits, slack, level)


@lru_cache(maxsize=4096)
def _epsilon(canaries: int, guesses: int, hits: int, slack: float, level: float) -> float:
    if hits == 0:
        return 0.0
    # With delta 0 the bound is the logit of Clopper and Pearson's lower limit of the accuracy.
    accuracy = float(special.betaincinv(hits, guesses - hits + 1, level))
    if accuracy <= 0.5:
        return 0.0
    top = math.log(accuracy) - math.log1p(-accuracy)
    if slack == 0.0:
        return top
    if _pvalue(canaries, guesses, hits, 0.0, slack) >= level:
        return 0.0
    return largest_rejected(
        lambda epsilon: _pvalue(canaries, guesses, hits, epsilon, slack), level, 0.0, top, 1e-10
    )


def steinke_delta(m: int, r: int, v: int, epsilon: float, alpha: float = 0.05) -> float:
    """Largest delta at which (epsilon, delta) is rejected; the inverse of :func:`steinke_epsilon`, 0 if none is.

    Example:
        >>> d = steinke_delta(1000, 1000, 700, 0.5)
        >>> abs(steinke_epsilon(1000, 1000, 700, d) - 0.5) < 1e-8
        True
    """
    canaries, guesses, hits = check_guesses(m, r, v)
    level = check_rate(alpha, "alpha")
    if not epsilon >= 0.0:
        raise ConfigurationError(f"epsilon is {epsilon}; give a number of at least 0")
    q = float(special.expit(epsilon))
    if hits == 0 or q >= 1.0:
        return 0.0
    room = level - _at_least(guesses, hits, q)
    if room <= 0.0:
        return 0.0
    return min(1.0, room / (2.0 * canaries * _densest(guesses, hits, q)))
