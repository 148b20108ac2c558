"""``run_preflight()``: what would silently turn an audit into noise, looked for before training."""

from __future__ import annotations

from typing import Any

from memaudit.canaries.tokens import TokenizerLike
from memaudit.manifest import Manifest
from memaudit.preflight.design_checks import check_design, check_text
from memaudit.preflight.findings import Finding, PreflightResult, ScanCounts, ordered
from memaudit.preflight.loaders import is_lightning, is_loader, source_of_lightning, source_of_loader
from memaudit.preflight.peft_checks import check_model
from memaudit.preflight.sources import Collator, Source
from memaudit.preflight.survival import survive
from memaudit.preflight.trainer_checks import check_trainer, max_length_of, source_of, tokenizer_of

MAX_ROWS = 50_000


def run_preflight(
    trained_on: Any,
    manifest: Manifest,
    *,
    tokenizer: TokenizerLike | None = None,
    model: Any = None,
    collator: Collator | None = None,
    max_length: int | None = None,
    max_rows: int = MAX_ROWS,
) -> PreflightResult:
    """Look for every canary in the rows that training will really see, and check the set-up around them.

    Nothing of the trainer is moved: its iterators, samplers and random states are as they were. Datasets that are
    tokenised already are read whole, column by column; rows that only a collator can make, and streams, up to
    ``max_rows``.

    Args:
        trained_on: a Hugging Face Trainer or TRL trainer, a Lightning Trainer, a torch DataLoader, a dataset, or
            an iterable of batches (mappings with input_ids, labels, attention_mask) or rows.
        manifest: what :func:`memaudit.inject` returned.
        tokenizer: the training's; a Hugging Face trainer's own by default.
        model: for the checks of adapters; a trainer's own by default.
        collator: what turns a dataset's rows into batches; a trainer's own by default.
        max_length: tokens that records are cut to; a TRL trainer's own by default.
        max_rows: rows that pass through Python at most.

    Returns:
        The findings, the scan's counts, and the observed context; ``raise_for_errors()`` stops training.
    """
    source: Source | None
    findings: list[Finding] = list(check_design(manifest))
    if is_lightning(trained_on):
        source, more = source_of_lightning(trained_on, max_rows)
        model = model if model is not None else getattr(trained_on, "lightning_module", None)
    elif hasattr(trained_on, "train_dataset") and hasattr(trained_on, "args"):
        source, more = source_of(trained_on, max_rows)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_of(trained_on)
        model = model if model is not None else getattr(trained_on, "model", None)
        max_length = max_length if max_length is not None else max_length_of(trained_on)
        findings.extend(check_trainer(trained_on, manifest))
    elif is_loader(trained_on):
        source, more = source_of_loader(trained_on, max_rows), []
    else:
        source, more = Source(trained_on, collator, max_rows), []
    findings.extend(more)
    findings.extend(check_text(manifest, tokenizer, max_length))
    findings.extend(check_model(model))
    if source is None:
        counts = ScanCounts(expected=len(manifest.members), complete=False)
        return PreflightResult(ordered(findings), counts)
    seen = survive(manifest, source, tokenizer, max_length)
    return PreflightResult(
        ordered([*findings, *seen.findings]), seen.counts, seen.observed_prefix, seen.observed
    )
