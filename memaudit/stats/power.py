"""What an audit of a given size can detect, and how many canaries a wanted detection needs.

Computed for the canaries' best case under each truth: randomised response at epsilon (no (epsilon, 0)-DP mechanism
lets more guesses be right on average) and the Gaussian mechanism at mu, every canary guessed, as in
:func:`memaudit.stats.steinke.steinke_epsilon` without abstention.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import check_rate
from memaudit.stats.guesses import preregistered_pairs
from memaudit.stats.intervals import clopper_pearson
from memaudit.stats.mahloujifar import mahloujifar_mu
from memaudit.stats.steinke import steinke_epsilon
from memaudit.stats.thresholds import allowed_above, controls_needed

_MOST = 2**40


@dataclass(frozen=True)
class AuditPower:
    """What m canaries can show at significance ``alpha``.

    Attributes:
        m, alpha, power, delta: what was asked.
        critical_correct: fewest correct guesses of m that make the bound positive; m + 1 where none does.
        detectable_accuracy: smallest share of correct guesses found with probability ``power``; None where none is.
        detectable_epsilon: epsilon of the randomised response of that accuracy.
        detectable_mu: mu of the Gaussian mechanism of that accuracy.
        detectable_auc: AUC of that Gaussian mechanism.
        plan_detectable_epsilon: as detectable_epsilon, by the default plan of pairs, of which the one that guesses
            every canary has its share of ``alpha``.
        ceiling: largest epsilon that m canaries can show, every guess right (default plan of pairs).
        ceiling_mu: the same for mu under Gaussian trade-offs, every canary guessed.
        expected_members: canaries included on average.
    """

    m: int
    alpha: float
    power: float
    delta: float
    critical_correct: int
    detectable_accuracy: float | None
    detectable_epsilon: float | None
    detectable_mu: float | None
    detectable_auc: float | None
    plan_detectable_epsilon: float | None
    ceiling: float
    ceiling_mu: float
    expected_members: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)


def _check(m: int, alpha: float, power: float) -> int:
    check_rate(alpha, "alpha")
    check_rate(power, "power")
    if isinstance(m, bool) or int(m) != m or m < 1:
        raise ConfigurationError(f"{m} canaries; give an integer of at least 1")
    return int(m)


def critical_correct(m: int, alpha: float = 0.05, delta: float = 0.0) -> int:
    """Fewest correct guesses of m that give a positive bound; m + 1 where not even all do.

    Example:
        >>> critical_correct(10), critical_correct(4)
        (9, 5)
    """
    m = _check(m, alpha, 0.5)
    low, high = m // 2, m + 1
    while high - low > 1:
        middle = (low + high) // 2
        if steinke_epsilon(m, m, middle, delta, alpha) > 0.0:
            high = middle
        else:
            low = middle
    return high


def ceiling(m: int, alpha: float = 0.05, delta: float = 0.0) -> float:
    """Largest epsilon that m canaries can show with the default plan of pairs, every guess right.

    Example:
        >>> round(ceiling(1000), 3) < round(ceiling(10_000), 3)
        True
    """
    m = _check(m, alpha, 0.5)
    pairs = preregistered_pairs(m)
    return max(steinke_epsilon(m, a + b, a + b, delta, alpha / len(pairs)) for a, b in pairs)


def audit_power(m: int, alpha: float = 0.05, *, power: float = 0.8, delta: float = 0.0) -> AuditPower:
    """Say what m canaries can detect.

    Args:
        m: number of canaries whose coins are flipped.
        alpha: significance.
        power: wanted probability of a positive bound.
        delta: the delta at which epsilon is bounded.

    Returns:
        An AuditPower.

    Raises:
        ConfigurationError: values out of range.

    Example:
        >>> found = audit_power(1000)
        >>> round(found.detectable_epsilon, 3), found.critical_correct
        (0.159, 527)
    """
    m = _check(m, alpha, power)
    needed = critical_correct(m, alpha, delta)
    accuracy = _accuracy(m, needed, power)
    by_plan = _accuracy(m, critical_correct(m, alpha / len(preregistered_pairs(m)), delta), power)
    mu = 2.0 * float(special.ndtri(accuracy)) if accuracy is not None else None
    return AuditPower(
        m=m,
        alpha=alpha,
        power=power,
        delta=delta,
        critical_correct=needed,
        detectable_accuracy=accuracy,
        detectable_epsilon=None if accuracy is None else float(special.logit(accuracy)),
        detectable_mu=mu,
        detectable_auc=None if mu is None else float(special.ndtr(mu / math.sqrt(2.0))),
        plan_detectable_epsilon=None if by_plan is None else float(special.logit(by_plan)),
        ceiling=ceiling(m, alpha, delta),
        ceiling_mu=mahloujifar_mu(m, m, m, alpha),
        expected_members=m / 2.0,
    )


def _accuracy(m: int, needed: int, power: float) -> float | None:
    """Accuracy at which P[Bin(m, accuracy) >= needed] = power; None where not even all m guesses are enough."""
    return float(special.betaincinv(needed, m - needed + 1, power)) if needed <= m else None


def canaries_for_detection(epsilon: float, alpha: float = 0.05, *, power: float = 0.8) -> int:
    """Canaries with which randomised response at ``epsilon`` gives a positive bound with probability ``power``.

    The fewest found by doubling and bisection; a few fewer may do as well, because counts are whole numbers.

    Example:
        >>> canaries_for_detection(1.0) < canaries_for_detection(0.5)
        True
    """
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise ConfigurationError(f"epsilon is {epsilon}; give a finite number above 0")
    _check(1, alpha, power)
    q = float(special.expit(epsilon))

    def enough(m: int) -> bool:
        needed = critical_correct(m, alpha)
        return needed <= m and float(special.betainc(needed, m - needed + 1, q)) >= power

    return _fewest(enough)


def canaries_for_ceiling(epsilon: float, alpha: float = 0.05, delta: float = 0.0) -> int:
    """Canaries with which a bound of ``epsilon`` could be shown at all, every guess of the default plan right.

    Example:
        >>> canaries_for_ceiling(1.0) < canaries_for_ceiling(4.0)
        True
    """
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise ConfigurationError(f"epsilon is {epsilon}; give a finite number above 0")
    return _fewest(lambda m: ceiling(m, alpha, delta) >= epsilon)


def _fewest(enough: Any) -> int:
    high = 1
    while not enough(high):
        high *= 2
        if high > _MOST:
            raise ConfigurationError(
                "no number of canaries up to 2**40 reaches that; ask for a larger epsilon"
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class OperatingPoint:
    """What a false-positive rate needs and what it can show with n controls and k members."""

    fpr: float
    n_controls: int
    resolvable: bool
    controls_needed: int
    controls_needed_pac: int
    tpr_low_if_all_detected: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return asdict(self)


def operating_point(fpr: float, n_controls: int, n_members: int, *, level: float = 0.95) -> OperatingPoint:
    """Say whether ``n_controls`` resolve ``fpr``, and the lower limit of the TPR if every member were detected.

    Example:
        >>> point = operating_point(0.01, 120, 16)
        >>> point.resolvable, point.controls_needed, round(point.tpr_low_if_all_detected, 3)
        (True, 99, 0.794)
    """
    return OperatingPoint(
        fpr=check_rate(fpr, "fpr"),
        n_controls=int(n_controls),
        resolvable=allowed_above(int(n_controls), fpr) >= 0,
        controls_needed=controls_needed(fpr),
        controls_needed_pac=controls_needed(fpr, 0.95),
        tpr_low_if_all_detected=clopper_pearson(int(n_members), int(n_members), level)[0],
    )
