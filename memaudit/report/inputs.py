"""AuditInputs: everything a report is made of, as plain data that any caller can put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memaudit.manifest import Manifest
from memaudit.report.schema.context import Profile, ReleaseName

if TYPE_CHECKING:
    from memaudit.extraction.results import CanaryExtraction


@dataclass(frozen=True, kw_only=True)
class AuditInputs:
    """What an audit hands to the report. Only ``manifest``, ``scores`` and ``headline_attack`` are required.

    Args:
        manifest: what was planted, held out and kept as a control.
        scores: attack name to {canary id: score}, each attack with every canary once, higher = more
        member-like,
            NaN where a canary could not be scored.
        headline_attack: the attack of the headline, chosen before the scores were seen; a key of ``scores``.
        scorer_version: version of its definition.
        reference: ``mode`` (``disable_adapter``, ``step0``, ``checkpoint``, ``none``), ``identity``,
        ``note``.
        extraction: canary id to :class:`memaudit.extraction.CanaryExtraction`; None when it was not run.
        extraction_reason: why not, for example ``skip_generation``.
        extraction_info: the protocol: ``unit``, ``prefix_policy``, ``decoding``, ``near_reason``.
        privacy: result of ``memaudit.privacy.estimate_from_scores`` as a dictionary; None when it was not
        run.
        privacy_reason: why not.
        distributed: strategy, world size, dtype and the like.
        timeline: one dictionary an audit, oldest first: ``step``, ``epoch``, ``tpr_at_target_fpr``, ``ci_low``,
            ``ci_high``, ``auc``, ``regurgitation_rate``, ``seconds`` and more.
        preflight: its result, with ``warnings``.
        real_records: fields of the report's ``real_records``; None when it was not run.
        real_records_reason: why not: ``no_dataset`` or ``real_sample_zero``.
        model: ``class``, ``name_or_path``, ``peft``, and ``fingerprint``.
        adapter: its configuration, and ``fingerprint``; None for a full fine-tune.
        config: the resolved configuration of the audit and, under ``training``, of the training.
        environment: versions and platform.
        step: optimiser step of the audited weights.
        epoch: epoch of the audited weights.
        forwards: how many forwards and generations the audit cost.
        audit_seconds: wall clock of the audit.
        seeds: seeds of the audit procedure; more than one adds the ``stability`` part.
        release_context: how the model will be exposed, as the user declares it.
        target_fpr: false-positive rate of the headline.
        level: confidence of the intervals.
        profile: named design; None takes the manifest's, or infers it from the counts.
        warnings: further warnings for the reader.
        created_at: UTC time in ISO 8601; None takes the clock.
    """

    manifest: Manifest
    scores: Mapping[str, Mapping[str, float]]
    headline_attack: str
    scorer_version: str = "1"
    reference: Mapping[str, Any] = field(default_factory=lambda: {"mode": "none"})
    extraction: Mapping[str, CanaryExtraction] | None = None
    extraction_reason: str | None = "not_requested"
    extraction_info: Mapping[str, Any] = field(default_factory=dict)
    privacy: Mapping[str, Any] | None = None
    privacy_reason: str | None = "not_requested"
    distributed: Mapping[str, Any] = field(default_factory=dict)
    timeline: Sequence[Mapping[str, Any]] = ()
    preflight: Mapping[str, Any] | None = None
    real_records: Mapping[str, Any] | None = None
    real_records_reason: str | None = "no_dataset"
    model: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    epoch: float | None = None
    forwards: Mapping[str, Any] = field(default_factory=dict)
    audit_seconds: float | None = None
    seeds: Sequence[int] = (0,)
    release_context: ReleaseName | None = None
    target_fpr: float = 0.01
    level: float = 0.95
    profile: Profile | None = None
    warnings: Sequence[str] = ()
    created_at: str | None = None
