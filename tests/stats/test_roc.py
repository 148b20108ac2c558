"""AUC, its intervals, operating points and bands: golden values, brute force, simulated coverage, cost."""

from __future__ import annotations

import math
import time
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.roc import (
    auc,
    bootstrap_auc_interval,
    delong_interval,
    delong_variance,
    fpr_at_tpr,
    joint_interval,
    joint_interval_at_fpr,
    pairs_interval,
    roc_band,
    roc_curve,
    tpr_at_fpr,
)
from tests.stats.golden import auc_inputs, load


def test_auc_and_delong_are_golden() -> None:
    for case in load("auc_conformal.json")["cases"]:
        p, n = auc_inputs(case["spec"])
        value, variance = delong_variance(p, n)
        assert auc(p, n) == value == pytest.approx(case["auc"], abs=1e-12)
        assert variance == pytest.approx(case["var"], rel=1e-10, abs=1e-15)
        if case["var"] > 0:
            assert delong_interval(p, n, scale="wald") == pytest.approx(
                np.clip(case["ci95_wald"], 0, 1), abs=1e-9
            )
            assert delong_interval(p, n, scale="logit") == pytest.approx(case["ci95_logit"], abs=1e-9)


def test_tpr_at_fpr_is_golden() -> None:
    for case in load("auc_conformal.json")["cases"]:
        p, n = auc_inputs(case["spec"])
        for row in case["conformal"]:
            found = tpr_at_fpr(p, n, row["alpha"])
            assert found.n_detected == row["tp"]
            assert (found.ci_low, found.ci_high) == pytest.approx(row["tpr_cp95"], abs=1e-10)


def test_auc_by_brute_force_with_ties_and_infinities() -> None:
    rng = np.random.default_rng(0)
    p, n = rng.integers(-2, 3, 40).astype(float), rng.integers(-2, 3, 31).astype(float)
    p[:3], n[:2] = math.inf, -math.inf
    n[5] = math.inf
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in p for b in n]
    assert auc(p, n) == pytest.approx(np.mean(pairs), abs=1e-15)
    for case in load("memaudit_peer.json")["cases"]:
        if case["function"] == "roc_auc":
            members, controls = ([float(x) for x in case["input"][key]] for key in ("members", "controls"))
            assert auc(members, controls) == case["expected"], case["name"]


def test_perfect_separation_has_an_interval_that_admits_ignorance() -> None:
    for interval in (delong_interval([2.0] * 30, [1.0] * 50), bootstrap_auc_interval([2.0] * 30, [1.0] * 50)):
        assert interval == (pytest.approx(0.025 ** (1 / 30)), 1.0)
    low, high = delong_interval([1.0] * 30, [1.0] * 50)
    assert low < 0.5 < high
    assert pairs_interval(0.0, 10)[0] == 0.0


def test_intervals_cover_the_truth() -> None:
    """Gaussian scores one apart: AUC = Phi(1/sqrt 2); 95 % intervals miss in about 5 % of 400 runs."""
    rng = np.random.default_rng(4)
    truth = stats.norm.cdf(1 / math.sqrt(2))
    missed = {"delong": 0, "bootstrap": 0}
    for seed in range(400):
        p, n = rng.standard_normal(60) + 1, rng.standard_normal(60)
        low, high = delong_interval(p, n)
        missed["delong"] += not low <= truth <= high
        low, high = bootstrap_auc_interval(p, n, resamples=200, seed=seed)
        missed["bootstrap"] += not low <= truth <= high
    most = int(stats.binom.ppf(0.999, 400, 0.05))
    assert 4 <= missed["delong"] <= most
    assert 4 <= missed["bootstrap"] <= most + 8, "the bootstrap is asymptotic"


def test_bootstrap_is_reproducible_and_seeded() -> None:
    rng = np.random.default_rng(5)
    p, n = rng.standard_normal(40) + 1, rng.standard_normal(40)
    assert bootstrap_auc_interval(p, n, seed=1) == bootstrap_auc_interval(p, n, seed=1)
    assert bootstrap_auc_interval(p, n, seed=1) != bootstrap_auc_interval(p, n, seed=2)
    with pytest.raises(ConfigurationError, match="at least 100"):
        bootstrap_auc_interval(p, n, resamples=1)


def test_the_curve_encloses_the_auc_and_ends_at_the_corners() -> None:
    rng = np.random.default_rng(6)
    p, n = rng.integers(0, 9, 70) + 1.0, rng.integers(0, 9, 50) * 1.0
    curve = roc_curve(p, n)
    assert (curve.fpr[0], curve.tpr[0], curve.fpr[-1], curve.tpr[-1]) == (0, 0, 1, 1)
    area = float(np.sum(np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]) / 2))
    assert area == pytest.approx(auc(p, n), abs=1e-12)
    for x, y, t in zip(curve.fpr[1:], curve.tpr[1:], curve.thresholds[1:], strict=True):
        assert (x, y) == (np.mean(n >= t), np.mean(p >= t))


def test_fpr_at_tpr_detects_the_share_with_the_highest_threshold() -> None:
    rng = np.random.default_rng(7)
    p, n = rng.standard_normal(200) + 1, rng.standard_normal(300)
    for share in (0.01, 0.5, 0.9, 1.0):
        found = fpr_at_tpr(p, n, share)
        assert np.mean(p >= found.threshold) >= share - 1e-12
        assert np.mean(p > found.threshold) < share
        assert found.fpr == np.mean(n >= found.threshold)
        assert found.ci_low <= found.fpr <= found.ci_high


def test_the_band_holds_the_whole_curve() -> None:
    """The true ROC of shifted normals lies inside the 90 % band in at least 90 % of 200 runs."""
    rng = np.random.default_rng(8)
    outside = 0
    for _ in range(200):
        band = roc_band(rng.standard_normal(150) + 1, rng.standard_normal(150), 0.9)
        inner = (band.fpr > 0) & (band.fpr < 1)
        truth = stats.norm.cdf(1 + stats.norm.ppf(band.fpr[inner]))
        outside += bool(
            (truth < band.tpr_low[inner] - 1e-12).any() or (truth > band.tpr_high[inner] + 1e-12).any()
        )
    assert outside <= int(stats.binom.ppf(0.999, 200, 0.1))


def test_joint_intervals_spend_half_on_each_rate() -> None:
    box = joint_interval(80, 100, 10, 100)
    assert (box.tpr_low, box.tpr_high) == pytest.approx(
        (stats.beta.ppf(0.0125, 80, 21), stats.beta.ppf(0.9875, 81, 20)), abs=1e-12
    )
    at_fpr = joint_interval_at_fpr(np.arange(100) + 60.0, np.arange(99.0), 0.1)
    assert (at_fpr.fpr_low, at_fpr.fpr_high) == pytest.approx(
        stats.beta.ppf([0.0125, 0.9875], 10, 90), abs=1e-12
    )


def test_large_inputs_are_quick_and_small() -> None:
    rng = np.random.default_rng(9)
    p, n = rng.standard_normal(100_000) + 1, rng.standard_normal(100_000)
    tracemalloc.start()
    start = time.perf_counter()
    value, variance = delong_variance(p, n)
    curve = roc_curve(p, n)
    found = tpr_at_fpr(p, n, 0.001)
    spent = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert value == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=5 * math.sqrt(variance))
    assert curve.tpr.size == 200_001
    assert found.identified
    assert spent < 5 and peak < 100e6, "the published memaudit took 4.7 GB and 18 s for 20,000 x 10,000"


def test_empty_sides_are_refused_or_said() -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        auc([], [1.0])
    found = tpr_at_fpr([], range(100), 0.01)
    assert (found.tpr, found.ci_low, found.ci_high, found.n_members) == (0.0, 0.0, 1.0, 0)
