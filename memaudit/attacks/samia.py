"""samia: how much of a text's second half the model samples from its first (Kaneko et al. 2025, arXiv 2404.11262)."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memaudit.attacks.base import Attack, Generation, Needs, Record, UnscorableError, View

if TYPE_CHECKING:
    from memaudit.attacks.tools import Tools


def rouge1_recall(reference: Sequence[str], candidate: Sequence[str]) -> float:
    """Return the share of the reference's words that the candidate has, each as often as it has it.

    Example:
        >>> rouge1_recall(["a", "b", "b", "c"], ["b", "b", "b", "a"])
        0.75
    """
    if not reference:
        return 0.0
    common = Counter(reference) & Counter(candidate)
    return sum(common.values()) / len(reference)


def overlap(reference: Sequence[str], candidates: Sequence[Sequence[str]], *, weigh: bool) -> float:
    """Return the mean ROUGE-1 recall of the candidates, each times its compressed size where ``weigh`` is set."""
    sizes = [len(zlib.compress(" ".join(one).encode())) if weigh else 1 for one in candidates]
    return float(
        np.mean([rouge1_recall(reference, one) * size for one, size in zip(candidates, sizes, strict=True)])
    )


@dataclass(frozen=True, kw_only=True)
class SaMIA(Attack):
    """Mean ROUGE-1 recall of the text's second part by sampled continuations of its first, by words.

    Each continuation is cut to the length of the second part, and its recall is multiplied by the bytes of the
    zlib-compressed continuation where ``zlib`` is set. Every sample has its own seed.

    Args:
        n: samples a text.
        prefix: share of the words that is the prompt, in (0, 1).
        temperature, top_k: of the sampling.
        max_new_tokens: tokens of a continuation at most; it also ends once it is as long as the second part.
        zlib: whether recalls are weighed by the compressed size.
    """

    n: int = 5
    prefix: float = 0.5
    temperature: float = 1.0
    top_k: int = 50
    max_new_tokens: int = 1024
    zlib: bool = True

    name = "samia"
    needs = Needs(text=True, generations=True)
    source = "Kaneko et al. 2025, arXiv 2404.11262"

    def __post_init__(self) -> None:
        self._check(self.n >= 1 and self.max_new_tokens >= 1, "n and max_new_tokens must be at least 1")
        self._check(0 < self.prefix < 1, "prefix must be in (0, 1)")
        self._check(self.temperature > 0 and self.top_k >= 0, "temperature must be above 0, top_k at least 0")

    def generation(self, record: Record, tools: Tools) -> Generation:
        words = tools.words(record.text)
        cut = int(len(words) * self.prefix)
        if cut < 1 or cut >= len(words):
            raise UnscorableError("the text has too few words for a first and a second part")
        prompt = (" " if tools.spaced else "").join(words[:cut])
        ids = tools.bos + tools.encode(prompt)
        room = tools.max_length - len(ids)
        if room < 1:
            raise UnscorableError("the first part fills the context")
        return Generation(
            prompt_ids=ids,
            seeds=tuple(tools.seed_for(self.name, record.text, i) for i in range(self.n)),
            max_new_tokens=min(self.max_new_tokens, room),
            max_words=len(words) - cut,
            spaced=tools.spaced,
            temperature=self.temperature,
            top_k=self.top_k,
        )

    def score(self, view: View) -> float:
        if view.text is None or view.generation is None:
            raise UnscorableError("no text or no samples")
        length, spaced = view.generation.max_words, view.generation.spaced

        def split(text: str) -> list[str]:
            return text.split() if spaced else [one for one in text if not one.isspace()]

        reference = split(view.text)[-length:]
        candidates = [split(one)[:length] for one in view.samples]
        return overlap(reference, candidates, weigh=self.zlib)
