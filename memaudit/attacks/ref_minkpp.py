"""ref_minkpp: Min-K%++ of the target minus that of the reference, the headline attack on canaries."""

from __future__ import annotations

from dataclasses import dataclass

from memaudit.attacks.base import Needs, ReferenceAttack, View
from memaudit.attacks.mink import lowest_mean
from memaudit.attacks.minkpp import standardised


@dataclass(frozen=True, kw_only=True)
class RefMinKPP(ReferenceAttack):
    """minkpp(target) - minkpp(reference); each model's lowest positions are chosen by its own scores.

    Args:
        ratio: share of the tokens, in (0, 1].
    """

    ratio: float = 0.2

    name = "ref_minkpp"
    needs = Needs(reference=True, distribution=True)
    source = "memaudit 0.2, after Zhang et al. 2025, arXiv 2404.02936"

    def __post_init__(self) -> None:
        self._check(0 < self.ratio <= 1, "ratio must be in (0, 1]")

    def score(self, view: View) -> float:
        target = lowest_mean(standardised(view.signals), self.ratio)
        return target - lowest_mean(standardised(view.reference_signals), self.ratio)
