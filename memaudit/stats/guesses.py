"""Label-blind guesses: the k_plus highest scores are guessed IN, the k_minus lowest OUT, the rest are passed over.

Which canaries are guessed depends on the ranking of the scores and on numbers fixed beforehand, never on the
coins, so guessing is a post-processing of what the mechanism released and the theorems apply without correction.
Several pairs (k_plus, k_minus) fixed beforehand share the significance equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import Bools, as_coins, as_scores, has_repeats

Pair = tuple[int, int]

FRACTIONS: tuple[tuple[float, float], ...] = (
    (0.5, 0.5),
    (0.25, 0.25),
    (0.1, 0.1),
    (0.05, 0.05),
    (0.1, 0.0),
    (0.05, 0.0),
    (0.02, 0.0),
    (0.01, 0.0),
)
"""Shares of the canaries guessed IN and OUT by the eight pairs that are pre-registered by default.

Both sides for leakage that is spread over all canaries, the top alone for a few canaries memorised strongly.
"""

GAUSSIAN_FRACTIONS: tuple[tuple[float, float], ...] = ((0.5, 0.5), (0.25, 0.25), (0.1, 0.1))
"""The three pairs pre-registered for bounds on mu: Gaussian channels leak on both sides alike."""


@dataclass(frozen=True)
class Guesses:
    """Outcome of one pair: how many guesses of each kind were made and how many of all were right."""

    k_plus: int
    k_minus: int
    correct: int

    @property
    def made(self) -> int:
        """Number of guesses, abstentions left out."""
        return self.k_plus + self.k_minus

    @property
    def errors(self) -> int:
        """Number of wrong guesses."""
        return self.made - self.correct


def preregistered_pairs(m: int, fractions: Sequence[tuple[float, float]] = FRACTIONS) -> tuple[Pair, ...]:
    """Pairs (k_plus, k_minus) for m canaries from shares fixed beforehand; pairs that coincide are kept once.

    Args:
        m: number of canaries, at least 1.
        fractions: shares guessed IN and OUT; (0.5, 0.5) guesses every canary.

    Returns:
        Distinct pairs with at least one guess, in the order of the shares.

    Raises:
        ConfigurationError: shares out of range or adding up to more than 1.

    Example:
        >>> preregistered_pairs(100, [(0.5, 0.5), (0.1, 0.0)])
        ((50, 50), (10, 0))
    """
    pairs: list[Pair] = []
    for high, low in fractions:
        if not (0.0 <= high <= 1.0 and 0.0 <= low <= 1.0 and high + low <= 1.0 + 1e-12):
            raise ConfigurationError(
                f"shares ({high}, {low}); give two numbers from 0 to 1 with a sum of at most 1"
            )
        k_plus = int(high * m + 1e-9)
        k_minus = m - k_plus if abs(high + low - 1.0) < 1e-12 else int(low * m + 1e-9)
        if k_plus + k_minus > 0 and (k_plus, k_minus) not in pairs:
            pairs.append((k_plus, k_minus))
    return tuple(pairs)


def check_pairs(pairs: Sequence[Pair], m: int) -> tuple[Pair, ...]:
    """Return the pairs as integers if each fits m canaries and none occurs twice.

    Example:
        >>> check_pairs([(5, 5)], 10)
        ((5, 5),)
    """
    checked: list[Pair] = []
    for pair in pairs:
        try:
            k_plus, k_minus = (int(k) for k in pair)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"guesses hold {pair!r}; give pairs (k_plus, k_minus) of integers"
            ) from error
        if (k_plus, k_minus) != tuple(pair) or min(k_plus, k_minus) < 0 or not 0 < k_plus + k_minus <= m:
            raise ConfigurationError(
                f"guesses ({pair[0]}, {pair[1]}) for {m} canaries; give 0 < k_plus + k_minus <= m"
            )
        if (k_plus, k_minus) in checked:
            raise ConfigurationError(f"guesses ({k_plus}, {k_minus}) are given twice; give each pair once")
        checked.append((k_plus, k_minus))
    if not checked:
        raise ConfigurationError("no guesses were given; give at least one pair (k_plus, k_minus)")
    return tuple(checked)


def ranking(scores: Any, ids: Any = None) -> NDArray[np.intp]:
    """Positions from the lowest score to the highest; equal scores in the order of their ids, never of the coins.

    Args:
        scores: shape (m,), higher = more member-like.
        ids: shape (m,), distinct and sortable; None breaks ties by position.

    Returns:
        Positions, shape (m,).

    Raises:
        ConfigurationError: NaN scores, lengths that differ, ids that repeat.

    Example:
        >>> ranking([1.0, 0.0, 1.0], ids=["b", "c", "a"]).tolist()
        [1, 2, 0]
    """
    values = as_scores(scores, "scores")
    if ids is None:
        return np.argsort(values, kind="stable")
    names = np.asarray(ids)
    if names.shape != values.shape:
        raise ConfigurationError(f"{values.size} scores and {names.size} ids; give one id per score")
    if has_repeats(names):
        raise ConfigurationError("an id occurs twice; give every canary an id of its own")
    return np.lexsort((names, values))


def guess(order: NDArray[np.intp], coins: Any, pair: Pair) -> Guesses:
    """Count the right guesses of one pair, given the ranking.

    Example:
        >>> guess(ranking([0.1, 0.2, 0.3, 0.4]), [0, 1, 0, 1], (1, 1)).correct
        2
    """
    included: Bools = as_coins(coins)
    k_plus, k_minus = pair
    right_out = k_minus - int(np.count_nonzero(included[order[:k_minus]]))
    right_in = int(np.count_nonzero(included[order[order.size - k_plus :]]))
    return Guesses(k_plus, k_minus, right_in + right_out)


def guess_at_threshold(scores: Any, coins: Any, threshold: float) -> Guesses:
    """Guess IN at or above a threshold fixed beforehand and OUT below it, without abstention.

    Example:
        >>> guess_at_threshold([0.1, 0.9], [0, 1], 0.5)
        Guesses(k_plus=1, k_minus=1, correct=2)
    """
    values, included = as_scores(scores, "scores"), as_coins(coins)
    cut = float(threshold)
    if np.isnan(cut):
        raise ConfigurationError("threshold is NaN; give a number fixed before the coins were looked at")
    guessed_in = values >= cut
    k_plus = int(np.count_nonzero(guessed_in))
    return Guesses(k_plus, values.size - k_plus, int(np.count_nonzero(guessed_in == included)))
