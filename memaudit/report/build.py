"""From plain data to a report. The session, post-hoc jobs and the CLI call these and nothing else:

``build_report(inputs)``            AuditInputs to a valid Report
``write_report(report, path)``      stamps report_sha256, writes file and .sha256 sidecar, returns the Report
``load_report(path)``               a Report, validated
``verify_report(path)``             whether the file is what was written
"""

from __future__ import annotations

import datetime
from typing import get_args

from pydantic import JsonValue

import memaudit
from memaudit.errors import ReportError
from memaudit.report import annex as annexes
from memaudit.report import sections
from memaudit.report.attack_summary import summarize_attack
from memaudit.report.groups import ScoreGroups
from memaudit.report.inputs import AuditInputs
from memaudit.report.membership import membership
from memaudit.report.numbers import finite, jsonable
from memaudit.report.recommendations import recommendations
from memaudit.report.regurgitation import extraction, negative_controls, regurgitation
from memaudit.report.schema import Report
from memaudit.report.schema.context import (
    ModelInfo,
    Profile,
    ReferenceInfo,
    ReleaseName,
)
from memaudit.report.store import load_report, verify_report, write_report
from memaudit.report.verdicts import verdicts

__all__ = ["AuditInputs", "build_report", "load_report", "verify_report", "write_report"]


def build_report(inputs: AuditInputs) -> Report:
    """Return the report of an audit.

    Args:
        inputs: what was audited and found, see :class:`AuditInputs`.

    Returns:
        A Report without its hash, which :func:`write_report` stamps.

    Raises:
        ReportError: scores or extraction results that do not fit the manifest, no scores for the headline
            attack, a part that was not run without a reason, an unknown profile or release context.

    Example:
        >>> from memaudit.report.examples import example_inputs
        >>> report = build_report(example_inputs())
        >>> report.schema_version, report.membership.headline_valid, report.regurgitation.reason
        ('2.0.0', True, 'skip_generation')
    """
    manifest = inputs.manifest
    nulls: dict[str, str] = {}
    if inputs.headline_attack not in inputs.scores:
        raise ReportError(
            f"no scores for the headline attack {inputs.headline_attack!r}; there are scores for "
            f"{', '.join(sorted(inputs.scores)) or 'none'}"
        )
    profile = inputs.profile or sections.profile(manifest)
    for what, value, known in (
        ("profile", profile, get_args(Profile)),
        ("release_context", inputs.release_context or "unspecified", get_args(ReleaseName)),
    ):
        if value not in known:
            raise ReportError(f"{what} is {value!r}; give one of {', '.join(known)}")
    headline_scores = inputs.scores[inputs.headline_attack]
    groups = ScoreGroups(manifest, headline_scores)
    found = membership(
        manifest,
        headline_scores,
        headline_attack=inputs.headline_attack,
        target_fpr=inputs.target_fpr,
        level=inputs.level,
        profile=profile,
        scorer_version=inputs.scorer_version,
        seed=inputs.seeds[0] if inputs.seeds else 0,
    )
    if found.threshold_identified and found.threshold is None:
        nulls["membership.threshold"] = (
            "inf"  # so many calibration scores are infinite that nothing lies above
        )
    emitted = regurgitation(manifest, inputs.extraction, inputs.extraction_reason, inputs.extraction_info)
    summaries = {
        name: summarize_attack(
            manifest,
            scores,
            is_headline=name == inputs.headline_attack,
            target_fpr=inputs.target_fpr,
            level=inputs.level,
            refused=not found.headline_valid,
        )
        for name, scores in inputs.scores.items()
    }
    head = summaries[inputs.headline_attack]
    controls = negative_controls(
        groups, inputs.extraction, inputs.extraction_reason, head.control_mean, head.member_mean
    )
    reference = ReferenceInfo.model_validate(jsonable(inputs.reference, nulls, "reference"))
    context = annexes.release_context(inputs.release_context)
    models = annexes.threat_models(manifest, reference)
    adapter = None if inputs.adapter is None else jsonable(inputs.adapter, nulls, "adapter")
    preflight = None if inputs.preflight is None else jsonable(inputs.preflight, nulls, "preflight")
    records = sections.real_records(inputs, nulls)
    created = inputs.created_at or datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    digest = manifest.content_hash()
    scope = sections.scope(inputs, found)
    warnings = [*inputs.warnings, *manifest.warnings, *found.warnings]
    if reference.mode == "none":
        warnings.append(
            "no reference: the scores are not calibrated against the model before fine-tuning (weaker)"
        )
    warnings += sections.shift_warnings(records)
    return Report(
        tool_version=memaudit.__version__,
        created_at=created,
        verdicts=verdicts(found, emitted, controls),
        audit_profile=profile,
        target_fpr=inputs.target_fpr,
        step=inputs.step,
        epoch=finite(inputs.epoch),
        seeds={"inject": manifest.seed, "canary_manifest": manifest.seed, "audit_seeds": list(inputs.seeds)},
        canary_manifest_hash=digest,
        model=ModelInfo.model_validate(jsonable(inputs.model, nulls, "model")),
        adapter=adapter,
        reference=reference,
        release_context=context,
        threat_model=models,
        attack_coverage={
            "membership": {
                "headline_attack": inputs.headline_attack,
                "also_computed": list[JsonValue](sorted(inputs.scores)),
            },
            "regurgitation": {
                "execution": emitted.execution,
                "reason": emitted.reason,
                "near_verbatim": emitted.near_verbatim,
            },
            "privacy": {"execution": "not_run" if inputs.privacy is None else "executed"},
            "excluded": ["attribute inference", "exfiltration", "model inversion", "reconstruction"],
        },
        canaries=sections.canaries(manifest),
        audit_scope=scope,
        membership=found,
        attacks=summaries,
        regurgitation=emitted,
        extraction=extraction(manifest, inputs.extraction, inputs.extraction_reason),
        negative_controls=controls,
        real_records=records,
        privacy=sections.privacy(inputs, nulls),
        stability=sections.stability(inputs, groups, found),
        timeline=jsonable(list(inputs.timeline), nulls, "timeline"),
        distributed=jsonable(inputs.distributed, nulls, "distributed"),
        forwards=jsonable(inputs.forwards, nulls, "forwards"),
        preflight=preflight,
        assumptions=annexes.assumptions(manifest, reference, inputs.preflight),
        recommendations=recommendations(
            membership=found,
            regurgitation=emitted,
            adapter=inputs.adapter,
            config=inputs.config,
            exact_dup_rate=records.exact_dup_rate,
            preflight=inputs.preflight,
        ),
        limitations=annexes.limitations(manifest, found, reference),
        compliance_annex=annexes.annex(
            membership=found,
            regurgitation=emitted,
            context=context,
            models=models,
            scope={
                **scope.model_dump(mode="json"),
                "seeds": list(inputs.seeds),
                "n_host_rows": manifest.n_host_rows,
                "negative_control_regurgitation_rate": controls.regurgitation_rate,
                "run_date": created,
                "tool_version": memaudit.__version__,
            },
            control_rate=controls.regurgitation_rate,
        ),
        provenance=sections.provenance(inputs, digest, nulls),
        per_canary=sections.per_canary(inputs, groups, found, nulls),
        audit_seconds=finite(inputs.audit_seconds),
        audit_warnings=list(dict.fromkeys(warnings)),
        non_finite=nulls,
    )
