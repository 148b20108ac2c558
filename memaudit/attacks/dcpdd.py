"""dcpdd: probabilities weighed by how rare each token is in a corpus (Zhang et al. 2024, arXiv 2409.14781)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.attacks.base import Attack, Needs, UnscorableError, View
from memaudit.errors import ConfigurationError


def count_tokens(texts: Iterable[str], tokenizer: Any, vocabulary: int) -> NDArray[np.int64]:
    """Count each token id over a corpus, as one tokenizer cuts it.

    Args:
        texts: the corpus.
        tokenizer: the target's.
        vocabulary: number of ids, the model's.

    Returns:
        int64 [vocabulary].
    """
    counts = np.zeros(vocabulary, dtype=np.int64)
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        counts += np.bincount(np.asarray(ids, dtype=np.int64), minlength=vocabulary)[:vocabulary]
    return counts


def calibrated_mean(
    token_ids: NDArray[np.int64], logprob: NDArray[np.float64], counts: NDArray[np.int64], alpha: float
) -> float:
    """Return the mean over first occurrences of min(alpha, p(x_t) log(1 / f(x_t))).

    Args:
        token_ids: int64 [n].
        logprob: float64 [n], natural logarithms.
        counts: int64 [vocabulary]; f is their Laplace-smoothed share.
        alpha: upper limit of a token's contribution.

    Example:
        >>> calibrated_mean(np.array([0, 0, 1]), np.log([0.5, 0.1, 1.0]), np.array([0, 0]), 10.0)
        0.5198...
    """
    _, first = np.unique(token_ids, return_index=True)
    share = (counts + 1) / (counts.sum() + len(counts))
    terms = np.exp(logprob[first]) * -np.log(share[token_ids[first]])
    return float(np.minimum(terms, alpha).mean())


@dataclass(frozen=True, kw_only=True)
class DCPDD(Attack):
    """Divergence-based calibration. Fast-MIA's takes raw counts for frequencies, which turns the calibration round.

    Args:
        alpha: upper limit of a token's contribution, above 0.
    """

    alpha: float = 0.01

    name = "dcpdd"
    needs = Needs(corpus=True)
    source = "Zhang et al. 2024, arXiv 2409.14781"

    def __post_init__(self) -> None:
        self._check(self.alpha > 0, "alpha must be above 0")

    def score(self, view: View) -> float:
        signals = view.signals
        counts: Sequence[int] | NDArray[np.int64] | None = view.token_counts
        if counts is None:
            raise UnscorableError("no token counts of a reference corpus")
        array = np.asarray(counts, dtype=np.int64)
        if int(signals.token_ids.max()) >= len(array):
            raise ConfigurationError(
                f"token counts of {len(array)} ids do not cover id {int(signals.token_ids.max())}; "
                "count the corpus with the target's own tokenizer"
            )
        return calibrated_mean(signals.token_ids, signals.logprob, array, self.alpha)
