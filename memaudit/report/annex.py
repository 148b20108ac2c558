"""The compliance annex along EDPB Opinion 28/2024, the limitations, the assumptions. No legal finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.manifest import Manifest
from memaudit.report.numbers import percent
from memaudit.report.schema.base import JsonDict
from memaudit.report.schema.context import (
    Assumption,
    AttackCoverage,
    ComplianceAnnex,
    Limitations,
    ReferenceInfo,
    ReleaseContext,
    ReleaseName,
    ThreatModel,
)
from memaudit.report.schema.extraction import Regurgitation
from memaudit.report.schema.membership import Membership

PARA_55 = (
    "successful testing which covers widely known, state-of-the-art attacks can only be evidence for the "
    "resistance to those attacks"
)
EDPB_REFS = {
    "paragraph 46": "the context of the release bears on which means are reasonably likely to be used",
    "paragraph 55": "testing against known attacks: attribute and membership inference, exfiltration, "
    "regurgitation, model inversion, reconstruction",
    "paragraph 58": "documentation, including (c) the threat models and the tests against them",
}
SURFACES: dict[ReleaseName, str] = {
    "public-api": "anyone who can call the model: chosen prompts, sampled text, log-probabilities if served",
    "internal": "people inside the organisation and whoever takes over an account of theirs",
    "open-weights": "anyone, with full access to parameters, log-probabilities and gradients, for all time",
    "unspecified": "not declared: which attack surface is reasonably likely cannot be said from this report",
}


def release_context(declared: ReleaseName | None) -> ReleaseContext:
    """Return the declared release context; nothing is inferred.

    Example:
        >>> release_context(None).declared, release_context("internal").declared_by
        ('unspecified', 'user')
    """
    name: ReleaseName = declared or "unspecified"
    return ReleaseContext(
        declared=name,
        declared_by="nobody" if name == "unspecified" else "user",
        implied_attack_surface=SURFACES[name],
    )


def threat_models(manifest: Manifest, reference: ReferenceInfo) -> list[ThreatModel]:
    """Return whom each verdict is about, per attack and per canary family used."""
    base = (
        "and has the model before fine-tuning (or its scores)"
        if reference.mode != "none"
        else "and no other model"
    )
    models = [
        ThreatModel(
            subject="membership inference",
            attacker_access=f"log-probabilities of chosen texts from the fine-tuned model, {base}",
            assumptions="knows the exact candidate text and asks whether it was trained on; calibrates on "
            "texts of "
            "the same kind that were not",
            source="Carlini et al. 2022 (TPR at low FPR); Zhang et al. 2024 (Min-K%++); Mireshghallah et "
            "al. 2022 "
            "(reference calibration)",
        ),
        ThreatModel(
            subject="regurgitation",
            attacker_access="prompts and greedy completions; (n, p) figures assume n samples",
            assumptions="knows the record's context and the named share of the secret",
            source="Carlini et al. 2021, 2023 (extraction); Hayes et al. 2024 ((n, p)-discoverable "
            "extraction)",
        ),
    ]
    for family in sorted({canary.family for canary in manifest.canaries}):
        models.append(
            ThreatModel(
                subject=f"canary family {family}",
                attacker_access="as above",
                assumptions="canaries are out-of-distribution secrets planted for the audit: they show what "
                "the "
                "training can remember, and say nothing by themselves of any real record",
                source="Carlini et al. 2019 (canaries); Meeus et al. 2025 (canaries for language models)"
                if family != "random"
                else "Carlini et al. 2019 (The Secret Sharer)",
            )
        )
    return models


def coverage(membership: Membership, regurgitation: Regurgitation) -> list[AttackCoverage]:
    """Return the six rows of paragraph 55; a part that was not run is not counted as tested."""
    ran = regurgitation.execution == "executed"
    member_status = "tested" if membership.headline_valid else "not established"
    rows = [
        AttackCoverage(
            attack="membership inference",
            edpb_ref="paragraph 55(i)",
            in_scope=True,
            status=member_status,
            method=f"{membership.headline_attack} on planted canaries, TPR at "
            f"{percent(membership.target_fpr)} FPR",
            result=membership.detection_claim,
        ),
        AttackCoverage(
            attack="regurgitation of training data",
            edpb_ref="paragraph 55(iii)",
            in_scope=ran,
            status="tested" if ran else f"not run ({regurgitation.reason})",
            method="prefix completion of planted canaries, exact and near-verbatim" if ran else None,
            result=regurgitation.detected.wording,
        ),
    ]
    for attack, reference in (
        ("attribute inference", "paragraph 55(i)"),
        ("exfiltration", "paragraph 55(ii)"),
        ("model inversion", "paragraph 55(iv)"),
        ("reconstruction", "paragraph 55(v)"),
    ):
        rows.append(
            AttackCoverage(
                attack=attack, edpb_ref=reference, in_scope=False, status="out of scope", method=None
            )
        )
    return rows


def annex(
    *,
    membership: Membership,
    regurgitation: Regurgitation,
    context: ReleaseContext,
    models: list[ThreatModel],
    scope: JsonDict,
    control_rate: float | None,
) -> ComplianceAnnex:
    """Return the annex from the parts of the report."""
    results = [f"Membership: {membership.detection_claim}."]
    for name, tier in membership.by_repetition.items():
        if name != "pooled" and tier.detected is not None and tier.tpr is not None:
            results.append(
                f"Membership, {name}: {tier.detected} of {tier.n} detected, TPR {tier.tpr:.3g} "
                f"(95% interval {tier.ci_low:.3g} to {tier.ci_high:.3g})."
            )
    results.append(f"Regurgitation: {regurgitation.detected.wording}.")
    results.append(
        "Regurgitation of canaries that were never inserted: "
        + ("not measured." if control_rate is None else f"rate {control_rate:.3g}.")
    )
    return ComplianceAnnex(
        disclaimer="Documented test evidence. It does not constitute a determination of anonymity, nor of "
        "compliance "
        "with the GDPR, the AI Act or any other law.",
        edpb_refs=EDPB_REFS,
        attack_coverage=coverage(membership, regurgitation),
        threat_models=models,
        test_scope=scope,
        quantified_results=results,
        release_context=context,
        limitations=f"EDPB Opinion 28/2024, paragraph 55: “{PARA_55}”. Only the attacks marked as tested "
        "were run, "
        "on planted canaries, with the access and assumptions stated per threat model.",
    )


def limitations(manifest: Manifest, membership: Membership, reference: ReferenceInfo) -> Limitations:
    """Return what the report does not say, in order of weight."""
    items = [
        "A small TPR, no regurgitation or a lower bound on epsilon near 0 is no certificate of privacy: "
        "stronger or "
        "other attacks may succeed where these do not.",
        f"{membership.n_members} inserted canaries and {membership.n_controls} that were not trained on "
        "carry the "
        "headline; its interval says how little or how much that is.",
        "Thresholds come from this run's canaries and do not transfer to other models or data.",
        "Canaries repeated many times are a stress test; the tier of one repetition is the closest to an "
        "ordinary "
        "record.",
        "The model was trained once: no interval here includes the variance between trainings.",
        "Real records are ranked for description; no figure here is evidence about any individual record.",
    ]
    if reference.mode == "none":
        items.insert(
            1,
            "No reference model: the attack is weaker than one calibrated against the model before "
            "fine-tuning.",
        )
    if manifest.include_prob in (0.0, 1.0):
        items.append("No fair coin decided about inclusion, so claims that rest on the coin are not made.")
    return Limitations(
        statement="This is evidence of resistance to the attacks that were run, and of nothing else: "
        f"“{PARA_55}” "
        "(EDPB Opinion 28/2024, paragraph 55).",
        items=items,
    )


def assumptions(
    manifest: Manifest, reference: ReferenceInfo, preflight: Mapping[str, Any] | None
) -> list[Assumption]:
    """Return what the numbers stand on, and whether the run supports it."""
    fair = manifest.include_prob == 0.5
    candidates = {c.generator for c in manifest.canaries if c.role == "candidate"}
    controls = {c.generator for c in manifest.controls}
    alike = not controls or controls == candidates
    return [
        Assumption(
            name="exchangeable calibration",
            statement="a canary that was not trained on scores like those that set the threshold; holds "
            "because all "
            "were drawn by the same generator before training",
            concerns=["membership.tpr_at_target_fpr", "membership.fpr_guarantee", "per_canary.p_value"],
            status="checked" if alike else "assumed",
        ),
        Assumption(
            name="inclusion by coin",
            statement="each candidate was inserted by its own fair coin, drawn before training and unknown "
            "to it"
            if fair
            else f"candidates were inserted with probability {manifest.include_prob:g}, not by a fair coin",
            concerns=["membership.randomization", "privacy"],
            status="by_design" if fair else "violated",
        ),
        Assumption(
            name="independent canaries",
            statement="canaries are detected independently of each other; intervals of TPR, AUC and ROC "
            "need it, the "
            "false-positive rate and the randomisation test do not",
            concerns=["membership.ci_low", "membership.ci_high", "membership.auc_ci_low", "membership.roc"],
            status="assumed",
        ),
        Assumption(
            name="reference without the canaries",
            statement="the reference never saw the canaries"
            if reference.mode != "none"
            else "no reference was used",
            concerns=["membership"],
            status="by_design" if reference.mode in ("disable_adapter", "step0", "none") else "assumed",
        ),
        Assumption(
            name="canaries reach the loss",
            statement="inserted canaries survived tokenisation, truncation, packing and the loss mask; "
            "preflight says what was seen",
            concerns=["membership", "regurgitation", "privacy"],
            status="assumed" if preflight is None else "checked" if preflight.get("ok") else "violated",
        ),
    ]
