"""Near-verbatim matching: BLEU above its limit, or a normalised edit distance at most its limit.

BLEU counts words where the text has them and token ids where it has not (unspaced scripts, fewer than four
words); the edit distance looks at every window of the generation. The limits are those in use since Ippolito
et al. 2022 (arXiv:2210.17546): BLEU above 0.75, edit distance at most 0.1. sacrebleu and rapidfuzz count.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

BLEU_ABOVE = 0.75
DISTANCE_AT_MOST = 0.1
FEWEST_WORDS = 4
"""BLEU counts n-grams up to 4: a text of fewer words has too few of them to tell near from far."""


@dataclass(frozen=True, slots=True)
class Match:
    """How near a generation came to the suffix: BLEU and normalised edit distance, each in [0, 1]."""

    bleu: float
    edit_distance: float

    @property
    def near(self) -> bool:
        """Whether either limit is met."""
        return self.bleu > BLEU_ABOVE or self.edit_distance <= DISTANCE_AT_MOST


NO_MATCH = Match(bleu=0.0, edit_distance=1.0)
"""What a blank suffix gets: everything contains it, so it proves nothing."""


def contains(reference: str, generation: str) -> bool:
    """Say whether a generation holds the reference, white space around it apart; a blank one is no hit.

    Example:
        >>> contains(" b c", "a b c d"), contains("  ", "anything")
        (True, False)
    """
    wanted = reference.strip()
    return bool(wanted) and wanted in generation


def bleu(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> float:
    """Return sentence BLEU-4 over words or token ids.

    N-gram orders that the hypothesis is too short to have are left out (effective order); an order without a
    match gives 0: no smoothing.

    Args:
        reference: words or ids of the true suffix.
        hypothesis: words or ids that were generated.

    Returns:
        BLEU in [0, 1]; 0 where either is empty.

    Example:
        >>> bleu([7, 8, 9], [7, 8, 9]), round(bleu(list("abcdefgh"), list("abcdef")), 6)
        (1.0, 0.716531)
    """
    if not reference or not hypothesis:
        return 0.0
    # sacrebleu splits at white space: give it names of the units, so that no unit can hold a space.
    names: dict[Hashable, str] = {}
    first, second = (
        " ".join(names.setdefault(u, str(len(names))) for u in part) for part in (reference, hypothesis)
    )
    score = float(_metric().sentence_score(second, [first]).score)
    return min(1.0, score / 100.0) if score < 100.0 - 1e-9 else 1.0


def text_bleu(
    reference: str,
    hypothesis: str,
    *,
    reference_ids: Sequence[int] = (),
    hypothesis_ids: Sequence[int] = (),
) -> float:
    """Return BLEU over words, or over token ids where the reference has fewer than four words.

    Without ids the units are characters there.

    Example:
        >>> text_bleu("alpha beta gamma", "alpha beta gamma"), text_bleu("これは秘密です", "これは秘密です")
        (1.0, 1.0)
    """
    words = reference.split()
    if len(words) >= FEWEST_WORDS:
        return bleu(words, hypothesis.split())
    if reference_ids:
        return bleu(reference_ids, hypothesis_ids)
    return bleu(list(reference.strip()), list(hypothesis.strip()))


def window_distance(
    reference: Sequence[Hashable], generation: Sequence[Hashable], *, starts: int | None = None
) -> float:
    """Return the smallest normalised Levenshtein distance to any window of the generation.

    Args:
        reference: characters or token ids of the true suffix, length m.
        generation: characters or token ids that were generated; every window of length m is looked at, the
            last one included, or the whole where it is shorter.
        starts: the last position at which a window may start; None for all.

    Returns:
        Edits over m, in [0, 1]; 1 where the reference is empty.

    Example:
        >>> window_distance("abcdefgh", "xxabcdefghyy"), window_distance("abcdefghij", "abc")
        (0.0, 0.7)
    """
    from rapidfuzz.distance import Levenshtein

    size = len(reference)
    if size == 0:
        return 1.0
    best = size
    last = max(0, len(generation) - size)
    for start in range((last if starts is None else min(last, starts)) + 1):
        window = generation[start : start + size]
        # Beyond the cutoff rapidfuzz stops counting and answers cutoff + 1.
        best = min(best, int(Levenshtein.distance(reference, window, score_cutoff=best)))
        if best == 0:
            break
    return best / size


def match_ids(reference: Sequence[int], generation: Sequence[int]) -> Match:
    """Compare token ids: BLEU over the first len(reference) of them, edit distance over every window.

    Example:
        >>> match_ids([1, 2, 3, 4], [1, 2, 3, 4, 9]).near
        True
    """
    if not reference:
        return NO_MATCH
    return Match(
        bleu=bleu(reference, generation[: len(reference)]),
        edit_distance=window_distance(reference, generation),
    )


def match_text(
    reference: str,
    generation: str,
    *,
    reference_ids: Sequence[int],
    generation_ids: Sequence[int],
    starts: int | None = None,
) -> Match:
    """Compare text: BLEU over as many words as the reference has, edit distance over characters.

    ``starts`` is the last character, after white space, at which a window may start; None for all.

    Example:
        >>> match_text("  ", "anything", reference_ids=[1], generation_ids=[2]).near
        False
    """
    wanted = reference.strip()
    if not wanted:
        return NO_MATCH
    words = generation.split()[: len(wanted.split())]
    return Match(
        bleu=text_bleu(
            wanted,
            " ".join(words),
            reference_ids=reference_ids,
            hypothesis_ids=generation_ids[: len(reference_ids)],
        ),
        edit_distance=window_distance(wanted, generation.strip(), starts=starts),
    )


@lru_cache(maxsize=1)
def _metric() -> Any:
    """Return sacrebleu's BLEU without tokenizer and smoothing; made once, since its import takes a while."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="none", smooth_method="none", effective_order=True)
