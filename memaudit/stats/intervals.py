"""Intervals for one proportion."""

from __future__ import annotations

from scipy import special

from memaudit.stats.arrays import check_counts, check_rate


def binomial_lower(successes: int, trials: int, alpha: float) -> float:
    """Exact one-sided lower limit of a proportion (Clopper and Pearson 1934) at confidence ``1 - alpha``.

    Example:
        >>> round(binomial_lower(10, 10, 0.05), 6)
        0.741134
    """
    hits, total = check_counts(successes, trials)
    if hits == 0:
        return 0.0
    return float(special.betaincinv(hits, total - hits + 1, alpha))


def binomial_upper(successes: int, trials: int, alpha: float) -> float:
    """Exact one-sided upper limit of a proportion (Clopper and Pearson 1934) at confidence ``1 - alpha``.

    Example:
        >>> round(binomial_upper(0, 10, 0.05), 6)
        0.258866
    """
    hits, total = check_counts(successes, trials)
    if hits == total:
        return 1.0
    return float(special.betainccinv(hits + 1, total - hits, alpha))


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a proportion (Clopper and Pearson 1934).

    Args:
        successes: number of successes, 0 to ``trials``.
        trials: number of independent trials; 0 gives (0.0, 1.0).
        level: confidence, strictly between 0 and 1.

    Returns:
        Lower and upper limit.

    Raises:
        ConfigurationError: counts or level out of range.

    Example:
        >>> [round(limit, 4) for limit in clopper_pearson(0, 16)]
        [0.0, 0.2059]
    """
    tail = (1.0 - check_rate(level, "level")) / 2.0
    return binomial_lower(successes, trials, tail), binomial_upper(successes, trials, tail)


def jeffreys(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Equal-tailed interval of a proportion under Jeffreys' Beta(1/2, 1/2) prior.

    A credible interval: its frequentist coverage is close to ``level`` on average, not guaranteed.

    Args:
        successes: number of successes, 0 to ``trials``.
        trials: number of trials.
        level: posterior probability, strictly between 0 and 1.

    Returns:
        Lower and upper limit.

    Raises:
        ConfigurationError: counts or level out of range.

    Example:
        >>> [round(limit, 4) for limit in jeffreys(10, 100)]
        [0.0526, 0.1701]
    """
    hits, total = check_counts(successes, trials)
    tail = (1.0 - check_rate(level, "level")) / 2.0
    a, b = hits + 0.5, total - hits + 0.5
    return float(special.betaincinv(a, b, tail)), float(special.betainccinv(a, b, tail))
