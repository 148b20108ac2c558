"""Regurgitation in the report: what was not run is null, an open verdict is no miss, curves are monotone."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from memaudit.errors import ReportError
from memaudit.report.build import build_report
from memaudit.report.regurgitation import CURVE_N, extraction, regurgitation
from tests.report.inputs_for_tests import by_hand, extracted, whole_inputs


def test_not_run_is_null_never_zero() -> None:
    report = build_report(whole_inputs(extraction=None, extraction_reason="skip_generation"))
    found = report.regurgitation
    assert (found.execution, found.reason, found.overall.rate, found.detected.rate) == (
        "not_run",
        "skip_generation",
        None,
        None,
    )
    assert (found.detected.n, found.by_tier, report.negative_controls.regurgitation_rate) == (0, {}, None)
    assert report.verdicts.regurgitation.level == "unknown"
    row = report.compliance_annex.attack_coverage[1]
    assert not row.in_scope and "not run" in row.status
    with pytest.raises(ReportError, match="no reason"):
        build_report(whole_inputs(extraction=None, extraction_reason=None))


def test_counts_rates_and_wording() -> None:
    report = build_report(whole_inputs())
    members = report.canaries.n_members
    at_16 = report.regurgitation.by_tier["16x"]
    found = report.regurgitation
    assert at_16.rate == 1.0 and found.by_tier["1x"].rate == 0.0
    assert found.detected.wording == f"{at_16.n}/{members} under this prefix/decoding/exact-match protocol"
    limits = stats.binomtest(at_16.n, members).proportion_ci(0.95, method="exact")
    assert (found.overall.ci_low, found.overall.ci_high) == pytest.approx((limits.low, limits.high), abs=1e-9)
    assert (found.by_prefix["0.25"].count, found.by_prefix["0.5"].count) == (0, at_16.n)
    assert report.negative_controls.regurgitation_rate == 0.0
    assert report.verdicts.regurgitation.level == "leak"


def test_open_near_verbatim_verdicts_leave_the_overall_rate_unmeasured() -> None:
    manifest, _ = by_hand([1.0, 2.0, 3.0], [0.0])
    found = {
        "m-00000": extracted("m-00000", verbatim=True),
        "m-00001": extracted("m-00001", verbatim=False, near=None),
        "m-00002": extracted("m-00002", verbatim=False, near=False),
    }
    seen = regurgitation(manifest, found, None, {"near_reason": "skip_generation"})
    assert (seen.overall.rate, seen.overall.count, seen.overall.n_open, seen.overall.exact) == (
        None,
        None,
        1,
        1,
    )
    assert (seen.detected.n_detected, seen.detected.n, seen.near_verbatim) == (1, 3, "not_run")
    assert seen.near_verbatim_reason == "skip_generation"


def test_unjudged_canaries_are_named_and_in_no_denominator() -> None:
    manifest, _ = by_hand([1.0, 2.0], [0.0])
    seen = regurgitation(manifest, {"m-00000": extracted("m-00000", verbatim=False)}, None, {})
    assert seen.detected.n == 1 and seen.note is not None and "m-00001" in seen.note
    with pytest.raises(ReportError, match="stranger"):
        regurgitation(manifest, {"stranger": extracted("stranger", verbatim=False)}, None, {})


def test_curves_count_the_canaries_that_need_at_most_n_samples() -> None:
    manifest, _ = by_hand([1.0] * 4, [0.0] * 2)
    needs = {"m-00000": 0.0, "m-00001": 2.0, "m-00002": 8.5, "m-00003": None}
    found = {name: extracted(name, verbatim=False, log10_n=need) for name, need in needs.items()}
    found["k-00000"] = extracted("k-00000", verbatim=False, log10_n=300.0)
    curve = extraction(manifest, found, None).curves[0]
    right = [
        sum(need is not None and 10**need <= n * (1 + 1e-9) for need in needs.values()) / 4 for n in CURVE_N
    ]
    assert curve.members == right and right[0] == 0.25 and right[-1] == 0.75
    assert curve.controls == [0.0] * len(CURVE_N)
    assert all(math.isfinite(n) for n in curve.n)
