"""Checks on a Hugging Face Trainer or TRL trainer: its options, its columns, and the rows that it really has."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memaudit.injection import datasets_hf as hf
from memaudit.injection.formats import FORMATS
from memaudit.manifest import Manifest
from memaudit.preflight.design_checks import check_resumed
from memaudit.preflight.findings import Finding
from memaudit.preflight.sources import Source

MANIFEST_NAME = "memaudit-manifest.json"
"""Where a run keeps its manifest, in its output folder."""


def tokenizer_of(trainer: Any) -> Any:
    """Return the trainer's tokenizer: its processing class, or the tokenizer in it."""
    processing = getattr(trainer, "processing_class", None)
    return getattr(processing, "tokenizer", processing)


def source_of(trainer: Any, max_rows: int) -> tuple[Source | None, list[Finding]]:
    """Return the rows that the trainer's data loader draws from, after its column filter, and its collator."""
    dataset = getattr(trainer, "train_dataset", None)
    if dataset is None:
        return None, [
            Finding(
                "no-train-data", "error", "the trainer has no train_dataset", "pass what inject() returned"
            )
        ]
    collator = getattr(trainer, "data_collator", None)
    found: list[Finding] = []
    if hf.kind(dataset) in ("dataset", "stream") and hasattr(trainer, "_remove_unused_columns"):
        try:
            names = dataset.column_names
            if hf.kind(dataset) == "dataset" or names:
                dataset = trainer._remove_unused_columns(dataset, description="training")
        except ValueError:
            found.append(_columns_removed(trainer))
            return None, found
    elif hasattr(trainer, "_get_collator_with_removed_columns") and collator is not None:
        collator = trainer._get_collator_with_removed_columns(collator, description="training")
    return Source(dataset, collator, max_rows), found


def _columns_removed(trainer: Any) -> Finding:
    names = ", ".join(map(str, getattr(trainer.train_dataset, "column_names", None) or []))
    return Finding(
        "columns-removed",
        "error",
        f"remove_unused_columns leaves none of the columns {names}",
        "set remove_unused_columns=False, or tokenise the data before the trainer is made",
    )


def max_length_of(trainer: Any) -> int | None:
    """Return the length that records are cut to; None where they are packed or not cut."""
    args = trainer.args
    if getattr(args, "packing", False):
        return None
    limit = getattr(args, "max_length", None) or getattr(args, "max_seq_length", None)
    return int(limit) if limit else None


def check_trainer(trainer: Any, manifest: Manifest) -> Iterator[Finding]:
    """Yield findings about the trainer's options."""
    args = trainer.args
    yield from _masks(trainer, manifest)
    yield from _packing(args)
    yield from _columns(trainer, manifest)
    yield from _coverage(trainer)
    if (getattr(args, "dataset_kwargs", None) or {}).get("skip_prepare_dataset"):
        yield Finding(
            "skip-prepare",
            "warning",
            "skip_prepare_dataset is set: TRL tokenises and masks nothing",
            "make sure that the rows hold the labels that are meant",
        )
    if getattr(args, "use_liger_kernel", False):
        yield Finding(
            "liger",
            "info",
            "Liger kernels are on: the model's forward may return no logits while training",
            "nothing to do: scores are taken in evaluation mode",
        )
    state = getattr(trainer, "state", None)
    resumed = int(getattr(state, "global_step", 0) or 0) > 0
    if args.output_dir:
        yield from check_resumed(manifest, Path(args.output_dir) / MANIFEST_NAME, resumed=resumed)


def _masks(trainer: Any, manifest: Manifest) -> Iterator[Finding]:
    args = trainer.args
    template = getattr(trainer, "chat_template", None) or getattr(
        tokenizer_of(trainer), "chat_template", None
    )
    if (
        getattr(args, "assistant_only_loss", False)
        and isinstance(template, str)
        and not _marks_generation(template)
    ):
        yield Finding(
            "no-generation-markers",
            "error",
            "assistant_only_loss is set and the chat template has no {% generation %} markers: its mask is empty",
            "put {% generation %} ... {% endgeneration %} around the assistant's content, or unset it",
        )
    if getattr(args, "completion_only_loss", None) and manifest.fmt not in (
        "prompt_completion",
        "preference",
        "input_ids",
    ):
        yield Finding(
            "completion-mask-unused",
            "warning",
            f"completion_only_loss is set and the canaries stand in {manifest.fmt} rows, which have no completion",
            "inject as prompt_completion, or unset completion_only_loss",
        )


def _marks_generation(template: str) -> bool:
    """Whether a chat template has the statement that opens an assistant's content.

    Example:
        >>> _marks_generation("{%- generation -%}"), _marks_generation("{% if add_generation_prompt %}")
        (True, False)
    """
    return re.search(r"\{%-?\s*generation\s*-?%\}", template) is not None


def _packing(args: Any) -> Iterator[Finding]:
    if not getattr(args, "packing", False):
        return
    strategy = str(getattr(args, "packing_strategy", "bfd"))
    if "wrapped" in strategy:
        yield Finding(
            "packing-wraps",
            "warning",
            "packing cuts the stream of tokens anywhere: copies of secrets are split over rows",
            "use packing_strategy='bfd', which keeps records whole",
        )
    else:
        yield Finding(
            "packing",
            "info",
            f"records are packed ({strategy}): without attention that parts them, a secret sees other records",
            "use an attention implementation that keeps packed records apart",
        )


def _columns(trainer: Any, manifest: Manifest) -> Iterator[Finding]:
    names = set(getattr(trainer.train_dataset, "column_names", None) or [])
    columns: dict[str, str] = {}
    for canary in manifest.canaries[:1]:
        columns = dict(canary.metadata.get("columns", {}))
    form = FORMATS.get(manifest.fmt)
    # Where the rows hold token ids, those are trained on, whatever other columns lie beside them.
    if form is None or not names or manifest.fmt == "input_ids" or "input_ids" in names:
        return
    raw = {column for other in FORMATS.values() for column in other.roles.values()} - {
        "input_ids",
        "labels",
        "attention_mask",
    }
    needed = {columns.get(role, column) for role, column in form.roles.items() if role not in form.optional}
    converted = manifest.fmt == "sharegpt" and "messages" in names  # TRL renames the turns
    if names & raw and not needed <= names and not converted:
        yield Finding(
            "fmt-columns",
            "error",
            f"the canaries were made as {manifest.fmt} ({', '.join(sorted(needed))}) and the trainer's data has "
            f"{', '.join(sorted(names & raw))}",
            "inject into the data that the trainer gets, with fmt='auto' or its format's name",
        )


def _coverage(trainer: Any) -> Iterator[Finding]:
    """Yield findings about rows that training may end before."""
    args = trainer.args
    try:
        rows = len(trainer.train_dataset)
    except TypeError:
        yield Finding(
            "stream-without-length",
            "warning",
            "the training data is a stream: only its beginning is looked at, and max_steps decides what is trained on",
            "give inject() the number of rows that will be trained on with n_rows=",
        )
        return
    steps = int(getattr(args, "max_steps", -1) or -1)
    if steps > 0:
        batch = getattr(args, "train_batch_size", 1) * getattr(args, "gradient_accumulation_steps", 1)
        seen = steps * batch * int(getattr(args, "world_size", 1))
        if seen < rows:
            share = seen / rows
            yield Finding(
                "rows-not-reached",
                "warning",
                f"max_steps={steps} ends training after about {share:.0%} of one epoch: "
                f"about {math.ceil(100 * (1 - share))}% of the planted copies are never trained on",
                "raise max_steps to an epoch, or set num_train_epochs",
            )
