"""Thresholds from controls: golden ranks, exact finite-sample rates, ties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.thresholds import (
    allowed_above,
    conformal_pvalues,
    conformal_threshold,
    controls_needed,
    detections,
    pac_threshold,
)
from tests.stats.golden import auc_inputs, load


def _controls(given: Any) -> Any:
    written = {
        "round(i*0.01-5,6) for i in range(1000)": [round(i * 0.01 - 5, 6) for i in range(1000)],
        "90 x 0.0 + 10 x 1.0": [0.0] * 90 + [1.0] * 10,
        "100 x 0.5": [0.5] * 100,
        "linspace(0,1,1000) rounded 6": np.round(np.linspace(0, 1, 1000), 6),
    }
    return written[given] if isinstance(given, str) else given


def test_the_right_rule_where_the_published_memaudit_is_wrong() -> None:
    cases = [c for c in load("memaudit_peer.json")["cases"] if c["function"] == "tpr_at_fpr"]
    assert len(cases) >= 9
    for case in cases:
        controls, expected = _controls(case["input"]["controls"]), case["expected"]
        fpr = case["input"]["fpr"]
        threshold = conformal_threshold(controls, fpr)
        assert threshold.allowed + 1 == expected["r"], case["name"]
        assert threshold.value == pytest.approx(expected["threshold_strict_gt"], abs=1e-12), case["name"]
        assert threshold.expected_fpr == pytest.approx(expected["fpr_guarantee"], abs=1e-12)
        found = detections(case["input"]["members"], controls, fpr)
        assert int(found.sum()) == expected["n_detected"], case["name"]


def test_ranks_and_rates_are_golden() -> None:
    for case in load("auc_conformal.json")["cases"]:
        _, controls = auc_inputs(case["spec"])
        for row in case["conformal"]:
            threshold = conformal_threshold(controls, row["alpha"])
            assert len(controls) - threshold.allowed == row["conformal_rank"]
            assert threshold.value == pytest.approx(float(row["threshold"]), abs=1e-12)
            pac = pac_threshold(controls, row["alpha"], 0.95)
            assert len(controls) - pac.allowed == row["pac_rank_gamma05"]
            if row["fpr_given_controls_beta"] is None:
                assert not threshold.identified
            else:
                assert [threshold.allowed + 1, len(controls) - threshold.allowed] == row[
                    "fpr_given_controls_beta"
                ]


def test_a_fresh_non_member_is_detected_exactly_as_often_as_stated() -> None:
    """Of n + 1 exchangeable scores each is as likely to be the fresh one: count over all of them, exactly."""
    rng = np.random.default_rng(0)
    for n, fpr in [(19, 0.1), (99, 0.01), (116, 0.01), (150, 0.05), (40, 0.01)]:
        pooled = rng.standard_normal(n + 1)
        hits = sum(bool(detections([pooled[i]], np.delete(pooled, i), fpr)[0]) for i in range(n + 1))
        assert hits / (n + 1) <= fpr
        assert hits / (n + 1) == pytest.approx(conformal_threshold(pooled[:-1], fpr).expected_fpr)


def test_ties_never_detect() -> None:
    assert not detections([0.5] * 16, [0.5] * 100, 0.01).any()
    controls = np.round(np.random.default_rng(1).standard_normal(300), 1)
    for fpr in (0.01, 0.05, 0.2):
        threshold = conformal_threshold(controls, fpr)
        assert np.mean(controls > threshold.value) <= fpr


def test_detection_is_the_conformal_pvalue_rule_and_the_threshold_rule() -> None:
    rng = np.random.default_rng(2)
    controls, scores = np.round(rng.standard_normal(237), 1), np.round(rng.standard_normal(500), 1)
    for fpr in (0.003, 0.01, 0.0333, 0.25):
        by_p = conformal_pvalues(scores, controls) <= fpr
        assert (detections(scores, controls, fpr) == by_p).all()


def test_pac_threshold_holds_with_its_confidence_and_not_one_control_higher() -> None:
    n, fpr, sure = 500, 0.05, 0.95
    allowed = pac_threshold(np.arange(n), fpr, sure).allowed
    assert stats.beta.cdf(fpr, allowed + 1, n - allowed) >= sure
    assert stats.beta.cdf(fpr, allowed + 2, n - allowed - 1) < sure


def test_controls_needed_are_the_published_ones() -> None:
    assert controls_needed(0.01) == 99
    assert controls_needed(0.001) == 999
    assert controls_needed(0.01, 0.95) == 299
    assert controls_needed(0.001, 0.95) == 2995
    for fpr in (0.5, 0.3, 0.07, 0.0123):
        n = controls_needed(fpr)
        assert allowed_above(n, fpr) == 0
        assert allowed_above(n - 1, fpr) == -1


def test_too_few_controls_identify_nothing() -> None:
    threshold = conformal_threshold([1.0] * 98, 0.01)
    assert (threshold.value, threshold.identified, threshold.resolvable_fpr) == (math.inf, False, 1 / 99)
    assert not detections([math.inf, 5.0], [1.0] * 98, 0.01).any()
    assert not conformal_threshold([], 0.5).identified


def test_infinite_scores_rank_and_nan_is_refused_with_its_count() -> None:
    controls = [-math.inf, *range(98), math.inf]
    assert not detections([math.inf], controls, 0.01).any()
    assert detections([math.inf], [float(i) for i in range(100)], 0.01).all()
    with pytest.raises(ConfigurationError, match="2 of 3 control scores are NaN"):
        conformal_threshold([math.nan, 1.0, math.nan], 0.1)


def test_fpr_interval_is_the_beta_law() -> None:
    low, high = conformal_threshold(range(99), 0.05).fpr_interval(0.95)
    assert (low, high) == pytest.approx(stats.beta.ppf([0.025, 0.975], 5, 95), abs=1e-12)
