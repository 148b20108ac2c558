"""mink: the mean of a text's lowest token log-probabilities (Shi et al. 2024, arXiv 2310.16789)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memaudit.attacks.base import Attack, View


def lowest_mean(values: NDArray[np.float64], ratio: float) -> float:
    """Return the mean of the k lowest values, k = max(1, int(ratio * n)).

    The published code takes int(ratio * n), which is 0 for short texts; elsewhere the two agree.
    (The canary scorer of memaudit 0.2 takes the ceiling.)

    Args:
        values: shape (n,), n at least 1.
        ratio: share of the values, in (0, 1].

    Example:
        >>> lowest_mean(np.array([-3.0, -1.0, -2.0]), 0.7)
        -2.5
    """
    k = max(1, int(ratio * len(values)))
    return float(np.partition(values, k - 1)[:k].mean())


@dataclass(frozen=True, kw_only=True)
class MinK(Attack):
    """Mean of the k = max(1, int(ratio * T)) lowest token log-probabilities.

    Args:
        ratio: share of the tokens, in (0, 1].
    """

    ratio: float = 0.2

    name = "mink"
    source = "Shi et al. 2024, arXiv 2310.16789"

    def __post_init__(self) -> None:
        self._check(0 < self.ratio <= 1, "ratio must be in (0, 1]")

    def score(self, view: View) -> float:
        return lowest_mean(view.signals.logprob, self.ratio)
