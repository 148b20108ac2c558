"""Exposure against golden values and its law under the null."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.exposure import (
    MEAN_UNDER_NULL,
    SkewNormalFit,
    exposure_from_rank,
    exposure_pvalues,
    extrapolated_exposure,
    fit_skew_normal,
    rank_exposure,
    strict_exposure,
)
from tests.stats.golden import exposure_references, load


def test_exposures_are_golden() -> None:
    for case in load("exposure.json")["cases"]:
        references = exposure_references(case["spec"])
        canaries = case["canaries"]
        assert rank_exposure(canaries, references) == pytest.approx(case["rank_exposure"], abs=1e-9)
        assert strict_exposure(canaries, references) == pytest.approx(
            case["rank_exposure_plus1_strict"], abs=1e-9
        )
        law = SkewNormalFit(*case["skewnorm_params"], 0.0, 1.0, True, len(references))
        assert extrapolated_exposure(canaries, law) == pytest.approx(
            case["extrap_exposure"], rel=1e-6, abs=1e-9
        )
        fit = fit_skew_normal(references)
        assert fit.trusted
        assert extrapolated_exposure(canaries[1:], fit) == pytest.approx(
            case["extrap_exposure"][1:], rel=0.02, abs=0.02
        )


def test_an_unseen_secret_has_the_known_mean_and_tail() -> None:
    rng = np.random.default_rng(0)
    pooled = rng.standard_normal(1000)
    bits = np.array([strict_exposure([x], np.delete(pooled, i))[0] for i, x in enumerate(pooled)])
    assert bits.mean() == pytest.approx(MEAN_UNDER_NULL, abs=0.02)
    for b in (1, 3, 6):
        assert np.mean(bits >= b - 1e-9) == pytest.approx(2.0**-b, abs=2e-3)


def test_pvalues_count_ties_against_the_secret() -> None:
    assert exposure_pvalues([1.0, 0.5], [1.0, 1.0, 2.0]).tolist() == [0.75, 0.25]


def test_a_bad_fit_is_not_trusted() -> None:
    rng = np.random.default_rng(1)
    two_humps = np.concatenate([rng.normal(0, 1, 500), rng.normal(20, 1, 500)])
    fit = fit_skew_normal(two_humps)
    assert not fit.trusted and fit.ks_pvalue < 1e-6
    with pytest.raises(ConfigurationError, match="all equal"):
        fit_skew_normal([1.0] * 50)


def test_the_far_tail_stays_finite() -> None:
    law = SkewNormalFit(4.0, 50.0, 8.0, 0.0, 1.0, True, 1000)
    bits = extrapolated_exposure([-200.0, 0.0, 50.0, 500.0], law)
    assert np.isfinite(bits).all() and (np.diff(bits) <= 0).all() and bits[-1] == pytest.approx(0.0, abs=1e-9)
    symmetric = SkewNormalFit(0.0, 0.0, 1.0, 0.0, 1.0, True, 1000)
    assert extrapolated_exposure([-3.0], symmetric)[0] == pytest.approx(-math.log2(stats.norm.cdf(-3.0)))


def test_rank_in_a_known_space() -> None:
    assert exposure_from_rank(10**9, 1) == pytest.approx(29.897, abs=1e-3)
    with pytest.raises(ConfigurationError):
        exposure_from_rank(10, 11)
