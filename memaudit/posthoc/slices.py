"""Cutting an audit into slices whose batches are those of the whole: joined, they give the same bits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from memaudit.errors import ConfigurationError
from memaudit.probes import Batch, Probe, plan


@dataclass(frozen=True, slots=True)
class Slice:
    """Slice ``index`` (from 0) of ``count``.

    Example:
        >>> Slice.parse("1/4")
        Slice(index=1, count=4)
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigurationError(f"slice {self.index}/{self.count}; the first of 4 is 0/4, the last 3/4")

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Read ``K/N``.

        Raises:
            ConfigurationError: it is none, or K is not below N.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None:
            raise ConfigurationError(f"slice {text!r}; give K/N, for example 0/4 for the first of four")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def take(probes: Sequence[Probe], part: Slice, *, max_batch_size: int, max_batch_tokens: int) -> list[Probe]:
    """Return the probes of one slice: a run of whole batches of the plan over all probes.

    Batches are closed from the front, so a run of whole ones is cut into the same batches again.

    Example:
        >>> work = [Probe(str(i), tuple(range(3 + i)), (1, 3)) for i in range(5)]
        >>> parts = [take(work, Slice(k, 2), max_batch_size=2, max_batch_tokens=99) for k in range(2)]
        >>> [[probe.id for probe in part] for part in parts]
        [['4', '3'], ['2', '1', '0']]
    """
    whole = plan(probes, max_batch_size=max_batch_size, max_batch_tokens=max_batch_tokens, fixed_batches=True)
    ordered = in_order(whole.batches[0])
    start = len(ordered) * part.index // part.count
    stop = len(ordered) * (part.index + 1) // part.count
    keys = {probe.key for batch in ordered[start:stop] for probe in batch.probes}
    chosen = [probe for probe in probes if probe.key in keys]
    return sorted(chosen, key=lambda probe: (-len(probe.token_ids), probe.key))


def in_order(batches: Sequence[Batch]) -> list[Batch]:
    """Return batches in the order in which they were cut: by prefix, then longest first, then by key."""
    return sorted(
        batches, key=lambda b: (b.probes[0].prefix_ids, -len(b.probes[0].token_ids), b.probes[0].key)
    )
