"""What the signals prove about greedy decoding beyond the verbatim verdict, so that it need not be run.

Up to the first token that is not the argmax greedy decoding emits the true tokens, and there it emits the
argmax, which the signals hold. What comes after is unknown. Three things follow, each checked against real
generation:

1. The argmax there ends the text: the output is known whole, and so are BLEU and edit distance.
2. So much of the suffix came before it that whatever follows is within the edit distance: near-verbatim.
3. Over token ids, for suffixes below 1 / 0.1 = 10 tokens: the wrong token occurs nowhere in the suffix and
   lies in every window, so each window needs an edit, which is above the limit; and BLEU stays at most 0.75
   even if all other n-grams match: not near-verbatim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from memaudit.extraction.matching import (
    BLEU_ABOVE,
    DISTANCE_AT_MOST,
    Match,
    match_ids,
    match_text,
)

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, for example ``tokenizer.decode``."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A near-verbatim verdict; ``match`` holds the figures where the output is known whole."""

    near: bool
    match: Match | None


def compare(suffix: Sequence[int], output: Sequence[int], decode: Decode | None) -> Match:
    """Compare an output with the true suffix, as text where a decoder is given and over token ids else."""
    if decode is None:
        return match_ids(suffix, output)
    return match_text(decode(suffix), decode(output), reference_ids=suffix, generation_ids=output)


def decide(
    suffix: Sequence[int],
    n_hits: int,
    emitted: int,
    *,
    stop_ids: Collection[int] = (),
    slack: int = 4,
    decode: Decode | None = None,
) -> Verdict | None:
    """Return what the signals prove about a suffix that is not verbatim, or None where a generation is
    needed.

    Args:
        suffix: true token ids after the prefix, [m].
        n_hits: tokens at its start that greedy decoding emits, below m.
        emitted: the token that greedy decoding emits after them, ``suffix[n_hits]`` it is not.
        stop_ids: ids that end a generation.
        slack: tokens that a generation may have beyond m.
        decode: token ids to text; text is compared where it is given.

    Example:
        >>> decide(range(20), 18, 99).near  # at most 2 of 20 tokens can differ
        True
        >>> decide([1, 2, 3, 4], 1, 99, slack=0).near, decide(range(20), 5, 99) is None
        (False, True)
    """
    if emitted in stop_ids:
        match = compare(suffix, suffix[:n_hits], decode)
        return Verdict(match.near, match)
    if _most_distance(suffix, n_hits, decode) <= DISTANCE_AT_MOST:
        return Verdict(True, None)
    if decode is None and _cannot_match(suffix, n_hits, emitted, slack):
        return Verdict(False, None)
    return None


def _most_distance(suffix: Sequence[int], n_hits: int, decode: Decode | None) -> float:
    """Return the largest edit distance that the first window can have, whatever follows the hits.

    The window is as long as the suffix and starts with the same units; replacing all others is enough.
    """
    if decode is None:
        return (len(suffix) - n_hits) / len(suffix)
    whole = decode(suffix)
    # Stripping may take other white space off the output than off the suffix: count on the stripped text.
    wanted, known = whole.strip(), decode(suffix[:n_hits])
    if not wanted or not whole.startswith(known) or whole != whole.rstrip():
        return 1.0  # the decoder merges over the boundary: nothing is proved
    kept = len(known.strip())
    return (len(wanted) - kept) / len(wanted)


def _cannot_match(suffix: Sequence[int], n_hits: int, emitted: int, slack: int) -> bool:
    """Say whether no continuation can bring BLEU or edit distance within its limit."""
    size = len(suffix)
    if emitted in suffix or n_hits < slack or 1.0 / size <= DISTANCE_AT_MOST:
        return False
    # A generation may end early, anywhere after the wrong token.
    return all(_most_bleu(size, length, n_hits) <= BLEU_ABOVE for length in range(n_hits + 1, size + 1))


def _most_bleu(size: int, length: int, wrong_at: int) -> float:
    """Return the largest BLEU of ``length`` tokens against ``size`` when the one at ``wrong_at`` matches
    nothing."""
    orders = min(4, length)
    logs = 0.0
    for order in range(1, orders + 1):
        total = length - order + 1
        lost = (
            min(wrong_at, total - 1) - max(0, wrong_at - order + 1) + 1
        )  # n-grams that hold the wrong token
        if lost == total:
            return 0.0
        logs += math.log((total - lost) / total)
    return math.exp(logs / orders + min(0.0, 1.0 - size / length))
