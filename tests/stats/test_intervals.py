"""Intervals for one proportion against golden values and against what defines them."""

from __future__ import annotations

import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.intervals import binomial_lower, binomial_upper, clopper_pearson, jeffreys
from tests.stats.golden import load


def test_clopper_pearson_is_the_peers_right_value() -> None:
    cases = [c for c in load("memaudit_peer.json")["cases"] if c["function"] == "clopper_pearson"]
    assert len(cases) == 6
    for case in cases:
        given = case["input"]
        low, high = clopper_pearson(given["k"], given["n"], 1 - given["alpha"])
        assert (low, high) == pytest.approx(case["expected"], abs=1e-12), case["name"]


@pytest.mark.parametrize(("hits", "trials"), [(1, 7), (3, 20), (19, 20), (500, 1000)])
def test_clopper_pearson_limits_put_half_the_error_in_each_binomial_tail(hits: int, trials: int) -> None:
    low, high = clopper_pearson(hits, trials, 0.9)
    assert stats.binom.sf(hits - 1, trials, low) == pytest.approx(0.05, abs=1e-10)
    assert stats.binom.cdf(hits, trials, high) == pytest.approx(0.05, abs=1e-10)
    assert binomial_lower(hits, trials, 0.05) == pytest.approx(low, abs=1e-12)
    assert binomial_upper(hits, trials, 0.05) == pytest.approx(high, abs=1e-12)


def test_jeffreys_is_golden() -> None:
    for case in load("two_proportion.json")["cases"]:
        level = 1 - case["alpha"]
        assert jeffreys(case["tp"], case["n1"], level) == pytest.approx(case["jeffreys_tpr_ci"], abs=1e-10)
        assert jeffreys(case["fp"], case["n0"], level) == pytest.approx(case["jeffreys_fpr_ci"], abs=1e-10)


def test_no_trials_say_nothing() -> None:
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(("hits", "trials", "level"), [(-1, 5, 0.95), (6, 5, 0.95), (1, 5, 1.0), (1, 5, 0.0)])
def test_impossible_counts_and_levels_are_refused(hits: int, trials: int, level: float) -> None:
    with pytest.raises(ConfigurationError):
        clopper_pearson(hits, trials, level)
