"""Two-proportion bounds against golden values, Monte Carlo and the laws that define them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.two_proportion import (
    clopper_pearson_epsilon,
    jeffreys_epsilon,
    katz_epsilon,
    order_statistic_epsilon,
    zanella_beguelin_epsilon,
)
from tests.stats.golden import auc_inputs, load


def test_bounds_are_golden() -> None:
    for case in load("two_proportion.json")["cases"]:
        counts, alpha = [case[key] for key in ("tp", "n1", "fp", "n0")], case["alpha"]
        for delta, value in case["cp_eps_both_ratios"].items():
            assert clopper_pearson_epsilon(*counts, float(delta), alpha) == pytest.approx(value, abs=1e-10)
        assert katz_epsilon(*counts, alpha) == pytest.approx(max(0.0, float(case["katz_log_eps"])), abs=1e-10)
        adjusted = max(0.0, float(case["adjusted_log_eps(tf)"]))
        assert katz_epsilon(*counts, alpha, variant="adjusted") == pytest.approx(adjusted, abs=1e-10)
        for delta, value in case["zb_bayes_eps"].items():
            found = zanella_beguelin_epsilon(*counts, float(delta), alpha)
            assert found == pytest.approx(value, abs=1e-6), (counts, delta, alpha)


def test_order_statistic_bound_is_golden() -> None:
    seen = 0
    for case in load("auc_conformal.json")["cases"]:
        p, n = auc_inputs(case["spec"])
        for row in case["conformal"]:
            if "eps_lower95_orderstat" in row:
                allowed = len(n) - row["conformal_rank"]
                # The golden value is of TPR/FPR; the other ratio of the same two limits may say more.
                top = stats.beta.ppf(0.975, len(n) + 1 - row["conformal_rank"], row["conformal_rank"])
                other = math.log((1 - top) / (1 - row["tpr_cp95"][0]))
                expected = max(row["eps_lower95_orderstat"], other)
                assert order_statistic_epsilon(p, n, allowed) == pytest.approx(expected, abs=1e-9)
                seen += 1
    assert seen >= 5


def test_zanella_beguelin_by_monte_carlo() -> None:
    rng, tp, n1, fp, n0, delta = np.random.default_rng(0), 60, 80, 9, 90, 1e-3
    fnr = rng.beta(n1 - tp + 0.5, tp + 0.5, 400_000)
    fpr = rng.beta(fp + 0.5, n0 - fp + 0.5, 400_000)
    sides = [(fnr, fpr), (fpr, fnr), (1 - fnr, 1 - fpr), (1 - fpr, 1 - fnr)]
    with np.errstate(invalid="ignore", divide="ignore"):
        needed = np.max([np.log(np.maximum(1 - delta - a, 1e-300) / b) for a, b in sides], axis=0)
    expected = max(0.0, float(np.quantile(np.maximum(needed, 0.0), 0.05)))
    assert zanella_beguelin_epsilon(tp, n1, fp, n0, delta) == pytest.approx(expected, abs=0.01)


def test_exact_bound_keeps_its_level_over_independent_runs() -> None:
    """Randomised response at epsilon 1: TPR/FPR is e; the bound exceeds 1 in at most 5 % of the runs."""
    rng, q = np.random.default_rng(1), 1 / (1 + math.exp(-1))
    tp, fp = rng.binomial(200, q, 2000), rng.binomial(200, 1 - q, 2000)
    over = sum(clopper_pearson_epsilon(int(a), 200, int(b), 200) > 1 for a, b in zip(tp, fp, strict=True))
    assert over <= stats.binom.ppf(0.999, 2000, 0.05)


@pytest.mark.parametrize("variant", ["katz", "adjusted", "bailey", "inverse-sinh"])
def test_variants_are_near_their_level_and_near_each_other(variant: str) -> None:
    rng, q = np.random.default_rng(2), 1 / (1 + math.exp(-1))
    tp, fp = rng.binomial(500, q, 1000), rng.binomial(500, 1 - q, 1000)
    found = [katz_epsilon(int(a), 500, int(b), 500, variant=variant) for a, b in zip(tp, fp, strict=True)]
    assert 0.03 <= np.mean(np.array(found) > 1) <= 0.075
    assert katz_epsilon(300, 500, 100, 500, variant=variant) == pytest.approx(
        katz_epsilon(300, 500, 100, 500), abs=0.02
    )


@pytest.mark.parametrize("counts", [(0, 5, 0, 5), (5, 5, 5, 5), (5, 5, 0, 5), (0, 1, 1, 1), (1, 1, 0, 1)])
def test_no_count_gives_a_nan(counts: tuple[int, int, int, int]) -> None:
    values = [clopper_pearson_epsilon(*counts), jeffreys_epsilon(*counts), zanella_beguelin_epsilon(*counts)]
    values += [katz_epsilon(*counts, variant=v) for v in ("katz", "adjusted", "bailey", "inverse-sinh")]
    assert all(math.isfinite(value) and value >= 0 for value in values)


def test_delta_lowers_the_bound_and_one_voids_it() -> None:
    found = [clopper_pearson_epsilon(80, 100, 10, 100, delta) for delta in (0.0, 0.1, 0.5, 1.0)]
    assert found == sorted(found, reverse=True) and found[-1] == 0.0
    assert zanella_beguelin_epsilon(80, 100, 10, 100, 1.0) == 0.0
    with pytest.raises(ConfigurationError, match="delta"):
        clopper_pearson_epsilon(80, 100, 10, 100, -0.1)
    with pytest.raises(ConfigurationError, match="at least one of each"):
        clopper_pearson_epsilon(0, 0, 10, 100)
