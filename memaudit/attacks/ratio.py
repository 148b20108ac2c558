"""ratio: the reference's loss over the target's, the loss ratio turned so that higher is more member-like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memaudit.attacks.base import Needs, ReferenceAttack, View

SMALLEST = float(np.finfo(np.float64).tiny)
"""Least loss that is divided by: a text whose every token is certain has loss 0."""


@dataclass(frozen=True, kw_only=True)
class Ratio(ReferenceAttack):
    """Reference NLL divided by target NLL. Where the target's is 0 the score is very large, not infinite."""

    name = "ratio"
    needs = Needs(reference=True)
    source = "loss ratio of memaudit 0.2, turned; calibration after Carlini et al. 2021, arXiv 2012.07805"

    def score(self, view: View) -> float:
        target, reference = -view.signals.logprob.mean(), -view.reference_signals.logprob.mean()
        return float(divide(float(reference), float(target)))


def divide(above: float, below: float) -> float:
    """Divide two losses; a loss of 0 below gives the largest finite number, 0 over 0 gives 1.

    Example:
        >>> divide(1.0, 2.0), divide(0.0, 0.0), divide(1.0, 0.0) > 1e300
        (0.5, 1.0, True)
    """
    if below <= SMALLEST:
        return 1.0 if above <= SMALLEST else float(np.finfo(np.float64).max)
    return min(above / below, float(np.finfo(np.float64).max))
