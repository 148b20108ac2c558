"""Rows and batches of any trainer as flat arrays of ids and labels: numpy, no Python loop over tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memaudit.errors import ConfigurationError

Ids = npt.NDArray[np.int64]

IGNORED = -100
"""The label that no loss is taken on."""

GAP = (1 << 62) - 1
"""Stands between rows in a flat array: no token has this id."""


@dataclass(frozen=True, slots=True)
class FlatRows:
    """Rows one after another, a gap after each.

    ``ids`` int64 [n]; ``labels`` int64 [n] aligned with ids, or None where nobody knows them; ``starts`` int64
    [rows], where each row starts; ``first_row`` the number of the first row in the whole data.
    """

    ids: Ids
    labels: Ids | None
    starts: Ids
    first_row: int

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.starts)

    @property
    def n_tokens(self) -> int:
        """Number of tokens, gaps left out."""
        return len(self.ids) - len(self.starts)

    def row_of(self, position: int) -> int:
        """Return the index of the row, among these, that holds a position."""
        return int(np.searchsorted(self.starts, position, side="right")) - 1

    def bounds(self, row: int) -> tuple[int, int]:
        """Return where a row starts and stops, its gap left out."""
        stop = self.starts[row + 1] if row + 1 < len(self.starts) else len(self.ids)
        return int(self.starts[row]), int(stop) - 1


def flatten(values: Ids, lengths: Ids, labels: Ids | None, first_row: int) -> FlatRows:
    """Return flat rows from concatenated values and the rows' lengths."""
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths + 1)])[:-1]
    total = int(lengths.sum()) + len(lengths)
    where = np.ones(total, dtype=bool)
    where[starts + lengths] = False
    ids = np.full(total, GAP, dtype=np.int64)
    ids[where] = values
    spread = None
    if labels is not None:
        spread = np.full(total, IGNORED, dtype=np.int64)
        spread[where] = labels
    return FlatRows(ids, spread, starts, first_row)


def from_batch(batch: Any, first_row: int = 0) -> FlatRows:
    """Return the rows of a batch as a collator makes it: padded arrays, or lists, of ids, labels and masks.

    Args:
        batch: a mapping with ``input_ids`` [rows, length] (tensors, arrays or lists) and, where there are,
            ``labels``, ``attention_mask``, ``completion_mask`` and ``position_ids``; a bare array of ids; or a
            pair of ids and labels, where labels that are the ids moved by one are moved back.
        first_row: number of the batch's first row.

    Raises:
        ConfigurationError: it holds no ids.
    """
    if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Mapping):
        return from_row_list(batch, first_row)
    if not isinstance(batch, Mapping) and not hasattr(batch, "keys"):
        batch = _from_tensors(batch)
    if "input_ids" not in batch:
        raise ConfigurationError(
            f"a batch holds {', '.join(map(str, batch)) or 'nothing'} and no input_ids; "
            "pass the batches that the model gets"
        )
    ids = _matrix(batch["input_ids"])
    mask = np.ones(ids.shape, dtype=bool)
    if batch.get("attention_mask") is not None:
        given = _matrix(batch["attention_mask"])
        if given.shape == ids.shape:  # a mask over pairs of positions says nothing about padding
            mask = given.astype(bool)
    labels = None
    if batch.get("labels") is not None:
        labels = _matrix(batch["labels"])
    elif batch.get("completion_mask") is not None:
        labels = np.where(_matrix(batch["completion_mask"]).astype(bool), ids, IGNORED)
    if labels is not None and labels.shape != ids.shape:
        labels = None
    position = batch.get("position_ids")
    lengths = mask.sum(axis=1).astype(np.int64)
    values = ids[mask]
    known = None if labels is None else labels[mask]
    if position is not None and ids.shape[0] == 1 and _matrix(position).shape == ids.shape:
        # Without padding: records follow each other in one row, and positions start again at each.
        restarts = np.flatnonzero(_matrix(position)[mask] == 0)
        if len(restarts) and restarts[0] == 0:
            lengths = np.diff(np.append(restarts, len(values))).astype(np.int64)
    return flatten(values, lengths, known, first_row)


def from_row_list(rows: Iterable[Mapping[str, Any]], first_row: int = 0) -> FlatRows:
    """Return rows of unequal length, each a mapping with ``input_ids`` and perhaps ``labels`` or masks."""
    ids: list[Ids] = []
    labels: list[Ids] = []
    known = True
    for row in rows:
        one, target = row_arrays(row)
        ids.append(one)
        if target is None:
            known = False
        else:
            labels.append(target)
    lengths = np.array([len(one) for one in ids], dtype=np.int64)
    empty = np.empty(0, dtype=np.int64)
    values = np.concatenate(ids) if ids else empty
    return flatten(
        values, lengths, (np.concatenate(labels) if labels else empty) if known else None, first_row
    )


def row_arrays(row: Mapping[str, Any]) -> tuple[Ids, Ids | None]:
    """Return ids and labels of one row; preference rows count as prompt and chosen answer.

    Raises:
        ConfigurationError: it holds no ids.
    """
    if "input_ids" in row:
        ids = _vector(row["input_ids"])
        if row.get("attention_mask") is not None and len(row["attention_mask"]) == len(ids):
            keep = _vector(row["attention_mask"]).astype(bool)
        else:
            keep = np.ones(len(ids), dtype=bool)
        labels = None
        if row.get("labels") is not None:
            labels = _vector(row["labels"])
        elif row.get("completion_mask") is not None:
            labels = np.where(_vector(row["completion_mask"]).astype(bool), ids, IGNORED)
        if labels is not None and len(labels) != len(ids):
            labels = None
        return ids[keep], None if labels is None else labels[keep]
    if "chosen_ids" in row and "prompt_ids" in row:
        prompt, chosen = _vector(row["prompt_ids"]), _vector(row["chosen_ids"])
        return np.concatenate([prompt, chosen]), np.concatenate([np.full(len(prompt), IGNORED), chosen])
    raise ConfigurationError(f"a row holds {', '.join(map(str, row)) or 'nothing'} and no input_ids")


def from_arrow(table: Any, first_row: int) -> FlatRows:
    """Return the rows of an Arrow table with the list columns ``input_ids`` and perhaps ``labels`` or a mask."""
    names = table.column_names
    if "input_ids" not in names:  # preference rows
        prompt, prompt_lengths = _column(table["prompt_ids"])
        chosen, chosen_lengths = _column(table["chosen_ids"])
        parts, marks = [], []
        for a, b in zip(
            np.split(prompt, np.cumsum(prompt_lengths)[:-1]),
            np.split(chosen, np.cumsum(chosen_lengths)[:-1]),
            strict=True,
        ):
            parts += [a, b]
            marks += [np.full(len(a), IGNORED, dtype=np.int64), b]
        return flatten(
            np.concatenate(parts), prompt_lengths + chosen_lengths, np.concatenate(marks), first_row
        )
    values, lengths = _column(table["input_ids"])
    labels = None
    if "labels" in names:
        given, sizes = _column(table["labels"])
        labels = given if np.array_equal(sizes, lengths) else None
    elif "completion_mask" in names:
        given, sizes = _column(table["completion_mask"])
        labels = np.where(given.astype(bool), values, IGNORED) if np.array_equal(sizes, lengths) else None
    if "attention_mask" in names:
        given, sizes = _column(table["attention_mask"])
        if np.array_equal(sizes, lengths) and not given.all():
            keep = given.astype(bool)
            rows = np.repeat(np.arange(len(lengths)), lengths)
            lengths = np.bincount(rows[keep], minlength=len(lengths)).astype(np.int64)
            values = values[keep]
            labels = None if labels is None else labels[keep]
    return flatten(values, lengths, labels, first_row)


def _column(column: Any) -> tuple[Ids, Ids]:
    import pyarrow.compute as pc

    whole = column.combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(whole), 0).to_numpy(zero_copy_only=False)
    values = pc.list_flatten(whole).to_numpy(zero_copy_only=False)
    return values.astype(np.int64), np.asarray(lengths, dtype=np.int64)


def _from_tensors(batch: Any) -> Mapping[str, Any]:
    parts = list(batch) if isinstance(batch, (tuple, list)) else [batch]
    ids = _matrix(parts[0])
    if len(parts) < 2:
        return {"input_ids": ids}
    labels = _matrix(parts[1])
    if labels.shape == ids.shape and np.array_equal(labels[:, :-1], ids[:, 1:]):
        labels = np.concatenate([ids[:, :1], labels[:, :-1]], axis=1)  # labels that were moved by one already
    return {"input_ids": ids, "labels": labels}


def _matrix(values: Any) -> Ids:
    array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    if array.dtype == object:
        raise ConfigurationError(
            "a batch has rows of unequal length; pass rows as mappings, or padded batches"
        )
    return np.atleast_2d(array.astype(np.int64))


def _vector(values: Any) -> Ids:
    array = values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
    return array.astype(np.int64).reshape(-1)


def chunks(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of at most ``size`` rows.

    Example:
        >>> list(chunks(range(3), 2))
        [[0, 1], [2]]
    """
    waiting = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
