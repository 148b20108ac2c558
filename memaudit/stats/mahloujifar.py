"""One-run lower bound of Mahloujifar, Melis and Chaudhuri 2024 (arXiv 2410.22235) under Gaussian trade-offs.

Certified for mechanisms that are mu-GDP per canary, however the canaries depend on each other; the family is part
of the claim. Guesses must depend on the scores alone.
"""

from __future__ import annotations

from functools import lru_cache

from scipy import special

from memaudit.stats.arrays import check_rate
from memaudit.stats.gdp import gdp_epsilon
from memaudit.stats.steinke import check_guesses


def mahloujifar_rejects(m: int, r: int, v: int, mu: float, alpha: float = 0.05) -> bool:
    """Whether v correct of r guesses reject "every canary's trade-off is at least that of mu-GDP" at ``alpha``.

    Example:
        >>> mahloujifar_rejects(1000, 1000, 700, 0.35), mahloujifar_rejects(1000, 1000, 700, 0.36)
        (True, False)
    """
    m, r, v = check_guesses(m, r, v)
    return v > 0 and _rejects(m, r, v, float(mu), check_rate(alpha, "alpha"))


def _rejects(m: int, r: int, v: int, mu: float, alpha: float) -> bool:
    ndtr, ndtri = special.ndtr, special.ndtri
    right = alpha * v / m
    wrong = alpha * (r - v) / m
    total = r / m
    i = v - 1
    while i >= 0:
        if right + wrong > total:
            return True
        grown = float(ndtr(ndtri(right) - mu))
        # Both only grow as i falls, and i/(r - i) falls: once a step adds nothing, no later step does. Stopping
        # at a step below 1e-13 keeps the test conservative, because what is left out could only reject more.
        if grown <= wrong * (1.0 + 1e-13):
            break
        right += i / (r - i) * (grown - wrong)
        wrong = grown
        i -= 1
    return right + wrong > total


def mahloujifar_mu(m: int, r: int, v: int, alpha: float = 0.05) -> float:
    """Lower bound on mu at confidence ``1 - alpha``: the largest mu that is rejected, 0 if none is.

    Args:
        m: number of canaries whose coins were flipped.
        r: number of guesses made.
        v: number of correct guesses.
        alpha: significance, strictly between 0 and 1.

    Returns:
        mu, rounded down by at most 1e-9.

    Raises:
        ConfigurationError: counts or significance out of range.

    Example:
        >>> round(mahloujifar_mu(1000, 1000, 700), 4)
        0.3572
    """
    m, r, v = check_guesses(m, r, v)
    return _mu(m, r, v, check_rate(alpha, "alpha"))


@lru_cache(maxsize=4096)
def _mu(m: int, r: int, v: int, level: float) -> float:
    if v == 0 or not _rejects(m, r, v, 0.0, level):
        return 0.0
    low, high = 0.0, 1.0
    while _rejects(m, r, v, high, level):
        low, high = high, 2.0 * high
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        if _rejects(m, r, v, middle, level):
            low = middle
        else:
            high = middle
    return low


def mahloujifar_epsilon(m: int, r: int, v: int, delta: float, alpha: float = 0.05) -> float:
    """Epsilon at ``delta`` of the mu-GDP mechanism at the lower bound of :func:`mahloujifar_mu`.

    Example:
        >>> round(mahloujifar_epsilon(1000, 1000, 700, 1e-5), 3)
        1.372
    """
    return gdp_epsilon(mahloujifar_mu(m, r, v, alpha), delta)
