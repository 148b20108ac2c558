"""pac: how far a text is polarised, against itself with words swapped (Ye et al. 2024, arXiv 2405.11930)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from memaudit.attacks.base import TEXT, Attack, Needs, Record, UnscorableError, Variant, View

if TYPE_CHECKING:
    from memaudit.attacks.tools import Tools


def polarised_distance(logprob: NDArray[np.float64], high: float = 0.05, low: float = 0.3) -> float:
    """Return the mean of the highest share of the log-probabilities minus the mean of the lowest.

    Example:
        >>> polarised_distance(np.array([-1.0, -4.0, -2.0]))
        3.0
    """
    ordered = np.sort(logprob)
    top, bottom = max(1, int(high * len(ordered))), max(1, int(low * len(ordered)))
    return float(ordered[-top:].mean() - ordered[:bottom].mean())


def swap_words(words: list[str], swaps: int, random: np.random.Generator) -> list[str]:
    """Return the words after swaps of two at random places.

    Example:
        >>> sorted(swap_words(["a", "b", "c"], 2, np.random.default_rng(0)))
        ['a', 'b', 'c']
    """
    result = list(words)
    for _ in range(swaps):
        i, j = random.choice(len(result), size=2, replace=False)
        result[i], result[j] = result[j], result[i]
    return result


@dataclass(frozen=True, kw_only=True)
class PAC(Attack):
    """Mean polarised distance of n word-swapped texts minus the text's own.

    Args:
        n: swapped texts.
        alpha: swaps as a share of the words, above 0; at least one swap is made.
    """

    n: int = 5
    alpha: float = 0.3

    name = "pac"
    needs = Needs(variants=True)
    source = "Ye et al. 2024, arXiv 2405.11930"

    def __post_init__(self) -> None:
        self._check(self.n >= 1, "n must be at least 1")
        self._check(self.alpha > 0, "alpha must be above 0")

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        words = tools.words(record.text)
        if len(words) < 2:
            raise UnscorableError("the text has fewer than two words to swap")
        joint = " " if tools.spaced else ""
        swaps = max(1, int(self.alpha * len(words)))
        made = {}
        for i in range(self.n):
            # Seeded by the text alone, not by how many are asked for: n = 5 shares its first two with n = 2.
            random = tools.random(self.name, record.text, i)
            made[f"swapped/{i}"] = tools.variant(joint.join(swap_words(words, swaps, random)))
        return {TEXT: record.variant, **made}

    def score(self, view: View) -> float:
        swapped = [polarised_distance(one.logprob) for one in view.variants("swapped")]
        return float(np.mean(swapped)) - polarised_distance(view.signals.logprob)
