"""run_audit(): audit a model that is in memory and has been trained, in one call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.posthoc.audit import read_records
from memaudit.session import AuditSession

if TYPE_CHECKING:
    from memaudit.preflight import PreflightResult
    from memaudit.report.schema import Report


def run_audit(
    model: Any,
    tokenizer: Any,
    manifest: Manifest | str | os.PathLike[str],
    dataset: Sequence[Any] | str | os.PathLike[str] | None = None,
    *,
    ref: str = "auto",
    held_out: Sequence[Any] | str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] = ".",
    output_path: str | os.PathLike[str] | None = None,
    step: int | None = None,
    preflight: PreflightResult | None = None,
    options: AuditOptions | None = None,
    **choices: Any,
) -> Report:
    """Audit a trained model once and write its report; on shards every rank calls.

    Training state (modes, gradients, random states) is as before, also when it raises.

    Args:
        model: the module in any wrapper, an Accelerator, a Hugging Face Trainer or a Lightning Trainer.
        tokenizer: the one that the canaries were drawn for.
        manifest: what ``inject()`` returned, or its path.
        dataset: the training records, or a file of them (JSON, JSONL, CSV, Parquet), for the part on real records.
        ref: "auto" takes the adapters off, or finds the scores that training kept from its step 0 in
            ``output_dir``; "adapter", "initial", the path of a base checkpoint, or "none", which is weaker.
        held_out: records that were not trained on, or a file of them, for the set-level test.
        output_dir: folder of the report and of the signals; every rank sees the same one.
        output_path: the report, where it should lie elsewhere.
        step: optimizer steps of training, where they are known.
        preflight: what :func:`memaudit.preflight.run_preflight` found before training.
        options: the other choices, as :class:`memaudit.options.AuditOptions`.
        choices: or single fields of it by name, such as ``seeds``, ``release_context``, ``real_sample``,
            ``skip_generation``, ``prefix_fractions``, ``profile``, ``target_fpr``, ``attacks``.

    Returns:
        The report, the same on every rank.

    Raises:
        ManifestError: the manifest is damaged, or was made for another tokenizer.
        ReferenceModeError: the reference asked for is not to be had from a model that is trained already.
        StrategyError: no strategy fits the model.
        ConfigurationError: an option has no meaning, or a file of records cannot be read.

    Example:
        ``report = run_audit(trainer.model, tokenizer, manifest, release_context="internal", seeds=[0, 1, 2])``
    """
    records = [
        read_records(os.fspath(one)) if isinstance(one, str | os.PathLike) else one
        for one in (dataset, held_out)
    ]
    if options is None or ref != "auto":
        choices = {"ref": ref, **choices}
    session = AuditSession(model, tokenizer, manifest, output_dir=output_dir, options=options, **choices)
    session.adopt_preflight(preflight)
    session.real_records = (records[0], records[1])
    session.audit(step)
    report: Report = session.report(Path(output_path) if output_path is not None else None)
    return report
