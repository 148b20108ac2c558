"""The gate: a failure is 1, what was not measured is 3, and neither ever passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from junitparser import JUnitXml

from memaudit.errors import ConfigurationError
from memaudit.report.build import AuditInputs, build_report
from memaudit.report.gate import Outcome, exit_code, gate, write_junit
from memaudit.report.schema import Report
from tests.report.inputs_for_tests import by_hand, whole_inputs


@pytest.fixture(scope="module")
def whole() -> Report:
    return build_report(whole_inputs())


def test_thresholds(whole: Report) -> None:
    tpr = whole.membership.tpr_at_target_fpr
    assert tpr is not None and 0.05 < tpr < 1.0
    assert exit_code(gate(whole, max_tpr=tpr)) == 0  # at most means at most
    assert exit_code(gate(whole, max_tpr=tpr - 1e-6)) == 1
    assert exit_code(gate(whole, max_tpr=tpr, upper=True)) == 1
    assert exit_code(gate(whole, max_regurgitation=0.0)) == 1
    assert exit_code(gate(whole, max_regurgitation=1.0)) == 0
    assert exit_code(gate(whole, max_auc=0.5)) == 1
    assert exit_code(gate(whole, max_epsilon=1.2)) == 0
    assert exit_code(gate(whole, max_epsilon=1.0)) == 1


def test_a_null_headline_never_passes() -> None:
    manifest, scores = by_hand([0.0] * 5, [0.0] * 50)
    report = build_report(AuditInputs(manifest=manifest, scores={"x": scores}, headline_attack="x"))
    checks = gate(report, max_tpr=1.0, max_regurgitation=1.0, max_epsilon=100.0)
    assert [check.outcome for check in checks] == [Outcome.NOT_MEASURED] * 3
    assert exit_code(checks) == 3


def test_smoke_never_passes() -> None:
    report = build_report(whole_inputs(profile="smoke"))
    assert exit_code(gate(report, max_tpr=1.0)) == 3


def test_a_failure_outweighs_what_was_not_measured() -> None:
    report = build_report(whole_inputs(privacy=None))
    assert exit_code(gate(report, max_tpr=0.0, max_epsilon=1.0)) == 1


def test_a_limit_that_so_few_canaries_cannot_test_is_not_passed() -> None:
    bound = {"value": 0.0, "ceiling": 0.9, "guarantee": "certified", "m": 8, "at": "at delta 0"}
    report = build_report(whole_inputs(privacy={"epsilon": [bound]}))
    assert exit_code(gate(report, max_epsilon=1.0)) == 3
    guessed = {**bound, "ceiling": 5.0, "guarantee": "model-based"}
    assert exit_code(gate(build_report(whole_inputs(privacy={"epsilon": [guessed]})), max_epsilon=1.0)) == 3


def test_open_near_verbatim_verdicts_need_exact_only() -> None:
    inputs = whole_inputs()
    assert inputs.extraction is not None
    from tests.report.inputs_for_tests import extracted

    found = {name: extracted(name, verbatim=False, near=None) for name in inputs.extraction}
    report = build_report(whole_inputs(extraction=found))
    assert exit_code(gate(report, max_regurgitation=0.0)) == 3
    assert exit_code(gate(report, max_regurgitation=0.0, exact_only=True)) == 0


def test_an_inverted_score_does_not_pass_the_auc_gate() -> None:
    manifest, scores = by_hand([-9.0 - i for i in range(20)], [float(i) for i in range(100)])
    report = build_report(AuditInputs(manifest=manifest, scores={"x": scores}, headline_attack="x"))
    assert exit_code(gate(report, max_auc=0.6)) == 1


def test_no_threshold_and_bad_ones_are_errors(whole: Report) -> None:
    with pytest.raises(ConfigurationError, match="no threshold"):
        gate(whole)
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigurationError, match="max_tpr"):
            gate(whole, max_tpr=bad)


def test_junit(whole: Report, tmp_path: Path) -> None:
    checks = gate(
        build_report(whole_inputs(privacy=None)), max_tpr=0.0, max_epsilon=1.0, max_regurgitation=1.0
    )
    write_junit(checks, tmp_path / "j.xml")
    suite = next(iter(JUnitXml.fromfile(str(tmp_path / "j.xml"))))
    assert (suite.tests, suite.failures, suite.errors) == (3, 1, 1)
