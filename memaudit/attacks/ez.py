"""ez: how target and reference differ at the tokens where the target errs (error-zone comparison, 2026)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from memaudit.attacks.base import Needs, ReferenceAttack, UnscorableError, View


@dataclass(frozen=True, kw_only=True)
class EZ(ReferenceAttack):
    """log((P + e) / (N + e)) over the tokens that are not the target's top-1.

    P sums the positive and N the absolute negative differences of log-probability, target minus reference.
    A text without error tokens, the most memorised kind, has P = N = 0 there: its score is that of all its
    tokens instead, so that it is compared by the same measure. The published code gives such texts, and those
    without a negative difference, its lowest score.

    Args:
        e: added to both sums, in nats, above 0.
    """

    e: float = 1e-6

    name = "ez"
    needs = Needs(reference=True)
    source = "error-zone comparison, 2026"

    def __post_init__(self) -> None:
        self._check(self.e > 0, "e must be above 0")

    def score(self, view: View) -> float:
        signals, reference = view.signals, view.reference_signals
        if len(signals) != len(reference):
            raise UnscorableError("target and reference scored different tokens")
        difference = signals.logprob - reference.logprob
        errors = ~signals.greedy_hit
        if errors.any():
            difference = difference[errors]
        gained = float(difference[difference > 0].sum())
        lost = float(-difference[difference < 0].sum())
        return math.log((gained + self.e) / (lost + self.e))
