"""Comparisons: chance is not called a change, a real change is, what one side lacks is not measured."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from memaudit.report.build import AuditInputs, build_report
from memaudit.report.compare import compare
from memaudit.report.schema import Report
from tests.report.inputs_for_tests import by_hand, whole_inputs


def report_with(hits: int, n: int = 40, fpr: float = 0.01, *, seed: int | None = None) -> Report:
    """A report in which ``hits`` of ``n`` members are detected; other seeds are other canaries."""
    manifest, scores = by_hand([9.0] * hits + [-9.0] * (n - hits), [i / 200 for i in range(120)])
    manifest = manifest.model_copy(update={"seed": hits if seed is None else seed})
    return build_report(
        AuditInputs(manifest=manifest, scores={"x": scores}, headline_attack="x", target_fpr=fpr)
    )


def change(first: Report, second: Report, name: str) -> tuple[str, float | None]:
    found = next(one for one in compare(first, second).changes if one.name == name)
    return found.judgement, found.pvalue


def test_counts_are_judged_by_fishers_exact_test() -> None:
    assert change(report_with(2), report_with(20), "TPR (headline)") == (
        "higher",
        pytest.approx(stats.fisher_exact([[2, 38], [20, 20]]).pvalue),
    )
    assert change(report_with(20), report_with(2), "TPR (headline)")[0] == "lower"
    assert change(report_with(5), report_with(7), "TPR (headline)")[0] == "within"
    assert change(report_with(5), report_with(5), "TPR (headline)")[0] == "same"


def test_the_same_canaries_are_compared_one_by_one() -> None:
    first, second = report_with(2, seed=0), report_with(9, seed=0)
    assert change(first, second, "TPR (headline)") == (
        "higher",
        pytest.approx(2 / 2**7),
    )  # seven gained, none lost
    few = report_with(6, seed=0)
    assert change(first, few, "TPR (headline)") == ("within", pytest.approx(2 / 2**4))
    note = compare(first, second).changes[0].note
    assert note is not None and "7 canaries gained, 0 lost" in note


def test_what_one_side_lacks_is_not_measured() -> None:
    whole, other = build_report(whole_inputs()), report_with(5)
    assert change(whole, other, "Verbatim regurgitation")[0] == "not_measured"
    assert change(whole, other, "AUC, loss")[0] == "not_measured"
    assert change(report_with(5), report_with(5, fpr=0.05), "TPR (headline)")[0] == "not_measured"


def test_two_draws_of_one_model_are_rarely_called_different() -> None:
    """80 pairs of AUCs of the same law: the 5 % test may call at most 5 % different, binomial slack added."""
    rng, called = np.random.default_rng(3), 0
    for _ in range(80):
        pair = []
        for _ in range(2):
            manifest, scores = by_hand(rng.normal(1.0, size=30), rng.normal(size=100))
            manifest = manifest.model_copy(update={"include_prob": 1.0})
            pair.append(
                build_report(AuditInputs(manifest=manifest, scores={"x": scores}, headline_attack="x"))
            )
        called += change(pair[0], pair[1], "AUC")[0] in ("higher", "lower")
    assert called <= stats.binom.ppf(0.999, 80, 0.05)


def test_cautions_name_what_differs() -> None:
    first, second = build_report(whole_inputs()), report_with(5)
    text = " ".join(compare(first, second).cautions)
    assert "different canaries" in text and "headline attacks" in text and "reference modes" in text
    assert "same canaries" in " ".join(compare(first, first).cautions)


def test_it_goes_into_json() -> None:
    found = json.loads(json.dumps(compare(report_with(5), report_with(7)).to_dict(), allow_nan=False))
    assert found["changes"][0]["difference"] == pytest.approx(0.05)
