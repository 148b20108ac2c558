"""From plain data to a report. The session, post-hoc jobs and the CLI call these and nothing else:

``build_report(inputs)``            AuditInputs to a valid Report
``timeline_point(membership, ...)`` one entry of AuditInputs.timeline
``write_report(report, path)``      stamps report_sha256, writes the file and its .sha256 sidecar, returns the Report
``load_report(path)``               a Report, validated
``verify_report(path)``             whether the file is what was written
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import memaudit
from memaudit.errors import ReportError
from memaudit.manifest import Manifest
from memaudit.report import annex as annexes
from memaudit.report.groups import ScoreGroups
from memaudit.report.inputs import AuditInputs
from memaudit.report.membership import membership, summarize_attack
from memaudit.report.numbers import finite, jsonable
from memaudit.report.recommendations import recommendations
from memaudit.report.regurgitation import extraction, negative_controls, regurgitation
from memaudit.report.schema import Report
from memaudit.report.schema.context import (
    AuditScope,
    CanaryInfo,
    CanaryRow,
    ModelInfo,
    Privacy,
    Profile,
    Provenance,
    RealRecords,
    ReferenceInfo,
    SeedTpr,
    Stability,
    StabilityVariance,
)
from memaudit.report.schema.membership import Membership
from memaudit.report.store import load_report, verify_report, write_report
from memaudit.report.verdicts import verdicts
from memaudit.stats.stability import calibration_stability
from memaudit.stats.thresholds import conformal_pvalues

__all__ = ["AuditInputs", "build_report", "load_report", "timeline_point", "verify_report", "write_report"]

_DESIGNS: dict[tuple[int, int, tuple[int, ...]], Profile] = {
    (8, 16, (1,)): "smoke",
    (32, 100, (1, 4, 16)): "routine",
    (100, 200, (1, 4, 16)): "powered",
}


def build_report(inputs: AuditInputs) -> Report:
    """Return the report of an audit.

    Args:
        inputs: what was audited and found, see :class:`AuditInputs`.

    Returns:
        A Report without its hash, which :func:`write_report` stamps.

    Raises:
        ReportError: scores or extraction results that do not fit the manifest, no scores for the headline attack,
            a part that was not run without a reason.

    Example:
        >>> from memaudit.report.examples import example_inputs
        >>> report = build_report(example_inputs())
        >>> report.schema_version, report.membership.headline_valid, report.regurgitation.reason
        ('2.0.0', True, 'skip_generation')
    """
    manifest, nulls = inputs.manifest, {}
    if inputs.headline_attack not in inputs.scores:
        raise ReportError(
            f"no scores for the headline attack {inputs.headline_attack!r}; there are scores for "
            f"{', '.join(sorted(inputs.scores)) or 'none'}"
        )
    profile = inputs.profile or _profile(manifest)
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
    records = _real_records(inputs, nulls)
    created = inputs.created_at or datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    digest = manifest.content_hash()
    scope = _scope(inputs, found)
    warnings = [*inputs.warnings, *manifest.warnings, *found.warnings]
    if reference.mode == "none":
        warnings.append(
            "no reference: the scores are not calibrated against the model before fine-tuning (weaker)"
        )
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
            "membership": {"headline_attack": inputs.headline_attack, "also_computed": sorted(inputs.scores)},
            "regurgitation": {
                "execution": emitted.execution,
                "reason": emitted.reason,
                "near_verbatim": emitted.near_verbatim,
            },
            "privacy": {"execution": "not_run" if inputs.privacy is None else "executed"},
            "excluded": ["attribute inference", "exfiltration", "model inversion", "reconstruction"],
        },
        canaries=_canaries(manifest),
        audit_scope=scope,
        membership=found,
        attacks=summaries,
        regurgitation=emitted,
        extraction=extraction(manifest, inputs.extraction, inputs.extraction_reason),
        negative_controls=controls,
        real_records=records,
        privacy=_privacy(inputs, nulls),
        stability=_stability(inputs, groups, found),
        timeline=jsonable(list(inputs.timeline), nulls, "timeline"),
        distributed=jsonable(inputs.distributed, nulls, "distributed"),
        forwards=jsonable(inputs.forwards, nulls, "forwards"),
        preflight=preflight,
        assumptions=annexes.assumptions(manifest, found, reference),
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
        provenance=_provenance(inputs, digest, nulls),
        per_canary=_per_canary(inputs, groups, found, nulls),
        audit_seconds=finite(inputs.audit_seconds),
        audit_warnings=list(dict.fromkeys(warnings)),
        non_finite=nulls,
    )


def timeline_point(
    found: Membership,
    *,
    step: int,
    epoch: float | None = None,
    seconds: float | None = None,
    regurgitated: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return one entry of ``AuditInputs.timeline`` from the membership verdict at that step."""
    return {
        "step": step,
        "epoch": epoch,
        "seconds": seconds,
        "headline_attack": found.headline_attack,
        "tpr_at_target_fpr": found.tpr_at_target_fpr,
        "ci_low": found.ci_low,
        "ci_high": found.ci_high,
        "auc": found.auc,
        "auc_ci_low": found.auc_ci_low,
        "auc_ci_high": found.auc_ci_high,
        "n_members": found.n_members,
        "n_detected": found.n_detected,
        "tpr_by_repetition": {name: tier.tpr for name, tier in found.by_repetition.items()},
        "auc_by_repetition": {name: tier.auc for name, tier in found.by_repetition.items()},
        "regurgitated": regurgitated,
        **more,
    }


def _profile(manifest: Manifest) -> Profile:
    for profile in ("smoke", "routine", "powered"):
        if manifest.profile == profile:
            return profile  # type: ignore[return-value]
    candidates = len(manifest.canaries) - len(manifest.controls)
    return _DESIGNS.get((candidates, len(manifest.controls), tuple(manifest.repetitions)), "custom")


def _canaries(manifest: Manifest) -> CanaryInfo:
    generators = Counter(canary.generator for canary in manifest.canaries)
    candidates = sorted({c.generator for c in manifest.canaries if c.role == "candidate"})
    lengths = [len(canary.secret_ids) for canary in manifest.canaries]
    return CanaryInfo(
        requested_family=manifest.family,
        actual_generator="+".join(candidates) or "+".join(sorted(generators)) or "none",
        generators=dict(sorted(generators.items())),
        n=len(manifest.canaries),
        n_candidates=len(manifest.canaries) - len(manifest.controls),
        n_members=len(manifest.members),
        n_held_out=len(manifest.held_out),
        n_controls=len(manifest.controls),
        include_prob=manifest.include_prob,
        repetitions=list(manifest.repetitions),
        secret_tokens_min=min(lengths, default=None),
        secret_tokens_max=max(lengths, default=None),
        secret_tokens_mean=sum(lengths) / len(lengths) if lengths else None,
        token_share=manifest.token_share,
        tokenizer=manifest.tokenizer.name,
    )


def _scope(inputs: AuditInputs, found: Membership) -> AuditScope:
    manifest = inputs.manifest
    return AuditScope(
        n_members=len(manifest.members),
        n_held_out=len(manifest.held_out),
        n_controls=len(manifest.controls),
        repetitions=list(manifest.repetitions),
        step=inputs.step,
        epoch=finite(inputs.epoch),
        n_audits=max(1, len(inputs.timeline)),
        summary=f"{len(manifest.members)} canaries inserted, {len(manifest.held_out)} held out by their coin, "
        f"{len(manifest.controls)} controls never inserted; attacked with {', '.join(sorted(inputs.scores))}; "
        f"headline {found.headline_attack}",
    )


def _real_records(inputs: AuditInputs, nulls: dict[str, str]) -> RealRecords:
    if inputs.real_records is None:
        if not inputs.real_records_reason:
            raise ReportError(
                "real records were not audited and no reason is given; say why, as 'no_dataset'"
            )
        return RealRecords(execution="not_run", reason=inputs.real_records_reason)
    return RealRecords.model_validate(
        {"execution": "executed", **jsonable(inputs.real_records, nulls, "real_records")}
    )


def _privacy(inputs: AuditInputs, nulls: dict[str, str]) -> Privacy:
    if inputs.privacy is None:
        return Privacy(execution="not_run", reason=inputs.privacy_reason or "not_requested")
    return Privacy(execution="executed", result=jsonable(inputs.privacy, nulls, "privacy.result"))


def _stability(inputs: AuditInputs, groups: ScoreGroups, found: Membership) -> Stability | None:
    """One random split of the calibration canaries a seed, the threshold set on one part; None for one seed."""
    if len(inputs.seeds) < 2:
        return None
    rows, reason = [], None
    for seed in inputs.seeds:
        tpr = threshold = None
        if found.headline_valid:
            once = calibration_stability(groups.members, groups.calibration, inputs.target_fpr, 1, seed)
            if once.tpr is not None and once.threshold is not None:
                tpr, threshold = once.tpr.mean, finite(once.threshold.mean)
        rows.append(SeedTpr(seed=seed, tpr=tpr, threshold=threshold))
    values = [row.tpr for row in rows if row.tpr is not None]
    if not values:
        reason = (
            found.headline_reason or "too few calibration canaries to leave some out and resolve the rate"
        )
    mean = sum(values) / len(values) if values else None
    spread = (
        math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        if mean is not None and len(values) > 1
        else None
    )
    return Stability(
        seeds=list(inputs.seeds),
        varies="which of the calibration canaries set the threshold (a random part without replacement), and the "
        "sample of real records; scores and greedy decoding are deterministic",
        variance=StabilityVariance(
            tpr_mean=mean,
            tpr_min=min(values, default=None),
            tpr_max=max(values, default=None),
            tpr_std=spread,
            per_seed=rows,
        ),
        reason=reason,
    )


def _provenance(inputs: AuditInputs, digest: str, nulls: dict[str, str]) -> Provenance:
    manifest = inputs.manifest
    return Provenance(
        manifest_hash=digest,
        canary_manifest_sha256=digest,
        canary_set_sha256=manifest.canary_set_sha256,
        dataset_fingerprint=manifest.dataset_fingerprint,
        model_fingerprint=_text(inputs.model, "fingerprint"),
        adapter_fingerprint=_text(inputs.adapter, "fingerprint"),
        tokenizer=manifest.tokenizer.model_dump(mode="json"),
        resolved_config=jsonable(inputs.config, nulls, "provenance.resolved_config"),
        environment=jsonable(inputs.environment, nulls, "provenance.environment"),
        n_canaries=len(manifest.canaries),
        fmt=manifest.fmt,
        n_host_rows=manifest.n_host_rows,
        n_inserted_rows=manifest.n_inserted_rows,
    )


def _text(values: Mapping[str, Any] | None, name: str) -> str | None:
    found = (values or {}).get(name)
    return None if found is None else str(found)


def _per_canary(
    inputs: AuditInputs, groups: ScoreGroups, found: Membership, nulls: dict[str, str]
) -> list[CanaryRow]:
    """One row a canary: ids, hashes and numbers, never a secret's text or token ids."""
    headline = groups.score
    judged = [c.id for c in inputs.manifest.canaries if c.id not in groups.calibrating]
    judged = [name for name in judged if not math.isnan(headline[name])]
    pvalues: dict[str, float] = {}
    if groups.calibration.size and judged:
        values = conformal_pvalues([headline[name] for name in judged], groups.calibration)
        pvalues = dict(zip(judged, (float(value) for value in values), strict=True))
    rows = []
    for canary in inputs.manifest.canaries:
        score = headline[canary.id]
        known = found.headline_valid and found.threshold is not None and not math.isnan(score)
        one = (inputs.extraction or {}).get(canary.id)
        rows.append(
            CanaryRow(
                id=canary.id,
                role=canary.role,
                group="member" if canary.included else "control" if canary.role == "control" else "held_out",
                included=canary.included,
                repetitions=canary.repetitions if canary.included else 0,
                family=canary.family,
                generator=canary.generator,
                n_tokens=len(canary.secret_ids),
                secret_sha256=canary.secret_hash,
                scores=jsonable(
                    {attack: float(scores[canary.id]) for attack, scores in inputs.scores.items()},
                    nulls,
                    f"per_canary.{canary.id}.scores",
                ),
                p_value=pvalues.get(canary.id),
                detected=score > found.threshold if known and found.threshold is not None else None,
                regurgitated=None if one is None else one.regurgitated,
                extraction=None if one is None else jsonable(one.to_dict(), nulls, f"per_canary.{canary.id}"),
            )
        )
    return rows
