"""Reference scores: adapters off, the model's own scores at step 0, a base checkpoint, or none."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from memaudit.engine import AuditEngine, ScoreResult
from memaudit.errors import ReferenceModeError
from memaudit.files import write_atomic
from memaudit.fingerprint import model_fingerprint
from memaudit.probes import Probe
from memaudit.signals import TokenSignals

Mode = Literal["adapter", "initial", "checkpoint", "none"]

INITIAL_NAME = "memaudit-initial.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Where reference scores come from, and the scores once they are taken.

    ``identity`` says which weights answered, ``note`` what the reader of the report should know.
    """

    mode: Mode
    identity: str
    note: str = ""
    signals: dict[str, TokenSignals] | None = field(default=None, repr=False)
    cost: ScoreResult | None = field(default=None, repr=False)


def choose_mode(ref: str, engine: AuditEngine) -> tuple[Mode, str]:
    """Return the reference mode that ``ref`` names for this model, and why it was chosen.

    Args:
        ref: "auto", "adapter", "initial", "none", or a path.
        engine: with the strategy of the model.

    Raises:
        ReferenceModeError: "adapter" was asked of a model that cannot switch its adapters off.
    """
    if ref == "none":
        return (
            "none",
            "no reference was asked for: a weaker audit, since text that is easy for any model scores high",
        )
    if ref == "initial":
        return "initial", "the model's own scores before its first training step"
    if ref in ("auto", "adapter"):
        try:
            has_adapters = engine.strategy.reference() is not None
            reason = "the model has no adapters"
        except ReferenceModeError as error:
            if ref == "adapter":
                raise
            has_adapters, reason = False, str(error)
        if has_adapters:
            return "adapter", "the same model with its adapters off"
        if ref == "adapter":
            raise ReferenceModeError(
                f"ref='adapter', but {reason}; use ref='initial', a base checkpoint, or 'none'"
            )
        return "initial", f"the model's own scores before its first training step ({reason})"
    if not Path(ref).exists():
        raise ReferenceModeError(
            f"ref={ref!r} is neither a mode (auto, adapter, initial, none) nor the path of a checkpoint that exists"
        )
    return "checkpoint", "a base checkpoint"


def take_adapter(engine: AuditEngine, probes: Sequence[Probe], note: str) -> Reference:
    """Score every probe with the adapters off, on the shards; every rank calls."""
    fingerprint = f"adapters-off:{engine.fingerprint or model_fingerprint(engine.strategy)}"
    result = engine.score(probes, "reference", fingerprint=fingerprint)
    return Reference(mode="adapter", identity="adapters off", note=note, signals=result.signals, cost=result)


def take_initial(
    engine: AuditEngine, probes: Sequence[Probe], note: str, *, step: int, folder: Path, manifest_hash: str
) -> Reference:
    """Take the scores at step 0, or find those that an earlier part of the run took.

    Args:
        engine: with a store: a resumed run finds the scores there.
        probes: every canary's probe.
        note: for the report.
        step: optimizer steps done so far.
        folder: the run's output folder, seen by every rank.
        manifest_hash: of the manifest; scores taken for another one are never used.

    Raises:
        ReferenceModeError: training has begun and nothing was kept: a reference would be too late.
    """
    record = folder / INITIAL_NAME
    if step == 0:
        fingerprint = model_fingerprint(engine.strategy)
        result = engine.score(probes, fingerprint=fingerprint)
        if engine.strategy.rank == 0:
            document = {"fingerprint": fingerprint, "manifest_sha256": manifest_hash}
            write_atomic(record, json.dumps(document, indent=1))
        engine.strategy.barrier()
        identity = f"step 0, weights {fingerprint[:16]}"
        return Reference(mode="initial", identity=identity, note=note, signals=result.signals, cost=result)
    reason = _why_not_reusable(record, manifest_hash)
    found: dict[str, TokenSignals] = {}
    fingerprint = ""
    if reason is None and engine.store is not None:
        fingerprint = json.loads(record.read_text())["fingerprint"]
        found = engine.store.get_many({probe.key for probe in probes}, fingerprint)
        absent = len({probe.key for probe in probes} - set(found))
        reason = (
            f"{absent} of the canaries have no scores from step 0 in {engine.store.path}" if absent else None
        )
    # Every rank must come to the same answer, or one would raise while the others wait for it.
    reasons = [text for text in engine.strategy.gather([reason]) if text]
    if reasons:
        raise ReferenceModeError(
            f"the reference would be taken at step {step}, after training has begun, and {reasons[0]}; audit from "
            "step 0 on (a resumed run needs the same output folder), or give ref=<base checkpoint> or ref='none'"
        )
    return Reference(
        mode="initial",
        identity=f"step 0, weights {fingerprint[:16]}",
        note=f"{note}; kept from before this run was resumed",
        signals={probe.id: found[probe.key] for probe in probes},
    )


def _why_not_reusable(record: Path, manifest_hash: str) -> str | None:
    try:
        document = json.loads(record.read_text())
        same = document["manifest_sha256"] == manifest_hash and bool(document["fingerprint"])
    except FileNotFoundError:
        return f"no scores from step 0 were kept ({record} is missing)"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{record} is damaged"
    return None if same else f"{record} belongs to another manifest"


def take_checkpoint(engine: AuditEngine, probes: Sequence[Probe], path: str, note: str) -> Reference:
    """Score every probe with a base checkpoint, loaded on every rank for as long as that takes.

    Raises:
        ReferenceModeError: it cannot be loaded, or its vocabulary is smaller than the probes need.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from memaudit.strategies.resolve import resolve

    target = engine.strategy.model
    first = next(target.parameters())
    device = first.device if first.device.type != "meta" else torch.device("cpu")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=first.dtype)
        model = model.to(device).eval()
    except Exception as error:
        raise ReferenceModeError(
            f"the reference checkpoint {path} cannot be loaded ({type(error).__name__})"
        ) from error
    size = model.get_input_embeddings().weight.shape[0]
    largest = max(max(probe.token_ids) for probe in probes)
    if largest >= size:
        raise ReferenceModeError(
            f"the reference checkpoint {path} has a vocabulary of {size} tokens, the canaries need {largest + 1}: "
            "it is not the base of this model, or its embeddings were resized"
        )
    own = AuditEngine(
        strategy=resolve(model),
        store=engine.store,
        max_batch_size=engine.max_batch_size,
        max_batch_tokens=engine.max_batch_tokens,
        failure_timeout=engine.failure_timeout,
    )
    fingerprint = model_fingerprint(own.strategy)
    result = own.score(probes, fingerprint=fingerprint)
    return Reference(
        mode="checkpoint",
        identity=f"{path}, weights {fingerprint[:16]}",
        note=note,
        signals=result.signals,
        cost=result,
    )
