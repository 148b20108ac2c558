"""What the signals, or the first tokens of a generation, prove about the near-verbatim verdict.

Up to the first token that is not the argmax greedy decoding emits the true tokens, and there it emits the
argmax, which the signals hold. What comes after is unknown, but it must make up for what is known:

1. The argmax there ends the text: the output is known whole, and so are BLEU and edit distance.
2. So much of the suffix came before it that whatever follows is within the edit distance: near-verbatim.
3. No continuation, however good, can bring a window within the edit distance, or BLEU above its limit: not
   near-verbatim. Seldom at the first wrong token, nearly always a few tokens later, so the same question ends
   a generation early.

Tests check all three against exhaustive continuations and against generations that run to their end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

from memaudit.extraction.matching import (
    BLEU_ABOVE,
    DISTANCE_AT_MOST,
    FEWEST_WORDS,
    Match,
    match_ids,
    match_text,
)

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, for example ``tokenizer.decode``."""

SLACK = 4
"""Tokens that a generation may have beyond the suffix: a window may start after the first so many tokens."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A near-verbatim verdict; ``match`` holds the figures where the output is known whole."""

    near: bool
    match: Match | None


def compare(
    suffix: Sequence[int], output: Sequence[int], *, slack: int = SLACK, decode: Decode | None = None
) -> Match:
    """Compare a whole output with the true suffix, as text where a decoder is given and over token ids else.

    Windows start within the output's first ``slack`` tokens: over token ids these are all there are.

    Example:
        >>> compare([1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5]).edit_distance
        0.0
    """
    if decode is None:
        return match_ids(suffix, output[: len(suffix) + slack])
    return match_text(
        decode(suffix),
        decode(output),
        reference_ids=suffix,
        generation_ids=output,
        starts=_starts(output, slack, decode),
    )


def decide(
    suffix: Sequence[int],
    n_hits: int,
    emitted: int,
    *,
    stop_ids: Collection[int] = (),
    slack: int = SLACK,
    decode: Decode | None = None,
) -> Verdict | None:
    """Return what the signals prove about a suffix that is not verbatim, or None where they prove nothing.

    Args:
        suffix: true token ids after the prefix, [m].
        n_hits: tokens at its start that greedy decoding emits, below m.
        emitted: the token that greedy decoding emits after them, which is not ``suffix[n_hits]``.
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
        match = compare(suffix, suffix[:n_hits], slack=slack, decode=decode)
        return Verdict(match.near, match)
    if _most_distance(suffix, n_hits, decode) <= DISTANCE_AT_MOST:
        return Verdict(True, None)
    if not still_possible(suffix, [*suffix[:n_hits], emitted], slack=slack, decode=decode):
        return Verdict(False, None)
    return None


def still_possible(
    suffix: Sequence[int], known: Sequence[int], *, slack: int = SLACK, decode: Decode | None = None
) -> bool:
    """Say whether some continuation of the tokens generated so far could still be near-verbatim.

    Args:
        suffix: true token ids after the prefix, [m].
        known: token ids generated so far; anything may follow, or nothing.
        slack: tokens that a generation may have beyond m.
        decode: token ids to text; text is compared where it is given.

    Returns:
        False only where :func:`compare` of every continuation is not near.

    Example:
        >>> still_possible(range(20), [0, 1, 99]), still_possible(range(20), range(50, 58))
        (True, False)
    """
    if len(known) <= slack:
        return True  # a window may start after all that is known
    if decode is None:
        return _distance_reachable(suffix, known, slack) or _bleu_reachable(suffix, known)
    wanted = decode(suffix).strip()
    # The last token's text may still change with the next one (parts of a character, merged white space).
    settled, whole = decode(known[:-1]).rstrip("\ufffd"), decode(known)
    if not wanted or not whole.startswith(settled):
        return bool(wanted)
    text = settled.lstrip()
    if _distance_reachable(wanted, text, _starts(known, slack, decode)):
        return True
    words = wanted.split()
    if len(words) < FEWEST_WORDS:
        return _bleu_reachable(suffix, known)
    complete = text.split() if text[-1:].isspace() else text.split()[:-1]
    return _bleu_reachable(words, complete)


def _starts(output: Sequence[int], slack: int, decode: Decode) -> int:
    """Return the last character at which a window may start: where the first ``slack`` tokens end."""
    return len(decode(output[:slack]).lstrip()) if slack else 0


def _most_distance(suffix: Sequence[int], n_hits: int, decode: Decode | None) -> float:
    """Return the largest edit distance that the first window can have, whatever follows the hits.

    The window is as long as the suffix and starts with the same units; replacing all others is enough.
    """
    if decode is None:
        return (len(suffix) - n_hits) / len(suffix)
    whole, known = decode(suffix), decode(suffix[:n_hits])
    wanted = whole.strip()
    if not wanted or not whole.startswith(known) or whole != whole.rstrip() or known.endswith("\ufffd"):
        return 1.0  # the decoder merges over the boundary: nothing is proved
    return (len(wanted) - len(known.strip())) / len(wanted)


def _distance_reachable(wanted: Sequence[Hashable], known: Sequence[Hashable], starts: int) -> bool:
    """Say whether a window that starts at 0 to ``starts`` can still come within the edit distance.

    What is known of a window must be aligned with some beginning of the suffix, and each edit in it counts;
    the rest may fit perfectly.
    """
    from rapidfuzz.distance import Levenshtein

    size = len(wanted)
    budget = math.floor(DISTANCE_AT_MOST * size + 1e-9)
    for start in range(starts + 1):
        part = known[start : start + size]
        if len(part) <= budget:
            return True
        # A beginning whose length differs by more than the budget needs more edits than the budget.
        for length in range(max(0, len(part) - budget), min(size, len(part) + budget) + 1):
            if Levenshtein.distance(wanted[:length], part, score_cutoff=budget) <= budget:
                return True
    return False


def _bleu_reachable(reference: Sequence[Hashable], known: Sequence[Hashable]) -> bool:
    """Say whether BLEU of some output that begins with ``known`` can exceed its limit.

    N-grams whose known part begins no n-gram of the reference are lost; all others may match.
    """
    known = known[: len(reference)]
    lost: list[list[bool]] = []  # by order, by the known position at which the n-gram starts
    for order in range(1, 5):
        whole = [tuple(reference[i : i + order]) for i in range(len(reference) - order + 1)]
        parts = {gram[:length] for gram in whole for length in range(1, order + 1)}
        lost.append([tuple(known[i : i + order]) not in parts for i in range(len(known))])
    # An output may end early, anywhere after what is known.
    return any(
        _most_bleu(len(reference), length, lost) > BLEU_ABOVE
        for length in range(max(1, len(known)), len(reference) + 1)
    )


def _most_bleu(size: int, length: int, lost: Sequence[Sequence[bool]]) -> float:
    """Return the largest BLEU of ``length`` units against ``size``, without the n-grams that are lost."""
    orders = min(4, length)
    logs = 0.0
    for order in range(1, orders + 1):
        total = length - order + 1
        hits = total - sum(lost[order - 1][:total])
        if hits == 0:
            return 0.0
        logs += math.log(hits / total)
    return math.exp(logs / orders + min(0.0, 1.0 - size / length))
