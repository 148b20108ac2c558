"""surp: the mean log-probability of surprising tokens, where the model was certain but wrong (2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memaudit.attacks.base import Attack, Needs, View


@dataclass(frozen=True, kw_only=True)
class Surp(Attack):
    """Mean log-probability over tokens of low entropy and low probability.

    A token is surprising when its entropy is below ``max_entropy`` and its log-probability at or below the
    ``percent``-th percentile of its own text. Where no token is, the one of lowest entropy among those of low
    probability stands for them, so that the score exists for every text.

    Args:
        max_entropy: nats.
        percent: in (0, 100].
    """

    max_entropy: float = 2.0
    percent: float = 20.0

    name = "surp"
    needs = Needs(distribution=True)
    source = "Zhang and Wu 2024, arXiv 2407.21248"

    def __post_init__(self) -> None:
        self._check(self.max_entropy > 0, "max_entropy must be above 0")
        self._check(0 < self.percent <= 100, "percent must be in (0, 100]")

    def score(self, view: View) -> float:
        logprob, entropy = view.signals.logprob, view.signals.entropy
        improbable = logprob <= np.percentile(logprob, self.percent)
        surprising = improbable & (entropy < self.max_entropy)
        if not surprising.any():
            surprising = improbable & (entropy == entropy[improbable].min())
        return float(logprob[surprising].mean())
