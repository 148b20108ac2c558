"""Pools of known non-members and members, held apart from the texts that are judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memaudit.attacks.base import Attack
from memaudit.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Pools:
    """Texts known not to be members, and texts known to be."""

    nonmembers: tuple[str, ...] = ()
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """The pools, the ids that are judged, and what a reader should know about it."""

    pools: Pools
    judged: tuple[str, ...]
    notes: tuple[str, ...] = ()


def hold_apart(
    texts: Mapping[str, str], labels: Mapping[str, int], attacks: Sequence[Attack], given: Pools, *, seed: int
) -> Split:
    """Draw the pools that attacks need and the user did not give from the labelled texts, and judge the others.

    At most half of a class is drawn. The same texts are judged by every attack, so that attacks compare. A text
    that equals one of a pool is not judged either.

    Args:
        texts: all texts by id.
        labels: of those that have one.
        attacks: what says how many texts each pool needs.
        given: pools that the user gave; they are used as they are.
        seed: root seed; whether a text is drawn depends on its id and this alone, and on how many are needed.

    Example:
        >>> from memaudit.attacks import make
        >>> texts = {str(i): f"text {i}" for i in range(8)}
        >>> labels = {str(i): i % 2 for i in range(8)}
        >>> found = hold_apart(texts, labels, [make("recall", n_shots=2)], Pools(), seed=0)
        >>> len(found.pools.nonmembers), len(found.judged)
        (2, 6)
    """
    wanted = [one.pool() for one in attacks] or [(0, 0)]
    drawn: dict[int, list[str]] = {0: [], 1: []}
    notes = []
    for label, name, have in ((0, "non-members", given.nonmembers), (1, "members", given.members)):
        n = max(one[0 if label == 0 else 1] for one in wanted)
        if n == 0 or have:
            continue
        ids = [id for id, one in labels.items() if one == label and texts[id].strip()]
        ids.sort(key=lambda id: derive_seed(seed, "held apart", id))
        drawn[label] = ids[: min(n, len(ids) // 2)]
        if drawn[label]:
            notes.append(
                f"{len(drawn[label])} {name} were held apart from the judged texts, of {n} asked for"
            )
    pools = Pools(
        given.nonmembers or tuple(texts[id] for id in drawn[0]),
        given.members or tuple(texts[id] for id in drawn[1]),
    )
    used = {*pools.nonmembers, *pools.members}
    judged = tuple(id for id, text in texts.items() if text not in used)
    equal = len(texts) - len(judged) - len(drawn[0]) - len(drawn[1])
    if equal:
        notes.append(f"{equal} texts equal one of a pool and are not judged")
    return Split(pools, judged, tuple(notes))
