"""Canaries of a dataset as batches for a functional loss, or as token ids for a model. Ids travel with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memaudit.errors import ConfigurationError, InputTypeError
from memaudit.privacy.coins import CoinFlip

Collate = Callable[[list[Any]], Any]
IGNORED_LABEL = -100


def check_audit(dataset: Any, coin_flip: CoinFlip, batch_size: int) -> None:
    """Refuse a dataset other than the partition's and a batch size that is no positive integer."""
    if not isinstance(coin_flip, CoinFlip):
        raise InputTypeError(
            f"coin_flip is of type {type(coin_flip).__name__}; give the CoinFlip of the partition"
        )
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(f"batch_size is {batch_size!r}; give an integer of at least 1")
    if len(dataset) != coin_flip.dataset_size:
        raise ConfigurationError(
            f"the dataset holds {len(dataset)} records, the partition was made for {coin_flip.dataset_size}; "
            "give the full dataset that coin_flip was called with"
        )


def check_batch_argnums(batch_argnums: Any, n_args: int) -> tuple[int, ...]:
    """Return the positions of batched arguments if they are sorted, unique and fill the gaps left by ``args``."""
    try:
        positions = tuple(int(position) for position in batch_argnums)
    except TypeError as error:
        raise ConfigurationError(f"batch_argnums is {batch_argnums!r}; give a tuple such as (1,)") from error
    total = n_args + len(positions)
    if (
        not positions
        or list(positions) != sorted(set(positions))
        or positions[0] < 0
        or positions[-1] >= total
    ):
        raise ConfigurationError(
            f"batch_argnums is {positions} with {n_args} other arguments; give sorted, distinct positions below {total}"
        )
    return positions


def batches(
    dataset: Any, coin_flip: CoinFlip, batch_size: int, collate_fn: Collate | None, n_tensors: int
) -> Iterator[tuple[list[int], tuple[Any, ...]]]:
    """Yield (canary indices, batched tensors) over the canaries, in the order of the partition.

    Raises:
        ConfigurationError: the collation gives another number of rows or of tensors.
    """
    if collate_fn is None:
        from torch.utils.data import default_collate

        collate: Collate = default_collate
    else:
        collate = collate_fn
    names = [int(index) for index in coin_flip.canary_indices]
    for start in range(0, len(names), batch_size):
        chunk = names[start : start + batch_size]
        tensors = _as_tensors(collate([dataset[index] for index in chunk]))
        if len(tensors) != n_tensors:
            raise ConfigurationError(
                f"the batch holds {len(tensors)} tensors for {n_tensors} batch_argnums; let collate_fn return one each"
            )
        rows = {int(tensor.shape[0]) if tensor.ndim else 0 for tensor in tensors}
        if rows != {len(chunk)}:
            raise ConfigurationError(
                f"collate_fn made {sorted(rows)} rows of {len(chunk)} records; it must keep one row a record, in order"
            )
        yield chunk, tensors


def _as_tensors(batch: Any) -> tuple[Any, ...]:
    import torch

    if isinstance(batch, torch.Tensor):
        return (batch,)
    if isinstance(batch, (tuple, list)) and all(isinstance(part, torch.Tensor) for part in batch):
        return tuple(batch)
    raise ConfigurationError(
        f"the collated batch is of type {type(batch).__name__}; give a collate_fn that returns a tensor or a tuple of "
        "tensors, one for each of batch_argnums"
    )


def merge_arguments(fixed: Sequence[Any], batched: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """Return the arguments of the loss, batched ones at ``positions`` and the others around them in order.

    Example:
        >>> merge_arguments(["params"], ["x", "y"], (1, 2))
        ['params', 'x', 'y']
    """
    rest, rows = iter(fixed), iter(batched)
    return [next(rows) if index in positions else next(rest) for index in range(len(fixed) + len(batched))]


Spans = list[tuple[int, int]]


def token_record(
    example: Any, *, index: int, tokenizer: Any, max_length: int | None, limit: int | None
) -> tuple[list[int], Spans]:
    """Return token ids and target spans of one record.

    Args:
        example: a text, a list or tensor of token ids, or a mapping with ``input_ids`` (and perhaps ``labels`` and
            ``attention_mask``) or ``text``.
        index: of the record, for messages.
        tokenizer: for texts.
        max_length: cut records to so many tokens; None cuts nothing.
        limit: how many positions the model has, where it says so.

    Returns:
        Ids without padding, and the half-open runs of tokens that are scored: those whose label is not -100, or all
        but the first.

    Raises:
        ConfigurationError: nothing to score, too long, or a text without a tokenizer.
    """
    labels: list[int] | None = None
    if isinstance(example, Mapping):
        if "input_ids" in example:
            ids = _as_ids(example["input_ids"])
            labels = _as_ids(example["labels"]) if example.get("labels") is not None else None
            mask = example.get("attention_mask")
            if mask is not None:
                keep = [bool(bit) for bit in _as_ids(mask)]
                ids = [token for token, bit in zip(ids, keep, strict=True) if bit]
                labels = None if labels is None else [x for x, bit in zip(labels, keep, strict=True) if bit]
        elif "text" in example:
            ids = _encode(example["text"], tokenizer, index)
        else:
            raise ConfigurationError(
                f"record {index} has columns {sorted(map(str, example))}; give input_ids or text, or use a functional "
                "loss with collate_fn"
            )
    elif isinstance(example, str):
        ids = _encode(example, tokenizer, index)
    else:
        ids = _as_ids(example)
    if labels is not None and len(labels) != len(ids):
        raise ConfigurationError(
            f"record {index} has {len(ids)} tokens and {len(labels)} labels; give one per token"
        )
    if max_length is not None:
        ids, labels = ids[:max_length], None if labels is None else labels[:max_length]
    if limit is not None and len(ids) > limit:
        raise ConfigurationError(
            f"record {index} has {len(ids)} tokens, the model {limit} positions; give max_length"
        )
    spans = [(1, len(ids))] if labels is None else _runs(labels)
    if not spans or spans[0][1] - spans[0][0] < 1:
        raise ConfigurationError(
            f"record {index} has no token to score of {len(ids)}; leave it out of the canaries"
        )
    return ids, spans


def _runs(labels: list[int]) -> Spans:
    spans: Spans = []
    for position in range(1, len(labels)):
        if labels[position] == IGNORED_LABEL:
            continue
        if spans and spans[-1][1] == position:
            spans[-1] = (spans[-1][0], position + 1)
        else:
            spans.append((position, position + 1))
    return spans


def _as_ids(values: Any) -> list[int]:
    if hasattr(values, "tolist"):
        values = values.tolist()
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"token ids are of type {type(values).__name__}; give a flat list of integers for each record"
        ) from error


def _encode(text: str, tokenizer: Any, index: int) -> list[int]:
    if tokenizer is None:
        raise ConfigurationError(f"record {index} is a text; give tokenizer=, or a dataset with input_ids")
    return _as_ids(tokenizer(text)["input_ids"])
