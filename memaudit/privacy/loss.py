"""Membership scores from the loss: the lower a record's loss, the more it looks like a member."""

from __future__ import annotations

from typing import Any

import numpy as np

from memaudit.errors import ConfigurationError, InputTypeError
from memaudit.privacy import model as through_model
from memaudit.privacy.coins import CoinFlip
from memaudit.privacy.records import Collate, batches, check_audit, check_batch_argnums, merge_arguments
from memaudit.privacy.scores import CanaryScores


def loss_scores(
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
    which: str = "target",
) -> CanaryScores:
    """Score every canary by its negative loss (Steinke et al. 2023, Algorithm 3, with ``reference_scores``).

    Two forms. With ``batch_argnums``, ``loss_fn`` is a per-example loss and is mapped over batches by
    ``torch.func.vmap``. Without, ``loss_fn`` is a Hugging Face model, a trainer, an Accelerator or a strategy, on
    whatever shards; its records are texts or token ids, and the score is the mean log-probability in nats of the
    labelled tokens.

    Args:
        loss_fn: a function of (args and batched tensors) that returns a scalar, or a model.
        *args: arguments of the function that are not batched, for example parameters.
        batch_argnums: positions of the batched arguments: sorted, distinct.
        coin_flip: the partition.
        dataset: the full dataset that the partition was made of.
        reference_scores: scores of the model before training; subtracted by canary.
        batch_size: records a batch.
        collate_fn: list of records to a tensor or a tuple of tensors, one row a record in the order given; a
            reordering cannot be detected. None takes torch's default_collate.
        tokenizer: for a model and a dataset of texts.
        max_length: for a model: cut records to so many tokens; None raises where they do not fit.
        which: for a model: ``target``, or ``reference`` for adapters off.

    Returns:
        A CanaryScores, shape (m,), on every rank.

    Raises:
        ConfigurationError: malformed positions, batch size, collation or records.
        InputTypeError: ``reference_scores`` without identifiers.

    Example:
        >>> import torch
        >>> from memaudit.privacy import coin_flip
        >>> data = [torch.tensor([float(i)]) for i in range(6)]
        >>> flip = coin_flip(data, num_canaries=4, key=0)
        >>> scores = loss_scores(lambda w, x: ((w - x) ** 2).sum(), torch.zeros(1), batch_argnums=(1,),
        ...                      coin_flip=flip, dataset=data)
        >>> bool((scores.scores == -(flip.canary_indices.astype(float) ** 2)).all())
        True
    """
    check_audit(dataset, coin_flip, batch_size)
    check_reference(reference_scores)
    if batch_argnums is None:
        if args:
            raise ConfigurationError(
                f"{len(args)} arguments and no batch_argnums; say which arguments are batched, or give a model"
            )
        strategy = through_model.as_strategy(loss_fn)
        records = through_model.token_records(strategy, dataset, coin_flip, tokenizer, max_length)
        values = through_model.mean_log_probabilities(strategy, records, batch_size=batch_size, which=which)
        return less_reference(CanaryScores(values, coin_flip.canary_indices), reference_scores)

    import torch

    positions = check_batch_argnums(batch_argnums, len(args))
    in_dims = tuple(0 if index in positions else None for index in range(len(args) + len(positions)))
    per_record = torch.func.vmap(loss_fn, in_dims=in_dims)
    names: list[int] = []
    pieces: list[np.ndarray[Any, Any]] = []
    with torch.no_grad():
        for chunk, tensors in batches(dataset, coin_flip, batch_size, collate_fn, len(positions)):
            losses = per_record(*merge_arguments(args, tensors, positions))
            if losses.ndim != 1:
                raise ConfigurationError(
                    f"the loss of a record has shape {tuple(losses.shape[1:])}; let loss_fn return a scalar"
                )
            names.extend(chunk)
            pieces.append(-losses.detach().double().cpu().numpy())
    values = np.concatenate(pieces) if pieces else np.empty(0)
    return less_reference(CanaryScores(values, names), reference_scores)


def check_reference(reference: Any) -> None:
    """Refuse reference scores that do not say whose they are."""
    if reference is not None and not isinstance(reference, CanaryScores):
        raise InputTypeError(
            f"reference_scores are of type {type(reference).__name__}; give the CanaryScores of the untrained model"
        )


def less_reference(scores: CanaryScores, reference: CanaryScores | None) -> CanaryScores:
    """Return the scores less the reference's, where there is one."""
    return scores if reference is None else scores.minus(reference)
