"""The reference of a run that is over: adapters off, scores kept from step 0, a base checkpoint, or none."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from pathlib import Path

from memaudit.engine import AuditEngine
from memaudit.errors import ReferenceModeError
from memaudit.manifest import Manifest
from memaudit.posthoc.checkpoints import Checkpoint, Loading, detect, fingerprint, load
from memaudit.posthoc.ranks import from_rank_zero
from memaudit.probes import Probe
from memaudit.references import INITIAL_NAME, Reference, take_adapter
from memaudit.session import SIGNALS_NAME
from memaudit.store import SignalStore
from memaudit.strategies.resolve import resolve

MODES = ("auto", "adapter", "initial", "none")


def checkpoint_reference(
    path: str, probes: list[Probe], store: SignalStore, loading: Loading, limits: Mapping[str, int]
) -> Reference:
    """Score every probe with a base checkpoint, which is loaded, sharded as the target is, only if it must be.

    Args:
        path: the base.
        probes: what is to be scored.
        store: where its signals are kept, for other checkpoints of the sweep too.
        loading: as for the target.
        limits: max_batch_size and max_batch_tokens of the engine.

    Raises:
        CheckpointError: there is none, or it does not fit its configuration.
        ReferenceModeError: its vocabulary is too small for the canaries.
    """
    found = detect(path)
    name = from_rank_zero(fingerprint(found))
    note = "a base checkpoint"
    kept = store.get_many({probe.key for probe in probes}, name)
    have = from_rank_zero(all(probe.key in kept for probe in probes))
    if have:
        signals = {probe.id: kept[probe.key] for probe in probes}
        return Reference(mode="checkpoint", identity=_identity(name), note=note, signals=signals)
    strategy = resolve(load(found, loading).model)
    size = _vocabulary(strategy.model)
    largest = max(max(probe.token_ids) for probe in probes)
    if size is not None and largest >= size:
        raise ReferenceModeError(
            f"the reference {path} has a vocabulary of {size} tokens, the canaries need {largest + 1}: "
            "it is not the base of this model, or its embeddings were resized"
        )
    engine = AuditEngine(
        strategy=strategy,
        store=store,
        fingerprint=name,
        fixed_batches=True,
        max_batch_size=limits["max_batch_size"],
        max_batch_tokens=limits["max_batch_tokens"],
    )
    result = engine.score(probes)
    del engine, strategy
    gc.collect()  # the target takes its place
    return Reference(
        mode="checkpoint", identity=_identity(name), note=note, signals=result.signals, cost=result
    )


def adapter_reference(engine: AuditEngine, probes: list[Probe]) -> Reference:
    """Score every probe with the adapters off.

    Raises:
        ReferenceModeError: the adapters cannot be switched off without changing more than they added.
    """
    return take_adapter(engine, probes, "the same model with its adapters off")


def initial_reference(
    probes: list[Probe], manifest: Manifest, folders: list[Path]
) -> tuple[Reference | None, str]:
    """Find the scores that the training run kept from its step 0.

    Args:
        probes: every canary's probe.
        manifest: scores of another one are never used.
        folders: where the run may have kept them, in order.

    Returns:
        The reference, or None and the reason.
    """
    reason = f"no {INITIAL_NAME} in {', '.join(str(folder) for folder in folders)}"
    for folder in folders:
        record = folder / INITIAL_NAME
        if not record.is_file():
            continue
        try:
            document = json.loads(record.read_text())
            name, digest = str(document["fingerprint"]), document["manifest_sha256"]
        except (OSError, ValueError, KeyError, TypeError):
            reason = f"{record} is damaged"
            continue
        if digest != manifest.content_hash():
            reason = f"{record} belongs to another manifest"
            continue
        found = SignalStore(folder / SIGNALS_NAME).get_many({probe.key for probe in probes}, name)
        absent = sum(probe.key not in found for probe in probes)
        if absent:
            reason = f"{folder / SIGNALS_NAME} lacks the scores of {absent} canaries from step 0"
            continue
        return (
            Reference(
                mode="initial",
                identity=f"step 0, weights {name[:16]}",
                note="the model's own scores before its first training step, kept by the training run",
                signals={probe.id: found[probe.key] for probe in probes},
            ),
            "",
        )
    return None, reason


def run_folders(checkpoint: Checkpoint, output_dir: Path) -> list[Path]:
    """Return the folders in which the training run of a checkpoint may have kept its audit."""
    near = [checkpoint.path, *list(checkpoint.path.parents)[:3]]
    return list(dict.fromkeys([output_dir, *near]))


def no_reference_message(reason: str) -> str:
    """Say why "auto" found no reference, and what to give instead."""
    return (
        f"--ref auto: the model has no adapters that can be switched off, and {reason}; give --ref BASE_CHECKPOINT, "
        "or --ref none for a weaker audit that says so"
    )


def _identity(name: str) -> str:
    return f"weights {name[:16]}"


def _vocabulary(model: object) -> int | None:
    config = getattr(model, "config", None)
    size = getattr(config, "vocab_size", None)
    return size if isinstance(size, int) else None
