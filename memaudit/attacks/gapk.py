"""gapk: the lowest moving means of the gap to the top-1 token (Kwak et al. 2026, arXiv 2601.19936)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memaudit.attacks.base import Attack, Needs, View
from memaudit.attacks.mink import lowest_mean
from memaudit.attacks.minkpp import spread


@dataclass(frozen=True, kw_only=True)
class GapK(Attack):
    """Mean of the lowest share of the moving mean of (log p(x_t) - max_v log p(v)) / std_t.

    Args:
        ratio: share of the windows, in (0, 1]; k = max(1, int(ratio * windows)).
        window: tokens of the moving mean; a shorter text is not smoothed.
    """

    ratio: float = 0.2
    window: int = 3

    name = "gapk"
    needs = Needs(distribution=True)
    source = "Kwak et al. 2026, arXiv 2601.19936"

    def __post_init__(self) -> None:
        self._check(0 < self.ratio <= 1, "ratio must be in (0, 1]")
        self._check(self.window >= 1, "window must be at least 1")

    def score(self, view: View) -> float:
        signals = view.signals
        gaps = spread(signals.logprob - signals.top1_logprob, signals.std)
        if len(gaps) >= self.window:
            gaps = np.lib.stride_tricks.sliding_window_view(gaps, self.window).mean(axis=1)
        return lowest_mean(gaps, self.ratio)
