"""What to try next: heuristics in the order in which they usually help. Not a compliance programme."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memaudit.report.numbers import percent
from memaudit.report.schema.extraction import Regurgitation
from memaudit.report.schema.membership import Membership

LEAKY_TPR = 0.10
DUPLICATE_RATE = 0.02


def recommendations(
    *,
    membership: Membership,
    regurgitation: Regurgitation,
    adapter: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    exact_dup_rate: float | None,
    preflight: Mapping[str, Any] | None,
) -> list[str]:
    """Return recommendations, the most useful first.

    Args:
        membership, regurgitation: the two verdicts.
        adapter: ``r``, ``lora_alpha``, ``modules_to_save`` and the like; None without adapters.
        config: the resolved configuration; ``num_train_epochs`` and ``learning_rate`` are looked for in it
        and one
            level below.
        exact_dup_rate: share of exact duplicates among the training texts, None where it was not measured.
        preflight: its result; up to five warnings are repeated.
    """
    return list(_lines(membership, regurgitation, adapter or {}, config, exact_dup_rate, preflight or {}))


def is_leaky(membership: Membership, regurgitation: Regurgitation) -> bool:
    """Whether the run shows memorisation: a TPR of a tenth or more, or any regurgitated canary."""
    emitted = regurgitation.overall.count or regurgitation.detected.n_detected
    return (membership.tpr_at_target_fpr or 0.0) >= LEAKY_TPR or bool(emitted)


def _lines(
    membership: Membership,
    regurgitation: Regurgitation,
    adapter: Mapping[str, Any],
    config: Mapping[str, Any],
    dup: float | None,
    preflight: Mapping[str, Any],
) -> Iterator[str]:
    leaky = is_leaky(membership, regurgitation)
    if not membership.headline_valid:
        yield f"Get a valid headline first: {membership.headline_reason}."
    if leaky or (dup is not None and dup > DUPLICATE_RATE):
        seen = "" if dup is None else f" ({percent(dup)} exact duplicates were seen)"
        yield f"Deduplicate the training data, exactly and nearly: repetition drives memorisation{seen}."
    epochs = _number(config, "num_train_epochs", "epochs", "max_epochs")
    if leaky or (epochs is not None and epochs >= 3):
        yield "Train fewer epochs and stop early: each epoch is one more repetition of every record."
    rank, alpha = _number(adapter, "r"), _number(adapter, "lora_alpha")
    if rank is not None and rank > 16 and leaky:
        yield f"Lower the LoRA rank (now {rank:g}) and audit again."
    if rank is not None and alpha is not None and alpha > 2 * rank:
        yield f"Lower lora_alpha (now {alpha:g}, more than twice the rank {rank:g}): it scales every update."
    rate = _number(config, "learning_rate", "lr")
    if leaky and rate is not None and rate >= 1e-4:
        yield f"Lower the learning rate (now {rate:g})."
    saved = [str(name) for name in adapter.get("modules_to_save") or []]
    if any(word in name for name in saved for word in ("head", "embed")):
        names = ", ".join(saved)
        yield f"Leave output and input embeddings out of modules_to_save ({names}): they store rare tokens."
    if adapter.get("trainable_token_indices"):
        yield "Trainable token embeddings store what is rare in the data; freeze them if the task allows."
    yield (
        "If memorisation has to go down further: dropout, then a loss that leaves tokens out (goldfish), "
        "then "
        "gradient clipping, then DP-SGD with a stated epsilon; audit after each."
    )
    yield (
        "Not sufficient by themselves: output filters for exact matches, system prompts, unlearning without "
        "an "
        "audit, renaming or masking identifiers alone."
    )
    warnings = preflight.get("warnings") or []
    for warning in list(warnings)[:5]:
        text = warning.get("message", warning) if isinstance(warning, Mapping) else warning
        yield f"Preflight: {text}"


def _number(values: Mapping[str, Any], *names: str) -> float | None:
    for mapping in (values, *(v for v in values.values() if isinstance(v, Mapping))):
        for name in names:
            found = mapping.get(name)
            if isinstance(found, int | float) and not isinstance(found, bool):
                return float(found)
    return None
