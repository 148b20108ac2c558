"""Where the rows come from: read without touching the trainer's iterators, samplers or random state."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.injection import datasets_hf as hf
from memaudit.preflight.rows import FlatRows, chunks, from_arrow, from_batch, from_row_list

Collator = Callable[[list[Any]], Any]

CHUNK = 64
"""Rows that go through a collator together."""


@dataclass(frozen=True, slots=True)
class Source:
    """Training rows as the model gets them.

    Args:
        rows: the data: an Arrow-backed dataset, a map-style one, a stream, or an iterable of batches or rows.
        collator: what turns rows into a batch; None where rows hold their ids themselves, or are batches.
        max_rows: rows of a stream, or of data that only the collator can read, that are looked at.
    """

    rows: Any
    collator: Collator | None = None
    max_rows: int = 50_000

    @property
    def length(self) -> int | None:
        """Number of rows; None for a stream."""
        try:
            return len(self.rows)
        except TypeError:
            return None

    @property
    def readable(self) -> bool:
        """Whether the rows can be read again without taking them from the trainer."""
        return not isinstance(self.rows, Iterator)

    def tokenised_columns(self) -> bool:
        """Whether it is an Arrow-backed dataset whose rows hold ids: then it is read column by column."""
        if hf.kind(self.rows) != "dataset" or self.rows.format["type"] == "custom":
            return False
        names = self.rows.column_names
        return "input_ids" in names or {"prompt_ids", "chosen_ids"} <= set(names)

    def read(self) -> Iterator[FlatRows]:
        """Yield all rows, piece by piece, at most ``max_rows`` where they have to pass through Python.

        Raises:
            ConfigurationError: the rows hold no ids and there is no collator to make them.
        """
        if self.tokenised_columns():
            yield from self._read_columns()
            return
        seen = 0
        with frozen_randomness():
            bounded = itertools.islice(self._iterate(), self.max_rows)
            for piece in chunks(bounded, CHUNK):
                if self.collator is not None:
                    flat = [from_batch(self._collate(piece), seen)]
                elif _is_row(piece[0]):
                    flat = [from_row_list(piece, seen)]
                else:
                    flat = _batches(piece, seen)
                for rows in flat:
                    yield rows
                    seen += rows.n_rows

    def _read_columns(self) -> Iterator[FlatRows]:
        wanted = ("input_ids", "labels", "attention_mask", "completion_mask", "prompt_ids", "chosen_ids")
        names = [name for name in wanted if name in self.rows.column_names]
        view = self.rows.with_format("arrow", columns=names)
        seen = 0
        for table in view.iter(batch_size=1000):
            yield from_arrow(table, seen)
            seen += len(table)

    def _iterate(self) -> Iterator[Any]:
        if hasattr(self.rows, "__getitem__") and self.length is not None:
            return (self.rows[index] for index in range(len(self.rows)))
        return iter(self.rows)

    def collated(self, indices: Sequence[int]) -> Iterator[FlatRows]:
        """Yield the chosen rows of a dataset as the collator hands them to the model."""
        if self.collator is None:
            return
        with frozen_randomness():
            for index in indices:
                yield from_batch(self._collate([self.rows[int(index)]]), int(index))

    def _collate(self, rows: list[Any]) -> Any:
        assert self.collator is not None
        try:
            return self.collator(rows)
        except Exception as error:  # a collator is anybody's code
            raise CollatorFailed(
                f"the collator fails on {len(rows)} rows with the columns {_columns(rows[0])} ({type(error).__name__})"
            ) from error

    @property
    def complete(self) -> bool:
        """Whether every row is looked at."""
        if self.tokenised_columns():
            return True
        return self.length is not None and self.length <= self.max_rows


class CollatorFailed(ConfigurationError):
    """The trainer's collator raised on its own rows."""


def _columns(row: Any) -> str:
    return ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__


def _is_row(value: Any) -> bool:
    """Whether a mapping is one row, not a batch of rows."""
    if not isinstance(value, Mapping) and not hasattr(value, "keys"):
        return False
    ids = value["input_ids"] if "input_ids" in value else value.get("prompt_ids")
    if ids is None:
        raise ConfigurationError(
            f"a row holds {', '.join(map(str, value)) or 'nothing'} and no input_ids; pass tokenised rows, or "
            "collator= that makes ids of them"
        )
    shape = getattr(ids, "shape", None)
    return len(shape) == 1 if shape is not None else not (len(ids) and isinstance(ids[0], (list, tuple)))


def _batches(piece: Iterable[Any], seen: int) -> list[FlatRows]:
    flat = []
    for batch in piece:
        flat.append(from_batch(batch, seen))
        seen += flat[-1].n_rows
    return flat


@contextlib.contextmanager
def frozen_randomness() -> Iterator[None]:
    """Leave every random state as it was: collators and datasets may draw."""
    import torch

    python, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)
