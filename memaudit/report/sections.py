"""The parts of the report that only restate their inputs: canaries, scope, records, provenance, rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from memaudit.errors import ReportError
from memaudit.manifest import Manifest
from memaudit.report.groups import ScoreGroups
from memaudit.report.inputs import AuditInputs
from memaudit.report.numbers import finite, jsonable
from memaudit.report.schema.context import (
    AuditScope,
    CanaryInfo,
    CanaryRow,
    Privacy,
    Profile,
    Provenance,
    RealRecords,
    SeedTpr,
    Stability,
    StabilityVariance,
)
from memaudit.report.schema.membership import Membership
from memaudit.stats.stability import calibration_stability
from memaudit.stats.thresholds import conformal_pvalues

SHIFT_SIGNIFICANCE = 0.05

_DESIGNS: dict[tuple[int, int, tuple[int, ...]], Profile] = {
    (8, 16, (1,)): "smoke",
    (32, 100, (1, 4, 16)): "routine",
    (100, 200, (1, 4, 16)): "powered",
}


def profile(manifest: Manifest) -> Profile:
    """The named design: the manifest's own, or the one that its counts fit."""
    for profile in ("smoke", "routine", "powered"):
        if manifest.profile == profile:
            return profile
    candidates = len(manifest.canaries) - len(manifest.controls)
    return _DESIGNS.get((candidates, len(manifest.controls), tuple(manifest.repetitions)), "custom")


def canaries(manifest: Manifest) -> CanaryInfo:
    """How the canaries were drawn and split."""
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


def scope(inputs: AuditInputs, found: Membership) -> AuditScope:
    """How much was tested."""
    manifest = inputs.manifest
    return AuditScope(
        n_members=len(manifest.members),
        n_held_out=len(manifest.held_out),
        n_controls=len(manifest.controls),
        repetitions=list(manifest.repetitions),
        step=inputs.step,
        epoch=finite(inputs.epoch),
        n_audits=max(1, len(inputs.timeline)),
        summary=f"{len(manifest.members)} canaries inserted, {len(manifest.held_out)} held out by their "
        "coin, "
        f"{len(manifest.controls)} controls never inserted; attacked with "
        f"{', '.join(sorted(inputs.scores))}; "
        f"headline {found.headline_attack}",
    )


def real_records(inputs: AuditInputs, nulls: dict[str, str]) -> RealRecords:
    """The caller's account of real records, or why there is none."""
    if inputs.real_records is None:
        if not inputs.real_records_reason:
            raise ReportError(
                "real records were not audited and no reason is given; say why, as 'no_dataset'"
            )
        return RealRecords(execution="not_run", reason=inputs.real_records_reason)
    return RealRecords.model_validate(
        {"execution": "executed", **jsonable(inputs.real_records, nulls, "real_records")}
    )


def shift_warnings(records: RealRecords) -> list[str]:
    """Warn where training and held-out records differ without the model: what then differs is not membership."""
    tests = records.set_level if isinstance(records.set_level, dict) else {}
    blind = tests.get("blind_baseline")
    pvalue = blind.get("pvalue") if isinstance(blind, dict) else None
    if isinstance(pvalue, int | float) and pvalue <= SHIFT_SIGNIFICANCE:
        return [
            f"training and held-out records are told apart without the model (p = {pvalue:.2g}): they differ in "
            "their contents, so the set-level tests say nothing about membership"
        ]
    return []


def privacy(inputs: AuditInputs, nulls: dict[str, str]) -> Privacy:
    """The caller's bounds, or why there are none."""
    if inputs.privacy is None:
        return Privacy(execution="not_run", reason=inputs.privacy_reason or "not_requested")
    return Privacy(execution="executed", result=jsonable(inputs.privacy, nulls, "privacy.result"))


def stability(inputs: AuditInputs, groups: ScoreGroups, found: Membership) -> Stability | None:
    """Per seed one random split of the calibration canaries, one part sets the threshold; None for one seed."""
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
        varies="which of the calibration canaries set the threshold (a random part without replacement), "
        "and the "
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


def provenance(inputs: AuditInputs, digest: str, nulls: dict[str, str]) -> Provenance:
    """Where the numbers come from."""
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


def per_canary(
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
