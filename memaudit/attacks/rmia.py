"""rmia: a text's likelihood ratio to the reference against a population's (Zarifzadeh et al. 2024, 2312.03262)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from memaudit.attacks.base import Needs, ReferenceAttack, UnscorableError, View


def dominated_share(
    target: float,
    reference: float,
    population_target: ArrayLike,
    population_reference: ArrayLike,
    *,
    offline_a: float = 1.0,
    gamma: float = 1.0,
) -> float:
    """Return the share of population texts z whose ratio the text's exceeds by more than gamma.

    Args:
        target, reference: the text's probabilities under target and reference, in (0, 1].
        population_target, population_reference: those of the population, shape (m,).
        offline_a: the marginal p(x) is (1 + a)/2 times the reference's plus (1 - a)/2.
        gamma: how much larger the ratio must be.

    Example:
        >>> dominated_share(0.5, 0.25, [0.2, 0.9], [0.2, 0.3])
        0.5
    """
    above = target / ((1 + offline_a) / 2 * reference + (1 - offline_a) / 2)
    marginal = (1 + offline_a) / 2 * np.asarray(population_reference, dtype=np.float64) + (1 - offline_a) / 2
    below = np.asarray(population_target, dtype=np.float64) / marginal
    return float((above / below > gamma).mean())


@dataclass(frozen=True, kw_only=True)
class RMIA(ReferenceAttack):
    """Share of a population of non-members that the text's likelihood ratio dominates; offline, one reference.

    A text's probability is the geometric mean over its tokens, exp(mean log-probability).

    Args:
        population: non-members held apart for the population.
        offline_a: in [0, 1]; 1 takes the reference as the marginal.
        gamma: above 0.
    """

    population: int = 64
    offline_a: float = 1.0
    gamma: float = 1.0

    name = "rmia"
    needs = Needs(reference=True, nonmembers=True, population=True)
    source = "Zarifzadeh et al. 2024, arXiv 2312.03262"

    def __post_init__(self) -> None:
        self._check(self.population >= 1, "population must be at least 1")
        self._check(0 <= self.offline_a <= 1, "offline_a must be in [0, 1]")
        self._check(self.gamma > 0, "gamma must be above 0")

    def pool(self) -> tuple[int, int]:
        return (self.population, 0)

    def score(self, view: View) -> float:
        if not view.population:
            raise UnscorableError("no population of non-members")
        rows = np.exp(np.asarray(view.population, dtype=np.float64))
        return dominated_share(
            float(np.exp(view.signals.logprob.mean())),
            float(np.exp(view.reference_signals.logprob.mean())),
            rows[:, 0],
            rows[:, 1],
            offline_a=self.offline_a,
            gamma=self.gamma,
        )
