"""What a report says about an audit with coins: detection, certified bounds, ceilings and the attack's AUC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memaudit.privacy.estimate import make_estimate
from memaudit.stats.claims import DESCRIPTIVE, Bound
from memaudit.stats.randomization import RandomizationResult
from memaudit.stats.roc import auc, delong_interval

CAUTION = "A lower bound near 0 is no evidence of privacy; compare it with its ceiling."


@dataclass(frozen=True)
class PrivacySummary:
    """Privacy part of a report; ``to_dict`` gives plain values.

    Attributes:
        m, n_in, n_out: number of canaries, included, left out.
        significance: of every bound.
        randomization: test that the scores do not depend on the coins.
        epsilon: certified lower bounds, by delta.
        auc, auc_low, auc_high: of the attack with DeLong's 95 % interval; None when one side is empty.
    """

    m: int
    n_in: int
    n_out: int
    significance: float
    randomization: RandomizationResult
    epsilon: dict[float, Bound]
    auc: float | None
    auc_low: float | None
    auc_high: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: no array, no infinity, no secret."""
        first = next(iter(self.epsilon.values()))
        return {
            "m": self.m,
            "n_in": self.n_in,
            "n_out": self.n_out,
            "significance": self.significance,
            "randomization": self.randomization.to_dict(),
            "epsilon": [{"delta": delta, **bound.to_dict()} for delta, bound in self.epsilon.items()],
            "method": first.claim.method,
            "guarantee": first.claim.guarantee,
            "assumptions": list(first.claim.assumptions),
            "auc": self.auc,
            "auc_low": self.auc_low,
            "auc_high": self.auc_high,
            "auc_guarantee": DESCRIPTIVE,
            "caution": CAUTION,
        }


def estimate_from_scores(
    scores: Any,
    coins: Any,
    ids: Any = None,
    *,
    significance: float = 0.05,
    deltas: tuple[float, ...] = (0.0, 1e-5),
    draws: int = 9999,
    seed: int = 0,
    probability: float = 0.5,
) -> PrivacySummary:
    """Summarise an audit with coins for a report.

    Args:
        scores: one score per canary, shape (m,), m >= 1, higher = more member-like.
        coins: 1 where the canary was included, shape (m,).
        ids: of the canaries, shape (m,); they break ties. None uses the position.
        significance: of every bound.
        deltas: at which epsilon is bounded.
        draws: redraws of the randomisation test.
        seed: root seed of the redraws.
        probability: of the coins; anything but 1/2 is refused.

    Returns:
        A PrivacySummary.

    Raises:
        ConfigurationError: no canary, NaN scores, lengths that differ, coins that are not fair.

    Example:
        >>> summary = estimate_from_scores([0.1, 0.9, 0.2, 0.8], [0, 1, 0, 1], ["a", "b", "c", "d"], draws=99)
        >>> summary.auc, sorted(summary.epsilon)
        (1.0, [0.0, 1e-05])
    """
    estimate = make_estimate(scores, coins, ids, probability=probability)
    epsilon = {float(delta): estimate.epsilon_at(delta=delta, significance=significance) for delta in deltas}
    area = low = high = None
    if estimate.n_in and estimate.n_out:
        members, others = estimate.scores[estimate.included], estimate.scores[~estimate.included]
        area = auc(members, others)
        low, high = delong_interval(members, others)
    return PrivacySummary(
        estimate.m,
        estimate.n_in,
        estimate.n_out,
        significance,
        estimate.randomization(draws=draws, key=seed),
        epsilon,
        area,
        low,
        high,
    )
