"""One-run bounds over pre-registered pairs of guesses, each with its claim attached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import Bools, check_rate
from memaudit.stats.claims import GUARANTEES, Bound, Claim
from memaudit.stats.gdp import gdp_advantage, gdp_beta, gdp_delta, gdp_epsilon
from memaudit.stats.guesses import (
    FRACTIONS,
    GAUSSIAN_FRACTIONS,
    Guesses,
    Pair,
    check_pairs,
    guess,
    guess_at_threshold,
    preregistered_pairs,
)
from memaudit.stats.mahloujifar import mahloujifar_mu
from memaudit.stats.steinke import steinke_delta, steinke_epsilon
from memaudit.stats.xiang import xiang_delta, xiang_epsilon, xiang_mu

_COINS = "fair, independent coins drawn before training"
_BLIND = "guesses that depend on the scores alone"


@dataclass(frozen=True)
class Evidence:
    """Ranked canaries with their coins: what every one-run bound is computed from.

    Attributes:
        order: positions from the lowest score to the highest, ties broken by id.
        scores: shape (m,).
        included: coins, shape (m,).
    """

    order: NDArray[np.intp]
    scores: NDArray[np.float64]
    included: Bools

    @property
    def m(self) -> int:
        """Number of canaries."""
        return int(self.included.size)


def _outcomes(
    evidence: Evidence, method: str, pairs: Sequence[Pair] | None, threshold: float | None
) -> tuple[tuple[Guesses, ...], tuple[Pair, ...]]:
    if evidence.m == 0:
        raise ConfigurationError("there are no canaries; flip a coin for at least one before training")
    if threshold is not None:
        if pairs is not None:
            raise ConfigurationError(
                "guesses and threshold are both given; give one of them, fixed beforehand"
            )
        found = guess_at_threshold(evidence.scores, evidence.included, threshold)
        return (found,), ((found.k_plus, found.k_minus),)
    if pairs is not None:
        plan = check_pairs(pairs, evidence.m)
    elif method == "xiang":
        plan = preregistered_pairs(evidence.m, [(0.5, 0.5)])
    else:
        plan = preregistered_pairs(evidence.m, GAUSSIAN_FRACTIONS if method == "mahloujifar" else FRACTIONS)
    if method == "xiang":
        for k_plus, k_minus in plan:
            if k_plus + k_minus < evidence.m and k_plus != k_minus:
                raise ConfigurationError(
                    f"guesses ({k_plus}, {k_minus}) with method xiang; its theorem is about the most confident "
                    "guesses on both sides, give k_plus = k_minus, or use the certified method"
                )
    return tuple(guess(evidence.order, evidence.included, pair) for pair in plan), plan


def _assumptions(method: str, family: str) -> tuple[str, ...]:
    if method == "steinke":
        return (_COINS, _BLIND)
    gaussian = "every canary's trade-off is that of a Gaussian mechanism (mu-GDP)"
    if method == "mahloujifar":
        return (_COINS, _BLIND, gaussian)
    channel = gaussian if family == "gdp" else "every canary passes an (epsilon, delta) randomised response"
    return (_COINS, _BLIND, "independent canary channels", channel)


def _best(
    evidence: Evidence,
    method: str,
    family: str,
    significance: float,
    pairs: Sequence[Pair] | None,
    threshold: float | None,
    quantity: str,
    at: str,
    bound: Callable[[Guesses, float], float],
    convert: Callable[[float], float] = float,
    upper: Callable[[Guesses, float], float] | None = None,
) -> Bound:
    """The largest bound over the pre-registered pairs, each at its share of the significance."""
    alpha = check_rate(significance, "significance")
    outcomes, plan = _outcomes(evidence, method, pairs, threshold)
    share = alpha / len(outcomes)
    value, best = _largest(outcomes, share, bound, upper)
    perfect = [Guesses(k_plus, k_minus, k_plus + k_minus) for k_plus, k_minus in plan]
    most, _ = _largest(perfect, share, bound, upper)
    claim = Claim(
        quantity,
        at,
        method,
        GUARANTEES[method],
        _assumptions(method, family),
        alpha,
        evidence.m,
        best.k_plus,
        best.k_minus,
        best.correct,
        plan,
        convert(most),
    )
    return Bound(convert(value), claim)


def _largest(
    outcomes: Sequence[Guesses],
    share: float,
    bound: Callable[[Guesses, float], float],
    upper: Callable[[Guesses, float], float] | None,
) -> tuple[float, Guesses]:
    """The largest bound and its guesses; with a cheap ``upper`` limit, only of guesses that could still win."""
    if upper is None:
        values = [bound(found, share) for found in outcomes]
    else:
        limits = [upper(found, share) for found in outcomes]
        values = [0.0] * len(outcomes)
        for index in sorted(range(len(outcomes)), key=lambda i: -limits[i]):
            if limits[index] > max(values):
                values[index] = bound(outcomes[index], share)
    # max keeps the first of equals, so the reported guesses do not depend on rounding of later ones.
    winner = max(range(len(values)), key=values.__getitem__)
    return values[winner], outcomes[winner]


def epsilon_bound(
    evidence: Evidence,
    delta: float,
    significance: float = 0.05,
    *,
    method: str = "steinke",
    family: str = "epsilon-delta",
    pairs: Sequence[Pair] | None = None,
    threshold: float | None = None,
) -> Bound:
    """Lower bound on epsilon at ``delta`` from one run.

    Args:
        evidence: ranked canaries and coins.
        delta: from 0 to 1.
        significance: probability that the bound exceeds the truth.
        method: ``steinke``, ``mahloujifar`` (family gdp) or ``xiang``.
        family: ``epsilon-delta`` or ``gdp``; what a model-based or Gaussian bound takes the canaries for.
        pairs: (k_plus, k_minus) fixed beforehand; None takes the default plan.
        threshold: a score fixed beforehand, in place of pairs.

    Returns:
        A Bound.

    Raises:
        ConfigurationError: parameters out of range, no canary.

    Example:
        >>> import numpy as np
        >>> e = Evidence(np.arange(100), np.arange(100.0), np.arange(100) >= 50)
        >>> round(float(epsilon_bound(e, 0.0, pairs=[(50, 50)])), 4)
        3.493
    """
    d = float(delta)
    if not 0.0 <= d <= 1.0:
        raise ConfigurationError(f"delta is {delta}; give a number from 0 to 1")
    at = f"at delta {d:g}"
    if family == "gdp":
        if not d > 0.0:
            raise ConfigurationError(
                f"delta is {delta}; a Gaussian trade-off needs delta > 0, use eps_delta() or the default at 0"
            )
        # Conversion is monotone in mu, so the best mu gives the best epsilon.
        return _best(
            evidence,
            method,
            family,
            significance,
            pairs,
            threshold,
            "epsilon",
            at,
            _mu_of(method, evidence.m),
            lambda mu: gdp_epsilon(mu, d),
        )
    m = evidence.m
    if method == "steinke":
        return _best(
            evidence,
            method,
            family,
            significance,
            pairs,
            threshold,
            "epsilon",
            at,
            lambda g, a: steinke_epsilon(m, g.made, g.correct, d, a),
            # Delta only ever lowers the bound, and without it the bound is one quantile.
            upper=lambda g, a: steinke_epsilon(m, g.made, g.correct, 0.0, a),
        )
    if method == "xiang":
        return _best(
            evidence,
            method,
            family,
            significance,
            pairs,
            threshold,
            "epsilon",
            at,
            lambda g, a: xiang_epsilon(m, g.made, g.errors, d, a),
        )
    raise ConfigurationError(f"method is {method!r} for family {family!r}; give 'steinke' or 'xiang'")


def delta_bound(
    evidence: Evidence,
    epsilon: float,
    significance: float = 0.05,
    *,
    method: str = "steinke",
    family: str = "epsilon-delta",
    pairs: Sequence[Pair] | None = None,
    threshold: float | None = None,
) -> Bound:
    """Lower bound on delta at ``epsilon`` from one run; the inverse of :func:`epsilon_bound`, 0 if none.

    Example:
        >>> import numpy as np
        >>> e = Evidence(np.arange(100), np.arange(100.0), np.arange(100) >= 50)
        >>> d = delta_bound(e, 2.0)
        >>> abs(epsilon_bound(e, d) - 2.0) < 1e-6
        True
    """
    size = float(epsilon)
    if not size >= 0.0:
        raise ConfigurationError(f"epsilon is {epsilon}; give a number of at least 0")
    at = f"at epsilon {size:g}"
    m = evidence.m
    if family == "gdp":
        return _best(
            evidence,
            method,
            family,
            significance,
            pairs,
            threshold,
            "delta",
            at,
            _mu_of(method, m),
            lambda mu: gdp_delta(mu, size),
        )
    if method == "steinke":
        return _best(
            evidence,
            method,
            family,
            significance,
            pairs,
            threshold,
            "delta",
            at,
            lambda g, a: steinke_delta(m, g.made, g.correct, size, a),
        )
    if method == "xiang":
        return _best(
            evidence,
            method,
            family,
            significance,
            pairs,
            threshold,
            "delta",
            at,
            lambda g, a: xiang_delta(m, g.made, g.errors, size, a),
        )
    raise ConfigurationError(f"method is {method!r} for family {family!r}; give 'steinke' or 'xiang'")


def mu_bound(
    evidence: Evidence,
    significance: float = 0.05,
    *,
    method: str = "mahloujifar",
    pairs: Sequence[Pair] | None = None,
    threshold: float | None = None,
) -> Bound:
    """Lower bound on mu of Gaussian differential privacy.

    Example:
        >>> import numpy as np
        >>> e = Evidence(np.arange(100), np.arange(100.0), np.arange(100) >= 50)
        >>> mu_bound(e).guarantee
        'certified'
    """
    return _best(
        evidence, method, "gdp", significance, pairs, threshold, "mu", "", _mu_of(method, evidence.m)
    )


def beta_bound(
    evidence: Evidence,
    alpha: float,
    significance: float = 0.05,
    *,
    method: str = "mahloujifar",
    pairs: Sequence[Pair] | None = None,
    threshold: float | None = None,
) -> Bound:
    """Upper bound on the trade-off function at type-I error ``alpha``, under mu-GDP.

    Example:
        >>> import numpy as np
        >>> e = Evidence(np.arange(100), np.arange(100.0), np.arange(100) >= 50)
        >>> beta_bound(e, 0.1) < 0.9
        True
    """
    if not 0.0 <= float(alpha) <= 1.0:
        raise ConfigurationError(f"alpha is {alpha}; give a number from 0 to 1")
    return _best(
        evidence,
        method,
        "gdp",
        significance,
        pairs,
        threshold,
        "beta",
        f"at alpha {float(alpha):g}",
        _mu_of(method, evidence.m),
        lambda mu: gdp_beta(mu, float(alpha)),
    )


def advantage_bound(
    evidence: Evidence,
    significance: float = 0.05,
    *,
    method: str = "mahloujifar",
    pairs: Sequence[Pair] | None = None,
    threshold: float | None = None,
) -> Bound:
    """Lower bound on the total variation, the largest TPR - FPR of any attack, under mu-GDP.

    Example:
        >>> import numpy as np
        >>> e = Evidence(np.arange(100), np.arange(100.0), np.arange(100) >= 50)
        >>> 0.0 < advantage_bound(e) < 1.0
        True
    """
    return _best(
        evidence,
        method,
        "gdp",
        significance,
        pairs,
        threshold,
        "advantage",
        "",
        _mu_of(method, evidence.m),
        gdp_advantage,
    )


def _mu_of(method: str, m: int) -> Callable[[Guesses, float], float]:
    if method == "mahloujifar":
        return lambda g, a: mahloujifar_mu(m, g.made, g.correct, a)
    if method == "xiang":
        return lambda g, a: xiang_mu(m, g.made, g.errors, a)
    raise ConfigurationError(f"method is {method!r} for the Gaussian family; give 'mahloujifar' or 'xiang'")
