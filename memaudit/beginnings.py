"""What token sequences begin with alike: it can go through a model once for all of them."""

from __future__ import annotations

from collections.abc import Sequence

Ids = tuple[int, ...]


def carriers(sequences: Sequence[Ids]) -> tuple[list[Ids], list[int]]:
    """Return the sequences that begin no other one, and for each sequence the position of one that begins with it.

    Example:
        >>> carriers([(5, 6), (5, 6, 7), (8,), (5, 6)])
        ([(5, 6, 7), (8,)], [0, 0, 1, 0])
    """
    kept: list[Ids] = []
    position: dict[Ids, int] = {}
    # In this order all that begin with a sequence stand right before it.
    for ids in sorted(set(sequences), reverse=True):
        if not kept or kept[-1][: len(ids)] != ids:
            kept.append(ids)
        position[ids] = len(kept) - 1
    last = len(kept) - 1
    return kept[::-1], [last - position[ids] for ids in sequences]


def common_length(sequences: Sequence[Ids]) -> int:
    """Return how many tokens all sequences begin with alike.

    Raises:
        ValueError: there is no sequence.

    Example:
        >>> common_length([(5, 6, 7), (5, 6), (5, 6, 9)])
        2
    """
    first, last = min(sequences), max(sequences)  # in sorted order these two differ earliest
    shortest = min(len(first), len(last))
    return next((i for i in range(shortest) if first[i] != last[i]), shortest)
