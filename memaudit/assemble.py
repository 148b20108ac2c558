"""From a finished audit to its report: plain data about model, training and findings, put together once."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from memaudit import timeline
from memaudit.privacy_findings import privacy_findings
from memaudit.real_records import audit_real_records
from memaudit.report.build import AuditInputs, build_report, write_report
from memaudit.report.schema import Report

if TYPE_CHECKING:
    from memaudit.session import AuditResult, AuditSession

LIBRARIES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "deepspeed",
    "lightning",
    "datasets",
    "numpy",
    "scipy",
)

_MODES = {"adapter": "disable_adapter", "initial": "step0", "checkpoint": "checkpoint", "none": "none"}
"""Our names of the reference modes, and the names that reports have had since schema 1."""


def assemble_report(session: AuditSession, result: AuditResult, *, audit_seconds: float) -> Report:
    """Build the report of one audit; every rank calls, since shares of the model are counted on each.

    Args:
        session: whose manifest, options and strategy it is.
        result: the audit.
        audit_seconds: wall-clock seconds of all audits and of the reference.

    Returns:
        The report, without its hash.
    """
    options = session.options
    privacy, privacy_reason = privacy_findings(
        session.manifest, result.scores[result.headline_attack], seed=options.seeds[0]
    )
    moved = session.moved()
    real, real_reason = (None, "model_changed") if moved else audit_real_records(session)
    near_reason = "skip_generation" if options.skip_generation else ("model_changed" if moved else None)
    inputs = AuditInputs(
        manifest=session.manifest,
        scores=result.scores,
        headline_attack=result.headline_attack,
        reference={
            "mode": _MODES[result.reference.mode],
            "identity": result.reference.identity,
            "note": result.reference.note,
        },
        extraction=result.extraction.by_id,
        extraction_reason=None,
        extraction_info={
            "unit": result.extraction.unit,
            "prefix_policy": "the record's own context and the first part of the secret, in token ids",
            "decoding": "greedy",
            "near_reason": near_reason,
            "counts": result.extraction.counts.to_dict(),
        },
        privacy=privacy,
        privacy_reason=privacy_reason,
        distributed=asdict(session.strategy.facts()),
        timeline=timeline.read(session.output_dir / timeline.TIMELINE_NAME)
        if session.strategy.rank == 0
        else [],
        preflight=session.preflight,
        real_records=real,
        real_records_reason=real_reason,
        model=model_info(session.strategy.model, result.weights),
        adapter=adapter_info(session.strategy.model),
        config={"audit": options.to_dict(), "training": training_config(session)},
        environment=environment(),
        step=result.step,
        epoch=result.epoch,
        forwards=_forwards(result),
        audit_seconds=audit_seconds,
        seeds=options.seeds,
        release_context=cast(
            Any, None if options.release_context == "unspecified" else options.release_context
        ),
        target_fpr=options.target_fpr,
        profile=cast(Any, options.profile),
        warnings=tuple(session.warnings),
    )
    return build_report(inputs)


def write_outputs(session: AuditSession, report: Report, path: Path) -> Report:
    """Write report and sidecar; call on rank 0 alone. Returns the report with its hash."""
    return write_report(report, path)


def model_info(model: Any, weights: str) -> dict[str, Any]:
    """Say which model it is: class, name, whether adapters are on it, fingerprint of its weights."""
    config = getattr(model, "config", None)
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {
        "class": class_name(inner),
        "name_or_path": getattr(config, "_name_or_path", None) or None,
        "peft": hasattr(model, "peft_config"),
        "fingerprint": weights,
    }


def class_name(model: Any) -> str:
    """Return the class of a model as it was before FSDP2 put its own in front: the same on any number of ranks."""
    kind = type(model)
    sharded = any(base.__name__ == "FSDPModule" for base in kind.__mro__)
    return kind.__name__.removeprefix("FSDP") if sharded else kind.__name__


def adapter_info(model: Any) -> dict[str, Any] | None:
    """Return the active adapter's configuration; None for a full fine-tune."""
    configs = getattr(model, "peft_config", None)
    if not configs:
        return None
    name = (
        model.active_adapter
        if isinstance(getattr(model, "active_adapter", None), str)
        else next(iter(configs))
    )
    settings = configs[name].to_dict()
    keys = (
        "peft_type",
        "r",
        "lora_alpha",
        "bias",
        "modules_to_save",
        "trainable_token_indices",
        "target_modules",
        "target_parameters",
        "use_dora",
    )
    kept = {key: _plain(settings[key]) for key in keys if key in settings}
    return {"name": name, "n_adapters": len(configs), **kept}


def training_config(session: AuditSession) -> dict[str, Any]:
    """Return what is known about the training: set by an integration, empty in a raw loop."""
    return {key: _plain(value) for key, value in session.training.items()}


def environment() -> dict[str, str]:
    """Return versions of Python, the platform and the libraries that are installed."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _forwards(result: AuditResult) -> dict[str, Any]:
    """Count the model calls of the audit: scoring, reference, generations, and what was saved."""
    cost = result.reference.cost
    return {
        "target": list(result.target.forwards),
        "target_probes": result.target.needed,
        "target_reused": result.target.reused,
        "target_shared": result.target.shared,
        "reference": list(cost.forwards) if cost is not None else [],
        "reference_probes": cost.needed if cost is not None else 0,
        "generations": result.extraction.counts.to_dict(),
    }


def _plain(value: Any) -> Any:
    """JSON-ready form of a configuration value; sets are sorted, other objects become their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(str(one) for one in value)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
