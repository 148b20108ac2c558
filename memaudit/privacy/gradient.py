"""White-box membership scores: the smaller a record's gradient, the more it looks like a member."""

from __future__ import annotations

from typing import Any

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.privacy import model as through_model
from memaudit.privacy.coins import CoinFlip
from memaudit.privacy.loss import check_reference, less_reference
from memaudit.privacy.records import Collate, batches, check_audit, check_batch_argnums, merge_arguments
from memaudit.privacy.scores import CanaryScores

VMAP_CELLS = 2**26
"""Largest number of gradient entries that one vmapped chunk holds: 256 MiB in float32."""

VMAP_PARAMETERS = 2**22
"""Number of parameters up to which several gradients at once are faster than one after the other.

Measured on a CPU, float32: 9 times faster at 2,000 parameters, 1.6 to 3 times for transformers of 0.1 to 2.6
million, alike for a perceptron of 0.8 million, 2.8 times slower for perceptrons of 4 and 17 million.
"""

_METHODS = ("auto", "vmap", "record")


def gradient_scores(
    loss_fn: Any,
    *args: Any,
    batch_argnums: tuple[int, ...] | None = None,
    coin_flip: CoinFlip,
    dataset: Any,
    reference_scores: CanaryScores | None = None,
    batch_size: int = 32,
    collate_fn: Collate | None = None,
    tokenizer: Any = None,
    max_length: int | None = None,
    method: str = "auto",
) -> CanaryScores:
    """Score every canary by its negative squared gradient norm.

    Two forms, as in :func:`memaudit.privacy.loss_scores`. With ``batch_argnums`` the gradient is taken by the first
    argument of ``loss_fn``, a tensor or a tree of tensors. A model goes through its strategy's per-record backward,
    over all shards, with one parameter's gradient in memory at a time.

    Args:
        loss_fn: a function of (args and batched tensors) that returns a scalar, or a model.
        *args: arguments of the function that are not batched; the first is differentiated.
        batch_argnums: positions of the batched arguments: sorted, distinct, without 0.
        coin_flip: the partition.
        dataset: the full dataset that the partition was made of.
        reference_scores: scores of the model before training; subtracted by canary.
        batch_size: records a batch.
        collate_fn: list of records to a tensor or a tuple of tensors, one row a record in the order given.
        tokenizer: for a model and a dataset of texts.
        max_length: for a model: cut records to so many tokens; None raises where they do not fit.
        method: ``vmap`` (several gradients at once), ``record`` (one at a time, 2x the model's memory), or ``auto``:
            vmap up to ``VMAP_PARAMETERS`` parameters in chunks of at most ``VMAP_CELLS`` gradient entries, one at
            a time above. The choice depends on sizes alone, so that scores do not depend on timing.

    Returns:
        A CanaryScores, shape (m,).

    Raises:
        ConfigurationError: malformed positions, batch size, collation, records or method.
        InputTypeError: ``reference_scores`` without identifiers.

    Example:
        >>> import torch
        >>> from memaudit.privacy import coin_flip
        >>> data = [torch.tensor([float(i)]) for i in range(6)]
        >>> flip = coin_flip(data, num_canaries=4, key=0)
        >>> scores = gradient_scores(lambda w, x: ((w - x) ** 2).sum(), torch.zeros(1), batch_argnums=(1,),
        ...                          coin_flip=flip, dataset=data)
        >>> bool((scores.scores == -4 * flip.canary_indices.astype(float) ** 2).all())
        True
    """
    check_audit(dataset, coin_flip, batch_size)
    check_reference(reference_scores)
    if method not in _METHODS:
        raise ConfigurationError(f"method is {method!r}; give one of {', '.join(_METHODS)}")
    if batch_argnums is None:
        if args:
            raise ConfigurationError(
                f"{len(args)} arguments and no batch_argnums; say which arguments are batched, or give a model"
            )
        if method == "vmap":
            raise ConfigurationError(
                "method is 'vmap' with a model, whose records go one at a time; use 'auto'"
            )
        strategy = through_model.as_strategy(loss_fn)
        records = through_model.token_records(strategy, dataset, coin_flip, tokenizer, max_length)
        norms = through_model.gradient_norms(strategy, records, coin_flip)
        return less_reference(CanaryScores(-norms, coin_flip.canary_indices), reference_scores)

    import torch

    positions = check_batch_argnums(batch_argnums, len(args))
    if 0 in positions:
        raise ConfigurationError(
            f"batch_argnums is {positions}; position 0 is differentiated and cannot be batched"
        )
    chunk_size = _chunk(args[0], batch_size, method)
    in_dims = tuple(0 if index in positions else None for index in range(len(args) + len(positions)))
    gradient = torch.func.grad(loss_fn)

    def squared_norm(*arguments: Any) -> Any:
        leaves = torch.utils._pytree.tree_leaves(gradient(*arguments))
        return torch.stack([leaf.float().pow(2).sum() for leaf in leaves]).sum()

    mapped = torch.func.vmap(squared_norm, in_dims=in_dims)
    names: list[int] = []
    values: list[float] = []
    with torch.no_grad():
        for chunk, tensors in batches(dataset, coin_flip, batch_size, collate_fn, len(positions)):
            names.extend(chunk)
            for start in range(0, len(chunk), chunk_size):
                part = tuple(tensor[start : start + chunk_size] for tensor in tensors)
                if chunk_size == 1:
                    norm = squared_norm(*merge_arguments(args, [tensor[0] for tensor in part], positions))
                    values.append(-float(norm))
                else:
                    norms = mapped(*merge_arguments(args, part, positions))
                    values.extend((-norms.double().cpu()).tolist())
    return less_reference(CanaryScores(np.asarray(values, dtype=np.float64), names), reference_scores)


def _chunk(parameters: Any, batch_size: int, method: str) -> int:
    """How many records' gradients to hold at once."""
    import torch

    if method == "record":
        return 1
    size = sum(leaf.numel() for leaf in torch.utils._pytree.tree_leaves(parameters) if hasattr(leaf, "numel"))
    if size == 0:
        raise ConfigurationError(
            "the first argument holds no tensor; give the parameters to differentiate by"
        )
    if method == "auto" and size > VMAP_PARAMETERS:
        return 1
    return batch_size if method == "vmap" else max(1, min(batch_size, VMAP_CELLS // size))
