"""Gaussian differential privacy (Dong, Roth and Su 2019): mu to epsilon, delta, trade-off and advantage."""

from __future__ import annotations

import math

from scipy import special

from memaudit.errors import ConfigurationError

_SQRT2 = math.sqrt(2.0)
_LOG_HALF = math.log(0.5)


def _check_mu(mu: float) -> float:
    value = float(mu)
    if not (value >= 0.0 and math.isfinite(value)):
        raise ConfigurationError(f"mu is {mu}; give a finite number of at least 0")
    return value


def _log_delta(mu: float, epsilon: float) -> float:
    """Log of delta(epsilon) for mu > 0, without cancellation between the two normal tails."""
    x = epsilon / mu - mu / 2.0
    y = epsilon / mu + mu / 2.0
    # exp(epsilon) Phi(-y) = exp(-x^2/2) erfcx(y/sqrt 2)/2 because y^2 - x^2 = 2 epsilon.
    if x > 0.0:
        gap = float(special.erfcx(x / _SQRT2) - special.erfcx(y / _SQRT2))
        return -0.5 * x * x + math.log(gap) + _LOG_HALF if gap > 0.0 else -math.inf
    tail = 0.5 * math.exp(-0.5 * x * x) * float(special.erfcx(y / _SQRT2))
    gap = float(special.ndtr(-x)) - tail
    return math.log(gap) if gap > 0.0 else -math.inf


def gdp_delta(mu: float, epsilon: float) -> float:
    """Smallest delta for which a mu-GDP mechanism is (epsilon, delta)-DP.

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu).

    Args:
        mu: the Gaussian-DP parameter, at least 0.
        epsilon: at least 0.

    Returns:
        delta, from 0 to 1.

    Raises:
        ConfigurationError: a value out of range.

    Example:
        >>> round(gdp_delta(1.0, 0.0), 6), gdp_delta(0.0, 1.0)
        (0.382925, 0.0)
    """
    value = _check_mu(mu)
    if not epsilon >= 0.0:
        raise ConfigurationError(f"epsilon is {epsilon}; give a number of at least 0")
    if value == 0.0 or math.isinf(epsilon):
        return 0.0
    return math.exp(_log_delta(value, float(epsilon)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP; the inverse of :func:`gdp_delta`.

    Args:
        mu: the Gaussian-DP parameter, at least 0.
        delta: above 0 and at most 1; at 0 no epsilon exists for mu > 0.

    Returns:
        epsilon, rounded down (the lower end of the bisection), 0 where delta is reached without any epsilon.

    Raises:
        ConfigurationError: a value out of range.

    Example:
        >>> round(gdp_epsilon(1.0, 1e-5), 4)
        4.3772
    """
    value = _check_mu(mu)
    if not 0.0 < delta <= 1.0:
        raise ConfigurationError(
            f"delta is {delta}; a Gaussian mechanism needs 0 < delta <= 1, use the (epsilon, delta) bound at 0"
        )
    if value == 0.0:
        return 0.0
    target = math.log(delta)
    if _log_delta(value, 0.0) <= target:
        return 0.0
    low, high = 0.0, max(1.0, value * value)
    while _log_delta(value, high) > target:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if _log_delta(value, middle) > target:
            low = middle
        else:
            high = middle
    return low


def gdp_mu(epsilon: float, delta: float) -> float:
    """Largest mu whose mechanism is still (epsilon, delta)-DP; the inverse of :func:`gdp_epsilon` in mu.

    Example:
        >>> round(gdp_mu(gdp_epsilon(1.0, 1e-5), 1e-5), 6)
        1.0
    """
    if not 0.0 < delta < 1.0:
        raise ConfigurationError(f"delta is {delta}; give a number strictly between 0 and 1")
    if not (epsilon >= 0.0 and math.isfinite(epsilon)):
        raise ConfigurationError(f"epsilon is {epsilon}; give a finite number of at least 0")
    low, high = 0.0, 1.0
    while gdp_delta(high, epsilon) <= delta:
        low, high = high, 2.0 * high
    while high - low > 1e-13 * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if gdp_delta(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low


def gdp_beta(mu: float, alpha: float) -> float:
    """Trade-off function of mu-GDP: the least type-II error of any attack whose type-I error is ``alpha``.

    beta(alpha) = Phi(Phi^{-1}(1 - alpha) - mu).

    Example:
        >>> round(gdp_beta(1.0, 0.05), 6), gdp_beta(0.0, 0.25)
        (0.740489, 0.75)
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigurationError(f"alpha is {alpha}; give a number from 0 to 1")
    if mu == 0.0:
        return 1.0 - alpha
    return float(special.ndtr(-special.ndtri(alpha) - _check_mu(mu)))


def gdp_advantage(mu: float) -> float:
    """Total variation of mu-GDP, the largest TPR - FPR of any attack: 2 Phi(mu/2) - 1.

    Example:
        >>> round(gdp_advantage(1.0), 6)
        0.382925
    """
    return float(special.erf(_check_mu(mu) / (2.0 * _SQRT2)))
