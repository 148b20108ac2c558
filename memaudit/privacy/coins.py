"""The coin-flip partition: which records are canaries, and which of them the coin put into training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError, InputTypeError
from memaudit.privacy.scores import CanaryScores, as_identifiers
from memaudit.seeds import derive_seed
from memaudit.stats.arrays import as_coins, check_rate

_IMPLAUSIBLE = 1e-9


class CoinFlip:
    """A coin-flip partition of a dataset; made by :func:`coin_flip`, or by hand from coins that were drawn elsewhere.

    Attributes:
        canary_indices: dataset indices of the canaries, shape (m,).
        included: the coins, shape (m,).
        dataset_size: number of records the canaries were chosen from.
        probability: of inclusion; the one-run bounds hold for 1/2 alone and refuse any other.

    Raises:
        ConfigurationError: identifiers out of range, lengths that differ, coins that cannot be of that probability.

    Example:
        >>> flip = CoinFlip([2, 0], [True, False], dataset_size=4)
        >>> flip.in_indices.tolist(), flip.out_indices.tolist(), flip.train_indices(4)
        ([2], [0], [1, 2, 3])
    """

    __slots__ = ("canary_indices", "dataset_size", "included", "probability")
    canary_indices: NDArray[np.int64]
    included: NDArray[np.bool_]
    dataset_size: int
    probability: float

    def __init__(
        self, canary_indices: Any, included: Any, dataset_size: int, probability: float = 0.5
    ) -> None:
        names = as_identifiers(canary_indices, "canary_indices").copy()
        coins = as_coins(included).copy()
        size, p = int(dataset_size), check_rate(probability, "probability")
        if names.size != coins.size:
            raise ConfigurationError(
                f"{names.size} canary_indices and {coins.size} coins; give one coin per canary"
            )
        if names.size and (int(names.min()) < 0 or int(names.max()) >= size):
            raise ConfigurationError(
                f"canary_indices leave the dataset of {size} records; give 0 <= index < {size}"
            )
        _check_plausible(coins, p)
        names.flags.writeable = False
        coins.flags.writeable = False
        for name, value in (
            ("canary_indices", names),
            ("included", coins),
            ("dataset_size", size),
            ("probability", p),
        ):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("CoinFlip is immutable; draw the coins once, before training")

    def __reduce__(self) -> tuple[Any, ...]:
        return CoinFlip, (
            np.array(self.canary_indices),
            np.array(self.included),
            self.dataset_size,
            self.probability,
        )

    def __repr__(self) -> str:
        return (
            f"CoinFlip of {self.num_canaries} canaries among {self.dataset_size} records: "
            f"{self.in_indices.size} in, {self.out_indices.size} out"
        )

    @property
    def num_canaries(self) -> int:
        """Number of canaries."""
        return int(self.canary_indices.size)

    @property
    def in_indices(self) -> NDArray[np.int64]:
        """Dataset indices of the canaries that were included."""
        return self.canary_indices[self.included]

    @property
    def out_indices(self) -> NDArray[np.int64]:
        """Dataset indices of the canaries that were left out."""
        return self.canary_indices[~self.included]

    def train_indices(self, dataset_size: int) -> list[int]:
        """Return every index but those of the canaries left out, for ``dataset.select``.

        Raises:
            ConfigurationError: a size other than the dataset's, which would train on another partition.
        """
        if int(dataset_size) != self.dataset_size:
            raise ConfigurationError(
                f"dataset_size is {dataset_size}, the partition was made for {self.dataset_size} records; "
                "use the same dataset"
            )
        keep = np.ones(self.dataset_size, dtype=np.bool_)
        keep[self.out_indices] = False
        return [int(index) for index in np.nonzero(keep)[0]]

    def align(self, scores: CanaryScores) -> NDArray[np.float64]:
        """Return the scores in the order of ``canary_indices``, joined by identifier.

        Raises:
            InputTypeError: a bare array, which says nothing about whose scores it holds.
            ConfigurationError: canaries without a score, or scores of something else.
        """
        if not isinstance(scores, CanaryScores):
            raise InputTypeError(
                f"scores are of type {type(scores).__name__}; attest their canaries with "
                "canary_scores(scores, canary_indices=...)"
            )
        order = np.argsort(scores.canary_indices)
        ordered = scores.canary_indices[order]
        wanted = np.sort(self.canary_indices)
        if not np.array_equal(ordered, wanted):
            missing = np.setdiff1d(wanted, ordered).size
            foreign = np.setdiff1d(ordered, wanted).size
            raise ConfigurationError(
                f"{missing} canaries have no score and {foreign} scores are of no canary; "
                "score exactly the canaries of this partition"
            )
        return scores.scores[order[np.searchsorted(ordered, self.canary_indices)]]

    def split_scores(self, scores: CanaryScores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the scores of included and of left-out canaries, joined by identifier.

        Raises:
            InputTypeError: a bare array.
            ConfigurationError: identifiers that do not cover the partition one to one.
        """
        aligned = self.align(scores)
        return aligned[self.included], aligned[~self.included]


def coin_flip(
    dataset: Any, *, num_canaries: int, key: int | np.random.Generator, candidate_indices: Any | None = None
) -> CoinFlip:
    """Choose canaries uniformly without replacement and flip a fair coin for each.

    Do it before training and independently of it. The canaries must not duplicate each other or other records.

    Args:
        dataset: anything with ``len()``.
        num_canaries: number of canaries, at least 1.
        key: an integer seed, or a numpy Generator from which one is drawn; selection and coins get streams of
            their own.
        candidate_indices: distinct indices that may become canaries, fixed beforehand; None for the whole dataset.

    Returns:
        A CoinFlip.

    Raises:
        ConfigurationError: a number or a pool that does not fit.
        InputTypeError: a key that is no integer and no Generator.

    Example:
        >>> flip = coin_flip(range(100), num_canaries=10, key=42)
        >>> flip.num_canaries, len(flip.train_indices(100)) == 100 - flip.out_indices.size
        (10, True)
    """
    root = _root_seed(key)
    size = len(dataset)
    if isinstance(num_canaries, bool) or int(num_canaries) != num_canaries or num_canaries < 1:
        raise ConfigurationError(f"num_canaries is {num_canaries}; give an integer of at least 1")
    if candidate_indices is None:
        pool = np.arange(size, dtype=np.int64)
        what = "the dataset"
    else:
        pool = np.sort(as_identifiers(candidate_indices, "candidate_indices"))
        what = "the candidate pool"
        if pool.size and (int(pool[0]) < 0 or int(pool[-1]) >= size):
            raise ConfigurationError(
                f"candidate_indices leave the dataset of {size} records; give 0 <= index < {size}"
            )
    if num_canaries > pool.size:
        raise ConfigurationError(
            f"num_canaries is {num_canaries}, {what} holds {pool.size}; give at most that many"
        )
    chooser = np.random.default_rng(derive_seed(root, "privacy", "canary-selection"))
    flipper = np.random.default_rng(derive_seed(root, "privacy", "coins"))
    chosen = chooser.choice(pool, size=int(num_canaries), replace=False)
    return CoinFlip(chosen, flipper.integers(0, 2, size=int(num_canaries)).astype(np.bool_), size)


def _root_seed(key: Any) -> int:
    if isinstance(key, np.random.Generator):
        return int(key.integers(0, 2**63 - 1))
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return int(key)
    raise InputTypeError(f"key is of type {type(key).__name__}; give an integer seed or a numpy Generator")


def _check_plausible(coins: NDArray[np.bool_], probability: float) -> None:
    """Refuse coins that a run of that probability would show less than once in 1e9: a p left undeclared."""
    from scipy import special

    m, heads = coins.size, int(coins.sum())
    at_most = float(special.betaincc(heads + 1, m - heads, probability)) if heads < m else 1.0
    at_least = float(special.betainc(heads, m - heads + 1, probability)) if heads > 0 else 1.0
    if min(at_most, at_least) < _IMPLAUSIBLE:
        raise ConfigurationError(
            f"{heads} of {m} coins are heads, which coins of probability {probability:g} do not show; "
            "draw a fair coin per canary, or declare the probability"
        )
