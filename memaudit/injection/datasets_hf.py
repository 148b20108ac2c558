"""Hugging Face datasets: Arrow-backed ones, and streams in constant memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memaudit.errors import InjectionError
from memaudit.injection.placement import Row, merge, merged_order, positions
from memaudit.seeds import derive_seed, generator


def kind(dataset: object) -> str | None:
    """Return "dataset", "dict" or "stream" for the classes of the library datasets, None for anything else."""
    names = {f"{cls.__module__.split('.')[0]}.{cls.__name__}" for cls in type(dataset).__mro__}
    if "datasets.Dataset" in names:
        return "dataset"
    if "datasets.DatasetDict" in names or "datasets.IterableDatasetDict" in names:
        return "dict"
    return "stream" if "datasets.IterableDataset" in names else None


def texts(dataset: Any) -> Iterator[str]:
    """Yield every string of an Arrow-backed dataset, column by column, without making rows."""
    import pyarrow as pa

    view = dataset.with_format("arrow")
    for table in view.iter(batch_size=2000):
        for column in table.columns:
            for chunk in column.chunks:
                yield from _leaves(chunk, pa)


def _leaves(array: Any, pa: Any) -> Iterator[str]:
    """Yield the strings of a column; a column's are joined, since only their content matters."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        yield from (text for text in array.to_pylist() if text)
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _leaves(child, pa)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _leaves(array.flatten(), pa)


def sample(dataset: Any, seed: int, size: int) -> list[Row]:
    """Return ``size`` rows of an Arrow-backed dataset, chosen by the seed."""
    plain = dataset.with_format(None)
    chosen = (
        generator(seed, "sample").permutation(len(dataset))[:size] if len(dataset) else np.empty(0, dtype=int)
    )
    return [dict(plain[int(index)]) for index in sorted(chosen.tolist())]


def add_rows(dataset: Any, rows: Sequence[Row], seed: int) -> Any:
    """Return the dataset with the rows added at seeded places: same features, format and host rows.

    Raises:
        InjectionError: the features do not take the rows.
    """
    from datasets import Dataset, concatenate_datasets

    if not rows:
        return dataset
    features = dataset.features
    try:
        added = Dataset.from_list([dict(row) for row in rows], features=features)
    except Exception as error:  # Arrow's and the library's own errors
        raise InjectionError(
            f"the columns' types do not take a canary's record ({type(error).__name__}); "
            "check fmt= and columns=, or give values for other columns with fill="
        ) from error
    kept = dataset.format
    plain = dataset.with_format(None)
    order = merged_order(positions(len(rows), len(dataset), seed), len(dataset))
    merged = concatenate_datasets([plain, added]).select(order)
    if kept["type"] is not None:
        merged = merged.with_format(kept["type"], columns=kept["columns"], **kept["format_kwargs"])
    return merged


def first_rows(stream: Any, size: int) -> list[Row]:
    """Return the first rows of a stream."""
    return [dict(row) for row in stream.take(size)]


def stream_length(stream: Any) -> int | None:
    """Return the number of rows that a stream's own information states, where it does."""
    info = getattr(stream, "info", None)
    splits = getattr(info, "splits", None) or {}
    stated = splits.get(str(getattr(stream, "split", None)))
    return int(stated.num_examples) if stated is not None and stated.num_examples else None


def add_to_stream(stream: Any, rows: Sequence[Row], n_host: int, seed: int) -> Any:
    """Return the stream with the rows merged in while it is read.

    Every shard of the stream takes its own part of the rows, so that workers and ranks that divide the shards
    among them see each row once. Rows that are still waiting when a shard ends come at its end.
    """
    from datasets import IterableDataset

    count = max(1, int(stream.num_shards if hasattr(stream, "num_shards") else stream.n_shards))
    owner = generator(seed, "shards").integers(0, count, size=len(rows))
    parts = [
        [row for row, shard in zip(rows, owner.tolist(), strict=True) if shard == index]
        for index in range(count)
    ]
    shards = [(stream, count, index, tuple(part), n_host // count, seed) for index, part in enumerate(parts)]
    return IterableDataset.from_generator(_read, features=stream.features, gen_kwargs={"shards": shards})


def _read(shards: Sequence[tuple[Any, int, int, tuple[Row, ...], int, int]]) -> Iterator[Mapping[str, Any]]:
    for stream, count, index, rows, n_host, seed in shards:
        host = stream if count == 1 else stream.shard(num_shards=count, index=index)
        places = positions(len(rows), n_host, derive_seed(seed, "shard", index)).tolist()
        yield from merge(_rows(host), rows, places)


def _rows(stream: Any) -> Iterator[Mapping[str, Any]]:
    """Yield a stream's rows; iterating over it would divide its shards among a loader's workers once more."""
    for batch in stream.with_format(None).iter(batch_size=100):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(names, values, strict=True))
