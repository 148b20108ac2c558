"""The whole report: the published field names, the exported schema, no secret, no number that JSON lacks."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from memaudit.errors import MemauditError, ReportError
from memaudit.report.build import AuditInputs, build_report, write_report
from memaudit.report.compare import compare
from memaudit.report.examples import example_inputs
from memaudit.report.gate import gate, write_junit
from memaudit.report.markdown import annex_markdown, model_card
from memaudit.report.page import html
from memaudit.report.schema import json_schema
from tests.report.inputs_for_tests import MARK, by_hand, whole_inputs

SEED_FIELDS = """
membership.headline_attack membership.scorer.name membership.scorer.version membership.tpr_at_1pct_fpr
membership.by_repetition.1x.threshold_identified membership.by_repetition.4x.detected
membership.by_repetition.16x.tpr membership.by_repetition.pooled membership.calibration_stability
membership.ci_low membership.ci_high membership.auc membership.headline_valid audit_profile target_fpr
canaries.requested_family canaries.actual_generator regurgitation.execution regurgitation.overall.rate
regurgitation.detected regurgitation.by_tier negative_controls.regurgitation_rate real_records.execution
real_records.exact_dup_rate real_records.set_level real_records.comparison_population audit_seconds
recommendations compliance_annex release_context stability.variance.per_seed provenance.manifest_hash
provenance.dataset_fingerprint provenance.model_fingerprint provenance.resolved_config
provenance.environment report_sha256 phone_home local_only schema_version tool_version created_at seeds
canary_manifest_hash model adapter reference.mode reference.identity threat_model attack_coverage
audit_scope preflight limitations per_canary audit_warnings distributed timeline attacks privacy
extraction assumptions forwards
"""


def variants() -> dict[str, AuditInputs]:
    few, few_scores = by_hand([1.0, 2.0], [0.0, 0.5])
    odd, odd_scores = by_hand([5.0] * 30, [i / 100 for i in range(120)])
    odd_scores.update({"m-00000": math.nan, "m-00001": math.inf, "k-00000": -math.inf})
    base: dict[str, Any] = {"headline_attack": "x", "extraction_reason": "skip_generation"}
    top = {**odd_scores, "k-00001": math.inf, "k-00002": math.inf}
    return {
        "whole": whole_inputs(),
        "example": example_inputs(),
        "underpowered": AuditInputs(manifest=few, scores={"x": few_scores}, **base),
        "not finite": AuditInputs(
            manifest=odd,
            scores={"x": odd_scores},
            epoch=math.nan,
            config={"lr": math.inf},
            timeline=[{"step": 1, "auc": math.nan}],
            **base,
        ),
        "infinite threshold": AuditInputs(manifest=odd, scores={"x": top}, **base),
        "smoke": whole_inputs(profile="smoke"),
        "no reference": whole_inputs(reference={"mode": "none"}),
    }


@pytest.mark.parametrize("name", variants())
def test_every_report_fits_the_exported_schema_and_renders(name: str, tmp_path: Path) -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    report = write_report(build_report(variants()[name]), tmp_path / "r.json")
    text = (tmp_path / "r.json").read_text()
    jsonschema.validate(json.loads(text), schema)
    assert "NaN" not in text and "Infinity" not in text
    page = html(report)
    assert "<script" not in page and page.count("<h1") == 1
    assert annex_markdown(report) and model_card(report)


def test_the_schema_refuses_what_is_no_report() -> None:
    schema = json_schema()
    content = build_report(example_inputs()).to_json()
    for change in ({"phone_home": True}, {"schema_version": "1.3.0"}, {"surprise": 1}, {"membership": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**content, **change}, schema)


def test_the_published_field_names_are_there() -> None:
    content = build_report(whole_inputs()).to_json()
    for path in SEED_FIELDS.split():
        place: Any = content
        for part in path.split("."):
            assert isinstance(place, dict) and part in place, path
            place = place[part]
    assert (content["local_only"], content["phone_home"]) == (True, False)


def test_what_is_not_finite_is_null_and_named() -> None:
    report = build_report(variants()["not finite"])
    assert report.non_finite["per_canary.m-00000.scores.x"] == "nan"
    assert report.non_finite["per_canary.m-00001.scores.x"] == "inf"
    assert report.non_finite["provenance.resolved_config.lr"] == "inf"
    assert report.non_finite["timeline.0.auc"] == "nan"
    rows = {row.id: row for row in report.per_canary}
    assert rows["m-00000"].scores["x"] is None and rows["m-00000"].detected is None
    assert rows["m-00001"].detected is True  # an infinite score is above every other
    top = build_report(variants()["infinite threshold"])
    assert top.membership.threshold is None and top.non_finite["membership.threshold"] == "inf"
    assert top.membership.n_detected == 0


def test_no_secret_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inputs = whole_inputs()
    secrets = [canary.secret.strip() for canary in inputs.manifest.canaries]
    assert all(MARK in secret for secret in secrets)
    caplog.set_level(logging.DEBUG)
    report = write_report(build_report(inputs), tmp_path / "r.json")
    (tmp_path / "r.html").write_text(html(report))
    (tmp_path / "annex.md").write_text(annex_markdown(report))
    (tmp_path / "card.md").write_text(model_card(report))
    (tmp_path / "c.json").write_text(json.dumps(compare(report, report).to_dict()))
    write_junit(gate(report, max_tpr=0.0), tmp_path / "j.xml")
    seen = [path.read_text() for path in tmp_path.iterdir()] + [caplog.text]
    for scores in ({"ref_minkpp": {}}, {}, {"ref_minkpp": {"stranger": 1.0}}):
        with pytest.raises(MemauditError) as error:
            build_report(whole_inputs(scores=scores))
        seen.append(str(error.value) + repr(error.value))
    ids = ",".join(str(token) for token in inputs.manifest.canaries[0].secret_ids[:6])
    for text in seen:
        assert MARK not in text and ids not in text.replace(" ", "").replace("\n", "")


def test_recommendations_follow_what_was_seen() -> None:
    text = " ".join(build_report(whole_inputs()).recommendations)
    for word in (
        "Deduplicate",
        "fewer epochs",
        "LoRA rank (now 64)",
        "lora_alpha",
        "learning rate",
        "lm_head",
    ):
        assert word in text
    assert "packing is on" in text
    clean = whole_inputs(
        scores={"ref_minkpp": {c.id: float(i % 7) for i, c in enumerate(whole_inputs().manifest.canaries)}},
        extraction=None,
        extraction_reason="skip_generation",
        adapter=None,
        config={},
        real_records=None,
    )
    calm = build_report(clean)
    assert calm.verdicts.membership.level == "clean"
    assert not any("Deduplicate" in line or "epochs" in line for line in calm.recommendations)


def test_verdicts_do_not_promise() -> None:
    for name, inputs in variants().items():
        report = build_report(inputs)
        text = json.dumps(report.to_json()["verdicts"]).lower()
        assert "no extraction risk" not in text and "safe" not in text and "compliant" not in text, name
    refused = build_report(variants()["underpowered"]).verdicts.membership
    assert refused.level == "unknown" and refused.answer == "Not established."


def test_the_coin_and_reference_assumptions_say_what_holds() -> None:
    report = build_report(whole_inputs())
    states = {one.name: one.status for one in report.assumptions}
    assert states["inclusion by coin"] == "by_design" and states["canaries reach the loss"] == "checked"
    assert states["exchangeable calibration"] == "checked" and states["independent canaries"] == "assumed"


def test_several_seeds_add_procedure_variance() -> None:
    report = build_report(whole_inputs())
    assert report.stability is not None and "not training variance" in report.stability.label
    assert [row.seed for row in report.stability.variance.per_seed] == [0, 1, 2]
    assert build_report(whole_inputs(seeds=(0,))).stability is None


def test_a_shift_between_the_sets_voids_the_set_level_tests() -> None:
    report = build_report(whole_inputs())
    assert any("told apart without the model (p = 0.003)" in text for text in report.audit_warnings)
    page = html(report)
    for words in ("Blind baseline", "p = 0.003, AUC 0.9", "Verbatim after 50% of the record", "2 of 4"):
        assert words in page
    calm = {"set_level": {"blind_baseline": {"pvalue": 0.5}}}
    assert not any(
        "told apart" in text for text in build_report(whole_inputs(real_records=calm)).audit_warnings
    )


def test_profiles_are_those_of_the_design() -> None:
    assert build_report(example_inputs()).audit_profile == "routine"  # 32 candidates and 100 controls
    manifest, scores = by_hand([1.0], [0.0])
    inputs = AuditInputs(manifest=manifest, scores={"x": scores}, headline_attack="x")
    assert build_report(inputs).audit_profile == "custom"
    with pytest.raises(ReportError, match="profile is 'fancy'"):
        build_report(whole_inputs(profile="fancy"))


def test_release_context_is_declared_or_unspecified() -> None:
    assert build_report(whole_inputs()).release_context.declared == "internal"
    nothing = build_report(whole_inputs(release_context=None)).release_context
    assert (nothing.declared, nothing.declared_by) == ("unspecified", "nobody")


def test_the_annex_maps_the_paragraphs() -> None:
    annex = build_report(whole_inputs()).compliance_annex
    assert [(row.attack, row.edpb_ref, row.in_scope) for row in annex.attack_coverage] == [
        ("membership inference", "paragraph 55(i)", True),
        ("regurgitation of training data", "paragraph 55(iii)", True),
        ("attribute inference", "paragraph 55(i)", False),
        ("exfiltration", "paragraph 55(ii)", False),
        ("model inversion", "paragraph 55(iv)", False),
        ("reconstruction", "paragraph 55(v)", False),
    ]
    assert "can only be evidence for the resistance to those attacks" in annex.limitations
    assert "does not constitute" in annex.disclaimer
