"""Set-level tests: golden values, scipy, size under the null, and shifts that are no membership."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.multiple import combine_pvalues
from memaudit.stats.set_tests import (
    blind_baseline,
    dataset_inference,
    kolmogorov_smirnov,
    mann_whitney,
    paired_t,
    permutation_test,
    sign_test,
    welch,
)
from tests.stats.golden import auc_inputs, load


def test_mann_whitney_and_welch_are_golden() -> None:
    for case in load("auc_conformal.json")["cases"]:
        p, n = auc_inputs(case["spec"])
        found = mann_whitney(p, n)
        assert found.statistic == pytest.approx(case["mwu"]["U"], abs=1e-6)
        assert found.pvalue == pytest.approx(case["mwu"]["p_greater_asymptotic"], rel=1e-8)
        t = welch(p, n)
        if case["welch_t"] is None:  # every score rounds to 0
            assert t.pvalue == 1.0
            continue
        assert (t.statistic, t.pvalue) == pytest.approx(case["welch_t"], rel=1e-8)


def test_others_agree_with_scipy() -> None:
    rng = np.random.default_rng(0)
    p, n = rng.standard_normal(40) + 0.5, rng.standard_normal(50)
    assert kolmogorov_smirnov(p, n).pvalue == pytest.approx(stats.ks_2samp(p, n).pvalue)
    assert paired_t(p).pvalue == pytest.approx(
        stats.ttest_1samp(p, 0, alternative="greater").pvalue, rel=1e-10
    )
    exact = stats.binomtest(int(np.sum(p > 0)), 40, alternative="greater").pvalue
    assert sign_test(p).pvalue == pytest.approx(exact, rel=1e-10)


def test_permutation_counts_equal_sums_as_extreme() -> None:
    assert permutation_test([0.1, 0.2, 0.3], [0.1, 0.2, 0.3], draws=199, seed=0).pvalue > 0.4
    assert permutation_test([0.1] * 7, [0.1] * 9, draws=99).pvalue == 1.0


def test_constant_scores_claim_nothing() -> None:
    assert mann_whitney([1.0] * 5, [1.0] * 6).pvalue == 1.0
    assert welch([1.0] * 5, [1.0] * 6).pvalue == 1.0
    assert welch([2.0] * 5, [1.0] * 6).pvalue == 1.0
    assert paired_t([1.0] * 5).pvalue == 1.0
    assert sign_test([0.0, 0.0]).pvalue == 1.0


@pytest.mark.parametrize("test", [mann_whitney, welch, lambda p, n: permutation_test(p, n, draws=99)])
def test_sizes_are_kept(test: object) -> None:
    rng = np.random.default_rng(1)
    assert callable(test)
    hits = sum(test(rng.standard_normal(25), rng.standard_normal(30)).pvalue <= 0.05 for _ in range(1000))
    assert hits <= stats.binom.ppf(0.9999, 1000, 0.05)


def test_dataset_inference_keeps_its_size_and_finds_a_faint_signal() -> None:
    rng = np.random.default_rng(2)
    hits = sum(
        dataset_inference(rng.standard_normal((60, 8)), rng.standard_normal((60, 8)), seed=i).pvalue <= 0.05
        for i in range(300)
    )
    assert hits <= stats.binom.ppf(0.999, 300, 0.05)
    faint = rng.standard_normal((400, 20)) + 0.15
    found = dataset_inference(faint, rng.standard_normal((400, 20)))
    assert found.pvalue < 0.001
    assert len(found.split_pvalues) == 11
    assert found.pvalue == combine_pvalues(found.split_pvalues)


def test_the_blind_baseline_finds_a_shift_and_no_shift() -> None:
    rng = np.random.default_rng(3)
    words = np.array(["a", "b", "c", "d", "e", "f"])

    def texts(year: str, share: float) -> list[str]:
        return [
            " ".join(rng.choice(words, 12)) + (f" {year}" if rng.random() < share else "") for _ in range(120)
        ]

    shifted = blind_baseline(texts("2024", 0.7), texts("1999", 0.7))
    assert shifted.pvalue < 1e-6 and shifted.auc > 0.75
    same = blind_baseline(texts("2024", 0.5), texts("2024", 0.5))
    assert same.pvalue > 0.05 and 0.35 < same.auc < 0.65


def test_bad_inputs_are_named() -> None:
    with pytest.raises(ConfigurationError, match="8, 8 and 1"):
        dataset_inference(np.zeros((7, 2)), np.zeros((9, 2)))
    with pytest.raises(ConfigurationError, match="same on both sides"):
        dataset_inference(np.zeros((9, 2)), np.zeros((9, 3)))
    with pytest.raises(ConfigurationError, match="no mean"):
        welch([1.0, np.inf], [1.0, 2.0])
