"""audit_checkpoint(): one checkpoint against a manifest, whole or one slice, resumable at any moment."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import memaudit
from memaudit.errors import CheckpointError, ConfigurationError, ReferenceModeError
from memaudit.extraction import extract_all
from memaudit.files import write_atomic
from memaudit.injection import render_all
from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.posthoc.checkpoints import Checkpoint, Loading, detect, fingerprint, load
from memaudit.posthoc.interrupt import Flag, InterruptibleStore
from memaudit.posthoc.jobs import JobRecord
from memaudit.posthoc.ranks import from_rank_zero
from memaudit.posthoc.reference import (
    MODES,
    adapter_reference,
    checkpoint_reference,
    initial_reference,
    no_reference_message,
    run_folders,
)
from memaudit.posthoc.slices import Slice, take
from memaudit.posthoc.strategies import RememberingStrategy, model_record
from memaudit.probes import Probe
from memaudit.references import Reference
from memaudit.session import SIGNALS_NAME, AuditSession, require_same_tokenizer
from memaudit.strategies.resolve import resolve

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One audit of one checkpoint.

    Args:
        model: path or hub id of the checkpoint.
        manifest: path of the manifest.
        output_dir: folder of the report and of the job's record; every rank sees the same one.
        store: folder of the signals; ``memaudit-signals`` in the output folder where it is not given.
        tokenizer: path or hub id, where the checkpoint does not hold it.
        dataset: the user's own training records, a file that datasets reads.
        held_out: records that were held out, for the set-level test.
        part: the slice to score; None scores everything and writes the report.
        report: where to write the report.
        step: the step, where the checkpoint's name does not tell it.
        loading: how to load it.
        options: the audit's choices.
    """

    model: str
    manifest: str
    output_dir: Path
    store: Path | None = None
    tokenizer: str | None = None
    dataset: str | None = None
    held_out: str | None = None
    part: Slice | None = None
    report: Path | None = None
    step: int | None = None
    loading: Loading = field(default_factory=Loading)
    options: AuditOptions = field(default_factory=AuditOptions)


def audit_checkpoint(request: Request, flag: Flag | None = None) -> Any:
    """Audit a checkpoint; every rank of the process group calls.

    Signals are stored batch by batch, keyed by the content of the weights: after a kill the same call forwards
    what is missing and gives the same report.

    Args:
        request: what to audit.
        flag: set when the job should end; the current batch is stored first.

    Returns:
        The report, or the job's record for a slice.

    Raises:
        MemauditError: the checkpoint, manifest, tokenizer or reference cannot be used, or scoring failed.
        Interrupted: the flag was set.
    """
    manifest = Manifest.load(request.manifest)
    checkpoint = detect(request.model)
    _require_writable(request.output_dir)
    tokenizer, tokenizer_from = load_tokenizer(request, checkpoint)
    require_same_tokenizer(manifest, tokenizer)
    probes = [Probe(name, one.ids, one.span) for name, one in render_all(manifest, tokenizer).items()]
    store = InterruptibleStore(
        request.store or request.output_dir / SIGNALS_NAME, Flag() if flag is None else flag
    )
    weights = from_rank_zero(weights_name(checkpoint, request.loading))
    limits = {
        "max_batch_size": request.options.max_batch_size,
        "max_batch_tokens": request.options.max_batch_tokens,
    }
    wanted = probes if request.part is None else take(probes, request.part, **limits)
    reference = _early_reference(request, checkpoint, manifest, wanted, store, limits)
    loaded = load(checkpoint, request.loading)
    strategy = RememberingStrategy(resolve(loaded.model), store, weights)
    session = AuditSession(
        strategy, tokenizer, manifest, output_dir=request.output_dir, options=request.options
    )
    session.engine.store = store
    session.engine.fingerprint = weights
    session.engine.fixed_batches = True
    session.real_records = (read_records(request.dataset), read_records(request.held_out))
    if reference is None:
        reference = _late_reference(request, checkpoint, manifest, session, wanted)
    session.use_reference(reference)
    step = request.step if request.step is not None else checkpoint.step
    record = _record(request, checkpoint, manifest, session, reference, tokenizer_from, weights, step)
    if strategy.rank == 0:
        record.save(request.output_dir)
    store.check()
    if request.part is not None:
        forwards = _score_slice(session, wanted)
        done = record.model_copy(update={"complete": True, "forwards": forwards})
    else:
        result = session.audit(step)
        report = session.report(request.report)
        done = record.model_copy(update={"complete": True, "forwards": max(result.target.forwards)})
    strategy.barrier()
    if strategy.rank == 0:
        done.save(request.output_dir)
    del session, strategy, loaded
    gc.collect()
    return done if request.part is not None else report


def _require_writable(folder: Path) -> None:
    """Find out before hours of scoring that the folder cannot be written."""
    probe = write_atomic(folder / ".memaudit-writable", "")
    probe.unlink(missing_ok=True)


def weights_name(checkpoint: Checkpoint, loading: Loading) -> str:
    """Return the name of a checkpoint's weights in the store: content, base of an adapter, and dtype."""
    name = fingerprint(checkpoint)
    if checkpoint.kind == "adapter":
        from memaudit.posthoc.checkpoints.adapter import base_of

        name = f"{name}+{fingerprint(detect(base_of(checkpoint.path, loading.base)))}"
    return name if loading.dtype == "auto" else f"{name}:{loading.dtype}"


def load_tokenizer(request: Request, checkpoint: Checkpoint) -> tuple[Any, str]:
    """Return the tokenizer and where it came from: named, beside the weights, or beside the configuration.

    Raises:
        CheckpointError: there is none.
    """
    from transformers import AutoTokenizer

    candidates = [request.tokenizer] if request.tokenizer else _tokenizer_places(request, checkpoint)
    for place in candidates:
        if place is None or (Path(place).is_dir() and not _has_tokenizer(Path(place))):
            continue
        try:
            return AutoTokenizer.from_pretrained(place), str(place)
        except Exception as error:
            logger.debug("no tokenizer at %s", place, exc_info=True)
            if request.tokenizer:
                raise CheckpointError(
                    f"no tokenizer can be read at {place} ({type(error).__name__}); name the folder that "
                    "tokenizer.save_pretrained wrote"
                ) from error
    raise CheckpointError(
        f"no tokenizer beside {checkpoint.path}; name the one that the canaries were drawn for: --tokenizer PATH_OR_ID"
    )


def _tokenizer_places(request: Request, checkpoint: Checkpoint) -> list[str]:
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    places = [str(folder), str(folder.parent)]
    if checkpoint.config is not None:
        places.append(str(checkpoint.config))
    if request.loading.config_from is not None:
        places.append(request.loading.config_from)
    if checkpoint.kind == "adapter":
        from memaudit.posthoc.checkpoints.adapter import base_of

        places.append(base_of(checkpoint.path, request.loading.base))
    return places


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    return any((folder / name).is_file() for name in names)


def read_records(path: str | None) -> Any:
    """Return the records of a JSON, JSONL, CSV, Parquet or text file, or of a saved datasets folder.

    Raises:
        ConfigurationError: it is missing, or of no kind that is known.
    """
    if path is None:
        return None
    import datasets

    file = Path(path)
    kinds = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
    if not file.exists():
        raise ConfigurationError(f"no dataset at {path}; correct the path, or leave --dataset out")
    try:
        if file.is_dir():
            return datasets.load_from_disk(str(file))
        if file.suffix in kinds:
            return datasets.load_dataset(kinds[file.suffix], data_files=str(file), split="train")
    except Exception as error:
        raise ConfigurationError(f"cannot read the dataset {path}: {type(error).__name__}") from error
    raise ConfigurationError(
        f"dataset {path} is of no known kind; give {', '.join(kinds)} or a datasets folder"
    )


def _early_reference(
    request: Request,
    checkpoint: Checkpoint,
    manifest: Manifest,
    probes: list[Probe],
    store: InterruptibleStore,
    limits: Mapping[str, int],
) -> Reference | None:
    """Return the reference that is to be had before the target is loaded, or None."""
    ref = request.options.ref
    if ref == "none":
        note = "no reference was asked for: a weaker audit, since text that is easy for any model scores high"
        return Reference(mode="none", identity="none", note=note)
    if ref == "initial":
        found, reason = initial_reference(probes, manifest, run_folders(checkpoint, request.output_dir))
        if found is None:
            raise ReferenceModeError(f"--ref initial: {reason}; give --ref BASE_CHECKPOINT or --ref none")
        return found
    if ref not in MODES:
        return checkpoint_reference(ref, probes, store, request.loading, limits)
    return None


def _late_reference(
    request: Request, checkpoint: Checkpoint, manifest: Manifest, session: AuditSession, probes: list[Probe]
) -> Reference:
    """Return the reference of "auto" or "adapter": the loaded model's own adapters, or scores from step 0."""
    try:
        has_adapters, reason = session.strategy.reference() is not None, ""
    except ReferenceModeError as error:
        if request.options.ref == "adapter":
            raise
        has_adapters, reason = False, str(error)
    if has_adapters:
        return adapter_reference(session.engine, probes)
    if request.options.ref == "adapter":
        raise ReferenceModeError(
            "--ref adapter, but the model has no adapters; give --ref BASE_CHECKPOINT or none"
        )
    found, why = initial_reference(probes, manifest, run_folders(checkpoint, request.output_dir))
    if found is None:
        raise ReferenceModeError(no_reference_message(why if not reason else f"{why} ({reason})"))
    return found


def _score_slice(session: AuditSession, probes: list[Probe]) -> int:
    """Score one slice's canaries, and generate what their signals leave open; return this rank's forwards."""
    target = session.engine.score(probes)
    if not session.options.skip_generation:
        extract_all(
            {probe.id: session.rendered[probe.id] for probe in probes},
            target.signals,
            strategy=session.strategy,
            fractions=session.options.prefix_fractions,
            decodings=session.options.decodings,
            decode=lambda ids: session.tokenizer.decode(ids, clean_up_tokenization_spaces=False),
            max_batch_size=session.options.max_batch_size,
        )
    return max(target.forwards)


def _record(
    request: Request,
    checkpoint: Checkpoint,
    manifest: Manifest,
    session: AuditSession,
    reference: Reference,
    tokenizer_from: str,
    weights: str,
    step: int | None,
) -> JobRecord:
    """Write down what this job is part of, so that only jobs of one audit are ever joined."""
    part = request.part or Slice(0, 1)
    facts = asdict(session.strategy.facts())
    facts["details"] = {"lockstep": session.strategy.lockstep}  # how generations were asked for
    return JobRecord(
        tool_version=memaudit.__version__,
        checkpoint=str(checkpoint.path),
        kind=checkpoint.kind,
        step=step,
        slice_index=part.index,
        slice_count=part.count,
        manifest=str(Path(request.manifest).resolve()),
        manifest_sha256=manifest.content_hash(),
        weights=weights,
        tokenizer=tokenizer_from,
        model=model_record(session.strategy),
        facts=facts,
        reference=_reference_record(request, reference, weights),
        options=request.options.to_dict(),
        dataset=request.dataset,
    )


def _reference_record(request: Request, reference: Reference, weights: str) -> dict[str, Any]:
    names = {"adapter": f"adapters-off:{weights}", "none": ""}
    if reference.mode in names:
        fingerprint_of = names[reference.mode]
    elif reference.mode == "checkpoint":
        fingerprint_of = fingerprint(detect(request.options.ref))
    else:
        fingerprint_of = "initial"
    return {
        "mode": reference.mode,
        "identity": reference.identity,
        "note": reference.note,
        "fingerprint": fingerprint_of,
    }
