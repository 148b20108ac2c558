"""The headline: golden values of the published tool's cases, refusals, and what a null model gives."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ReportError
from memaudit.manifest import Manifest
from memaudit.report.examples import example_manifest, example_scores
from memaudit.report.membership import membership
from tests.conftest import shared_path
from tests.report.inputs_for_tests import by_hand

RECIPES = {
    "round(i*0.01-5,6) for i in range(1000)": [round(i * 0.01 - 5, 6) for i in range(1000)],
    "90 x 0.0 + 10 x 1.0": [0.0] * 90 + [1.0] * 10,
    "100 x 0.5": [0.5] * 100,
    "linspace(0,1,1000) rounded 6": [round(float(x), 6) for x in np.linspace(0, 1, 1000)],
}


def cases(function: str) -> list[dict[str, Any]]:
    found = json.loads(shared_path("golden", "memaudit_peer.json").read_text())["cases"]
    return [case for case in found if case["function"] == function]


def numbers(values: Any) -> list[float]:
    values = RECIPES[values] if isinstance(values, str) else values
    return [float(value) for value in values]


def test_thresholds_and_detections_are_the_golden_ones() -> None:
    seen = cases("tpr_at_fpr")
    assert len(seen) >= 10
    for case in seen:
        given, right = case["input"], case["expected"]
        manifest, scores = by_hand(numbers(given["members"]), numbers(given["controls"]))
        found = membership(manifest, scores, headline_attack="x", target_fpr=given["fpr"])
        assert found.headline_valid, case["name"]
        assert found.threshold == pytest.approx(right["threshold_strict_gt"], abs=1e-9), case["name"]
        assert found.n_detected == right["n_detected"], case["name"]
        assert found.tpr_at_target_fpr == pytest.approx(right["tpr"], abs=1e-12), case["name"]
        assert found.fpr_guarantee == pytest.approx(right["fpr_guarantee"], abs=1e-12), case["name"]
        assert found.fpr_guarantee is not None and found.fpr_guarantee <= given["fpr"] + 1e-12


def test_intervals_are_the_golden_ones() -> None:
    for case in cases("clopper_pearson"):
        hits, n = case["input"]["k"], case["input"]["n"]
        manifest, scores = by_hand([9.0] * hits + [-9.0] * (n - hits), [i / 200 for i in range(120)])
        found = membership(manifest, scores, headline_attack="x")
        assert [found.ci_low, found.ci_high] == pytest.approx(case["expected"], abs=1e-9)


def test_auc_is_the_golden_one_with_ties_and_infinities() -> None:
    for case in cases("roc_auc"):
        manifest, scores = by_hand(numbers(case["input"]["members"]), numbers(case["input"]["controls"]))
        found = membership(manifest, scores, headline_attack="x")
        assert found.auc == pytest.approx(case["expected"], abs=1e-12), case["name"]


def test_the_null_is_detected_no_more_often_than_stated() -> None:
    """Over 150 draws of 116 normal scores the true false-positive rate is known exactly: its mean is 1/117.

    The largest-quantile threshold of the published tool gives 2/117 = .0171 instead.
    """
    rng, rates = np.random.default_rng(5), []
    for _ in range(150):
        manifest, scores = by_hand([0.0], rng.normal(size=100), held_out=rng.normal(size=16))
        found = membership(_no_coins(manifest), scores, headline_attack="x")
        assert found.threshold is not None and found.fpr_guarantee == pytest.approx(1 / 117)
        rates.append(float(stats.norm.sf(found.threshold)))
    error = float(np.std(rates)) / math.sqrt(len(rates))
    assert abs(float(np.mean(rates)) - 1 / 117) < 3.3 * error < 0.003


def _no_coins(manifest: Manifest) -> Manifest:
    """Without fair coins the randomisation test, the slow part, is left out."""
    return manifest.model_copy(update={"include_prob": 1.0})


@pytest.mark.parametrize("n_controls", [99, 100])
def test_fewer_than_100_controls_refuse_the_headline(n_controls: int) -> None:
    manifest, scores = by_hand([5.0] * 10, [i / 1000 for i in range(n_controls)])
    found = membership(manifest, scores, headline_attack="x")
    assert found.headline_valid is (n_controls == 100)
    if n_controls == 99:
        assert found.tpr_at_1pct_fpr is found.tpr_at_target_fpr is found.ci_low is found.n_detected is None
        assert found.headline_reason is not None and "at least 100 are required" in found.headline_reason
        assert all(tier.detected is None and tier.tpr is None for tier in found.by_repetition.values())
        assert found.exploratory is not None and found.exploratory.fpr == 0.01
        assert found.exploratory.n_detected == 10


def test_coin_losers_count_towards_the_floor_and_are_stated_apart() -> None:
    manifest, scores = by_hand([5.0] * 10, [i / 1000 for i in range(90)], held_out=[0.5] * 10)
    found = membership(manifest, scores, headline_attack="x")
    assert found.headline_valid
    assert (found.n_controls, found.calibration.n_never_inserted, found.calibration.n_coin_losers) == (
        100,
        90,
        10,
    )


def test_controls_of_another_generator_set_no_threshold() -> None:
    manifest, scores = by_hand([1.0] * 4, [5.0] * 100, held_out=[0.0] * 30)
    strange = tuple(
        c.model_copy(update={"generator": "other"}) if c.role == "control" else c for c in manifest.canaries
    )
    found = membership(manifest.model_copy(update={"canaries": strange}), scores, headline_attack="x")
    assert (found.n_controls, found.calibration.n_excluded, found.headline_valid) == (30, 100, False)
    assert any("another generator" in text for text in found.warnings)
    assert found.exploratory is not None and found.exploratory.n_detected == 4


def test_smoke_refuses_whatever_the_counts() -> None:
    manifest, scores = by_hand([5.0] * 10, [i / 1000 for i in range(200)])
    found = membership(manifest, scores, headline_attack="x", profile="smoke")
    assert not found.headline_valid and found.tpr_at_1pct_fpr is None and found.threshold_identified
    assert found.headline_reason is not None and "smoke" in found.headline_reason


def test_a_stricter_target_is_refused_and_the_rate_at_one_percent_stays() -> None:
    manifest, scores = by_hand([5.0] * 10, [i / 1000 for i in range(200)])
    found = membership(manifest, scores, headline_attack="x", target_fpr=0.001)
    assert (found.headline_valid, found.tpr_at_target_fpr, found.tpr_at_1pct_fpr) == (False, None, 1.0)
    assert found.min_controls_required == 1000 and "0.1%" in str(found.headline_reason)


def test_scores_that_are_not_numbers_are_named_and_counted() -> None:
    manifest, scores = by_hand([5.0] * 40, [i / 1000 for i in range(200)])
    scores["m-00003"] = scores["k-00007"] = math.nan
    found = membership(manifest, scores, headline_attack="x")
    assert found.unscored.ids == ["k-00007", "m-00003"]
    assert (found.n_members, found.n_members_planted, found.n_controls) == (39, 40, 199)
    assert found.headline_valid and any("k-00007, m-00003" in text for text in found.warnings)
    for index in range(4):
        scores[f"m-{index:05d}"] = math.nan
    lost = membership(manifest, scores, headline_attack="x")
    assert not lost.headline_valid and "no score" in str(lost.headline_reason)


def test_the_join_is_one_to_one() -> None:
    manifest, scores = by_hand([1.0], [0.0])
    with pytest.raises(ReportError, match="1 canaries have none"):
        membership(manifest, {"m-00000": 1.0}, headline_attack="x")
    with pytest.raises(ReportError, match="1 scores have no canary"):
        membership(manifest, {**scores, "stranger": 1.0}, headline_attack="x")


def test_tiers_share_one_threshold_and_add_up() -> None:
    manifest = example_manifest(n=60, n_controls=150)
    scores = example_scores(manifest)
    found = membership(manifest, scores, headline_attack="x")
    tiers = {name: tier for name, tier in found.by_repetition.items() if name != "pooled"}
    assert set(tiers) == {"1x", "4x", "16x"}
    assert sum(tier.n for tier in tiers.values()) == found.n_members
    assert sum(tier.detected or 0 for tier in tiers.values()) == found.n_detected
    assert found.threshold is not None
    for canary in manifest.members:
        assert tiers[f"{canary.repetitions}x"].n
    again = sum(scores[c.id] > found.threshold for c in manifest.members if c.repetitions == 16)
    assert tiers["16x"].detected == again
    pooled = found.by_repetition["pooled"]
    assert (pooled.detected, pooled.tpr) == (found.n_detected, found.tpr_at_target_fpr)


def test_auc_per_tier_agrees_with_scipy() -> None:
    manifest = example_manifest(n=60, n_controls=150)
    scores = example_scores(manifest, effect=0.3)
    found = membership(manifest, scores, headline_attack="x")
    rest = [scores[c.id] for c in manifest.canaries if not c.included]
    for repetitions in (1, 4, 16):
        values = [scores[c.id] for c in manifest.members if c.repetitions == repetitions]
        u = stats.mannwhitneyu(values, rest).statistic / (len(values) * len(rest))
        assert found.by_repetition[f"{repetitions}x"].auc == pytest.approx(u, abs=1e-12)


def test_an_inverted_score_is_leakage_too() -> None:
    manifest, scores = by_hand([-5.0 - i for i in range(20)], [float(i) for i in range(100)])
    found = membership(manifest, scores, headline_attack="x")
    assert found.auc == 0.0 and found.inverted and found.tpr_at_target_fpr == 0.0
    assert any("below 0.5" in text for text in found.warnings)


def test_constant_scores_detect_nothing_and_say_so() -> None:
    manifest, scores = by_hand([0.5] * 16, [0.5] * 100)
    found = membership(manifest, scores, headline_attack="x")
    assert (found.n_detected, found.auc) == (0, 0.5)
    assert any("no information" in text for text in found.warnings)


def test_the_randomisation_test_uses_the_coins_two_groups_alone() -> None:
    manifest, scores = by_hand([9.0] * 8, [100.0] * 100, held_out=[0.0] * 8)
    found = membership(manifest, scores, headline_attack="x")
    assert found.randomization is not None
    # All sixteen coins right: only that outcome, of 2**16, is as extreme, besides redraws with no comparison.
    assert found.randomization["n_units"] == 16 and float(str(found.randomization["pvalue"])) < 0.002
    unfair = membership(manifest.model_copy(update={"include_prob": 0.3}), scores, headline_attack="x")
    assert unfair.randomization is None and "not fair" in str(unfair.randomization_reason)


def test_no_members_is_a_reason_not_a_zero() -> None:
    manifest, scores = by_hand([], [0.0] * 100, held_out=[0.0] * 4)
    found = membership(manifest, scores, headline_attack="x")
    assert (found.headline_valid, found.tpr_at_1pct_fpr, found.auc) == (False, None, None)
    assert found.headline_reason is not None and "insert some" in found.headline_reason
