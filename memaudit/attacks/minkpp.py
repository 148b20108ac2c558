"""minkpp: Min-K%++, the lowest standardised token log-probabilities (Zhang et al. 2025, arXiv 2404.02936)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memaudit.attacks.base import Attack, Needs, View
from memaudit.attacks.mink import lowest_mean
from memaudit.signals import TokenSignals


def standardised(signals: TokenSignals) -> NDArray[np.float64]:
    """Return z_t = (log p(x_t) - mean_t) / std_t, shape (n_targets,); 0 where the distribution has no spread.

    Example:
        >>> one = TokenSignals.from_lists(token_ids=[3, 4], logprob=[-0.5, -1.5], mean=[-1.0, -1.5],
        ...     std=[0.5, 0.0], top1_logprob=[-0.5, -0.2], top1_id=[3, 9], rank=[0, 1])
        >>> standardised(one).tolist()
        [1.0, 0.0]
    """
    return spread(signals.logprob - signals.mean, signals.std)


def spread(difference: NDArray[np.float64], std: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide by the standard deviation, 0 where it is 0."""
    return np.divide(difference, std, out=np.zeros_like(difference), where=std > 0)


@dataclass(frozen=True, kw_only=True)
class MinKPP(Attack):
    """Mean of the k = max(1, int(ratio * T)) lowest z_t.

    Args:
        ratio: share of the tokens, in (0, 1].
    """

    ratio: float = 0.2

    name = "minkpp"
    needs = Needs(distribution=True)
    source = "Zhang et al. 2025, arXiv 2404.02936"

    def __post_init__(self) -> None:
        self._check(0 < self.ratio <= 1, "ratio must be in (0, 1]")

    def score(self, view: View) -> float:
        return lowest_mean(standardised(view.signals), self.ratio)
