"""One-run estimates of Xiang et al. 2025 (arXiv 2509.08704) by the exact order-statistic tail.

Model-based: the m canaries are taken as independent channels of the stated family. A mechanism outside that model,
for example one public coin that spoils every canary at once, breaks the stated confidence (docs/statistics.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import Floats, check_rate
from memaudit.stats.gdp import gdp_epsilon
from memaudit.stats.quadrature import legendre
from memaudit.stats.roots import largest_rejected
from memaudit.stats.steinke import check_guesses


def _beta_rule(a: float, b: float, kink: float | None = None) -> tuple[Floats, Floats]:
    """Nodes and weights that integrate against Beta(a, b), split at ``kink`` where the integrand has one."""
    # Far tails, because a p-value far below 1e-17 is made by them.
    low = float(special.betaincinv(a, b, 1e-60))
    high = float(special.betainccinv(a, b, 1e-60))
    edges = [low, high] if kink is None or not low < kink < high else [low, kink, high]
    nodes, weights = legendre()
    points, masses = [], []
    for left, right in itertools.pairwise(edges):
        half = 0.5 * (right - left)
        x = left + half * (nodes + 1.0)
        points.append(x)
        masses.append(
            half
            * weights
            * np.exp(special.xlogy(a - 1, x) + special.xlog1py(b - 1, -x) - special.betaln(a, b))
        )
    mass = np.concatenate(masses)
    # Dividing by the total removes the rounding of the normalising constant, which is large for large a + b.
    return np.concatenate(points), mass / mass.sum()


def _tail(u: int, r: int, error: Floats | float) -> Floats:
    """P[Bin(r, error) <= u]."""
    if u >= r:
        return np.ones_like(np.asarray(error, dtype=np.float64))
    return np.asarray(special.betaincc(u + 1, r - u, error), dtype=np.float64)


def _gaussian_error(survival: Floats, mu: float) -> Floats:
    """Error probability of a guess whose confidence is among the top ``survival`` share, under mu-GDP."""
    # Solve Phi(-t - mu/2) + Phi(-t + mu/2) = survival for t >= 0; the left side falls in t.
    low = np.zeros_like(survival)
    high = np.full_like(survival, mu / 2.0 + 40.0)
    for _ in range(28):
        middle = 0.5 * (low + high)
        heavier = special.ndtr(-middle - mu / 2.0) + special.ndtr(-middle + mu / 2.0) > survival
        low = np.where(heavier, middle, low)
        high = np.where(heavier, high, middle)
    for _ in range(2):  # Newton on the log, which is concave: it ends at rounding from here
        wrong, right = special.ndtr(-low - mu / 2.0), special.ndtr(-low + mu / 2.0)
        density = (np.exp(-0.5 * (low + mu / 2.0) ** 2) + np.exp(-0.5 * (low - mu / 2.0) ** 2)) / math.sqrt(
            2 * math.pi
        )
        mass = wrong + right
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.log(mass / survival) * mass / density
        low = np.where(np.isfinite(step) & (np.abs(step) < 1e-3), low + step, low)
    low = np.maximum(low, 0.0)
    wrong = special.log_ndtr(-low - mu / 2.0)
    right = special.log_ndtr(-low + mu / 2.0)
    return np.asarray(special.expit(wrong - right), dtype=np.float64)


def xiang_mu_pvalue(n: int, r: int, u: int, mu: float) -> float:
    """P[at most u errors among the r most confident of n guesses] if every canary is a mu-GDP channel.

    Args:
        n: number of canaries.
        r: number of guesses made, the most confident ones.
        u: number of wrong guesses.
        mu: hypothesised Gaussian-DP parameter, at least 0.

    Returns:
        The p-value of the hypothesis.

    Raises:
        ConfigurationError: counts or mu out of range.

    Example:
        >>> round(xiang_mu_pvalue(10, 10, 0, 1.0), 6) == round((1 - 0.3085375387) ** 10, 6)
        True
    """
    n, r, u = check_guesses(n, r, u)
    if not (mu >= 0.0 and math.isfinite(mu)):
        raise ConfigurationError(f"mu is {mu}; give a finite number of at least 0")
    return _mu_tail(n, r, u)(float(mu))


def _mu_tail(n: int, r: int, u: int) -> Callable[[float], float]:
    if r == n or u >= r:
        return lambda mu: float(_tail(u, r, float(special.ndtr(-mu / 2.0))))
    points, weights = _beta_rule(n - r, r + 1)
    survival = 1.0 - points

    def pvalue(mu: float) -> float:
        error = _gaussian_error(survival, mu) if mu > 0.0 else np.full_like(survival, 0.5)
        return min(1.0, float(np.dot(weights, _tail(u, r, error))))

    return pvalue


def xiang_mu(n: int, r: int, u: int, alpha: float = 0.05) -> float:
    """Model-based lower bound on mu: the largest mu under which u or fewer errors have probability below ``alpha``.

    Without abstention (r = n) in closed form: max(0, -2 Phi^{-1}(BetaInv(1 - alpha; u + 1, n - u))).

    Args:
        n: number of canaries.
        r: number of guesses made; with r < n the most confident ones, equally many on either side.
        u: number of wrong guesses.
        alpha: significance, strictly between 0 and 1.

    Returns:
        mu, 0 if none is rejected.

    Raises:
        ConfigurationError: counts or significance out of range.

    Example:
        >>> round(xiang_mu(1000, 1000, 300), 4), round(xiang_mu(1000, 1000, 0), 4)
        (0.9089, 5.4975)
    """
    n, r, u = check_guesses(n, r, u)
    return _mu(n, r, u, check_rate(alpha, "alpha"))


@lru_cache(maxsize=4096)
def _mu(n: int, r: int, u: int, level: float) -> float:
    if u >= r:
        return 0.0
    if r == n:
        return max(0.0, -2.0 * float(special.ndtri(special.betainccinv(u + 1, n - u, level))))
    return _largest_rejected(_mu_tail(n, r, u), level)


def xiang_epsilon_pvalue(n: int, r: int, u: int, epsilon: float, delta: float = 0.0) -> float:
    """P[at most u errors among the r most confident of n guesses] if every canary is an (epsilon, delta) channel.

    Each channel reveals its bit with probability delta and else is randomised response at epsilon.

    Example:
        >>> xiang_epsilon_pvalue(2, 2, 0, 0.0)
        0.25
    """
    n, r, u = check_guesses(n, r, u)
    if not epsilon >= 0.0:
        raise ConfigurationError(f"epsilon is {epsilon}; give a number of at least 0")
    if not 0.0 <= delta <= 1.0:
        raise ConfigurationError(f"delta is {delta}; give a number from 0 to 1")
    return _epsilon_tail(n, r, u, float(delta))(float(epsilon))


def _epsilon_tail(n: int, r: int, u: int, delta: float) -> Callable[[float], float]:
    if r == n or u >= r:
        return lambda epsilon: float(_tail(u, r, (1.0 - delta) * float(special.expit(-epsilon))))
    points, weights = _beta_rule(n - r, r + 1, 1.0 - delta)
    share = np.clip((1.0 - delta - points) / (1.0 - points), 0.0, 1.0)
    return lambda epsilon: min(
        1.0, float(np.dot(weights, _tail(u, r, share * float(special.expit(-epsilon)))))
    )


def xiang_epsilon(
    n: int, r: int, u: int, delta: float = 0.0, alpha: float = 0.05, *, family: str = "epsilon-delta"
) -> float:
    """Model-based lower bound on epsilon at ``delta``.

    Args:
        n: number of canaries.
        r: number of guesses made, the most confident ones.
        u: number of wrong guesses.
        delta: the delta at which epsilon is bounded.
        alpha: significance, strictly between 0 and 1.
        family: ``epsilon-delta`` (randomised response that leaks with probability delta), or ``gdp``
            (Gaussian channels; needs delta > 0).

    Returns:
        epsilon, 0 if none is rejected.

    Raises:
        ConfigurationError: counts, parameters or family out of range.

    Example:
        >>> round(xiang_epsilon(1000, 1000, 300), 4), round(xiang_epsilon(1000, 1000, 300, 1e-5, family="gdp"), 4)
        (0.732, 3.9203)
    """
    n, r, u = check_guesses(n, r, u)
    level = check_rate(alpha, "alpha")
    if family == "gdp":
        return gdp_epsilon(xiang_mu(n, r, u, level), delta)
    if family != "epsilon-delta":
        raise ConfigurationError(f"family is {family!r}; give 'epsilon-delta' or 'gdp'")
    if not 0.0 <= delta <= 1.0:
        raise ConfigurationError(f"delta is {delta}; give a number from 0 to 1")
    if u >= r or delta == 1.0:
        return 0.0
    if r == n:
        error = float(special.betainccinv(u + 1, n - u, level)) / (1.0 - delta)
        return math.log1p(-error) - math.log(error) if error < 0.5 else 0.0
    return _largest_rejected(_epsilon_tail(n, r, u, float(delta)), level)


def xiang_delta(n: int, r: int, u: int, epsilon: float, alpha: float = 0.05) -> float:
    """Largest delta at which the (epsilon, delta) family is rejected; the inverse of :func:`xiang_epsilon`.

    Example:
        >>> d = xiang_delta(1000, 1000, 300, 0.5)
        >>> abs(xiang_epsilon(1000, 1000, 300, d) - 0.5) < 1e-8
        True
    """
    n, r, u = check_guesses(n, r, u)
    level = check_rate(alpha, "alpha")
    if u >= r:
        return 0.0
    if r == n:
        error = float(special.betainccinv(u + 1, n - u, level))
        return max(0.0, 1.0 - error / float(special.expit(-epsilon))) if epsilon < 700.0 else 0.0
    if xiang_epsilon_pvalue(n, r, u, epsilon, 0.0) >= level:
        return 0.0
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        middle = 0.5 * (low + high)
        if xiang_epsilon_pvalue(n, r, u, epsilon, middle) < level:
            low = middle
        else:
            high = middle
    return low


def _largest_rejected(pvalue: Callable[[float], float], level: float) -> float:
    if pvalue(0.0) >= level:
        return 0.0
    low, high = 0.0, 1.0
    while pvalue(high) < level:
        if high > 512.0:
            return high
        low, high = high, 2.0 * high
    return largest_rejected(pvalue, level, low, high, 1e-11 * max(1.0, high))
