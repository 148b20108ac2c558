"""Which rows are added, and where: a function of the seed alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from memaudit.canaries.tokens import TokenizerLike
from memaudit.errors import InjectionError
from memaudit.injection.formats import Format, Secret
from memaudit.injection.rendering import COLUMNS_KEY, render
from memaudit.manifest import Canary, CanarySet, PlacedCanary
from memaudit.seeds import generator

Row = dict[str, Any]
T = TypeVar("T")

SPREAD = 200
"""Host rows for each canary row over which they are spread in a stream of unknown length: a share of 0.5%."""


@dataclass(frozen=True, slots=True)
class Planted:
    """Every canary with its record, and the rows to add, in the order in which they stand in the data."""

    canaries: tuple[PlacedCanary, ...]
    rows: tuple[Row, ...] = field(repr=False)


def plant(
    canaries: CanarySet,
    form: Format,
    sample: Mapping[str, Any],
    *,
    columns: Mapping[str, str],
    tokenizer: TokenizerLike | None,
    fill: Mapping[str, Any],
    seed: int,
) -> Planted:
    """Build a record shaped like ``sample`` for each canary, and the shuffled rows of those that are included.

    With a tokenizer, each record is rendered once to see that its secret keeps its ids.

    Raises:
        InjectionError: a secret does not keep its ids in the format, or ``fill`` names an unknown column.
    """
    unknown = sorted(set(fill) - set(sample))
    if unknown:
        raise InjectionError(
            f"fill names the column {unknown[0]!r}; the data has {', '.join(map(str, sample))}"
        )
    placed = []
    rows: list[Row] = []
    for canary in canaries:

        def record_of(text: str, ids: tuple[int, ...]) -> Row:
            built = form.build(Secret(text, ids), sample, columns, tokenizer)
            return {name: built.get(name, fill.get(name)) for name in sample}

        record = record_of(canary.secret, canary.secret_ids)
        known = {**canary.metadata, COLUMNS_KEY: dict(columns)} if columns else canary.metadata
        here = PlacedCanary(**{**canary.model_dump(), "metadata": known, "record": record})
        if tokenizer is not None:
            render(here, form.name, tokenizer)
        placed.append(here)
        if canary.included:
            rows.append(record)
            rows.extend(_copies(canary, record, record_of, tokenizer))
    order = generator(seed, "rows").permutation(len(rows))
    return Planted(tuple(placed), tuple(rows[index] for index in order.tolist()))


def _copies(canary: Canary, record: Row, record_of: Any, tokenizer: TokenizerLike | None) -> list[Row]:
    """Return the second and later rows of an included canary: the same record, or its near-duplicates'."""
    if not canary.variants:
        return [record] * (canary.repetitions - 1)
    from memaudit.canaries.contexts import settle

    copies = []
    for text in canary.variants[: canary.repetitions - 1]:
        settled = None if tokenizer is None else settle(tokenizer, text)
        copies.append(record_of(text, settled.ids if settled else ()))
    return copies


def positions(n_rows: int, n_host: int, seed: int) -> npt.NDArray[np.int64]:
    """Return, ascending, before which host row each added row goes; ``n_host`` means after the last one.

    Example:
        >>> positions(3, 10, seed=0).tolist() == positions(3, 10, seed=0).tolist()
        True
    """
    drawn = generator(seed, "positions").integers(0, n_host + 1, size=n_rows)
    return np.sort(drawn).astype(np.int64)


def merged_order(places: npt.NDArray[np.int64], n_host: int) -> npt.NDArray[np.int64]:
    """Return the order of host rows 0..n_host-1 and added rows n_host.. after merging.

    Example:
        >>> merged_order(np.array([0, 2]), 2).tolist()
        [2, 0, 1, 3]
    """
    added = np.arange(n_host, n_host + len(places), dtype=np.int64)
    merged: npt.NDArray[np.int64] = np.insert(np.arange(n_host, dtype=np.int64), places, added)
    return merged


def merge(host: Iterable[T], rows: Sequence[T], places: Sequence[int]) -> Iterator[T]:
    """Yield the host's rows with the added ones at their places; what is left over comes at the end.

    Example:
        >>> list(merge("ab", ["X", "Y"], [1, 9]))
        ['a', 'X', 'b', 'Y']
    """
    pending = 0
    for index, row in enumerate(host):
        while pending < len(rows) and places[pending] <= index:
            yield rows[pending]
            pending += 1
        yield row
    yield from rows[pending:]
