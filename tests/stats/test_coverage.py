"""The ten acceptance tests of the one-run bounds: certified ones exceed the truth as rarely as they say."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import Cell, Mechanism, mechanisms, simulate
from memaudit.errors import ConfigurationError
from memaudit.privacy import CoinFlip, canary_scores, one_run
from memaudit.stats.one_run import xiang_mu, xiang_mu_pvalue

TRIALS = 2000
JUDGED = ("default, delta 0", "default, delta", "Steinke all", "gdp default", "Mahloujifar all", "Xiang all")
CERTIFIED = JUDGED[:-1]


def _mechanism(name: str) -> Mechanism:
    return next(mechanism for mechanism in mechanisms() if mechanism.name == name)


@functools.cache
def _cells(name: str, trials: int = TRIALS) -> dict[str, Cell]:
    return simulate(_mechanism(name), trials, 0, JUDGED)


def _most(alpha: float, trials: int = TRIALS) -> int:
    return int(stats.binom.ppf(0.999, trials, alpha))


def test_the_allowance_is_that_of_the_acceptance_tests() -> None:
    assert _most(0.05) in (131, 132)


@pytest.mark.parametrize("name", ["null", "randomised response, eps 1", "Laplace, eps 1"])
def test_1_to_3_without_gaussian_noise(name: str) -> None:
    cells = _cells(name)
    assert set(CERTIFIED[:3]) <= set(cells)
    for method, cell in cells.items():
        assert cell.violations <= _most(0.05), (name, method)


def test_1_null_at_one_per_cent() -> None:
    for method, cell in _cells("null, 1 %").items():
        assert cell.violations <= _most(0.01), method


@pytest.mark.parametrize("mu", ["0.5", "1", "2"])
def test_4_gaussian(mu: str) -> None:
    cells = _cells(f"Gaussian, mu {mu}")
    for method, cell in cells.items():
        assert cell.violations <= _most(0.05), method
    assert float(np.median(cells["default, delta"].values)) > 0.3, "a bound that is always 0 would pass"


@pytest.mark.parametrize(("name", "alpha"), [("mixed response", 0.05), ("mixed response, 1 %", 0.01)])
def test_5_one_public_coin_for_all_canaries(name: str, alpha: float) -> None:
    """Certified bounds hold; the model-based one fails, which is why it is called so."""
    cells = _cells(name)
    for method in CERTIFIED:
        assert cells[method].violations <= _most(alpha), method
    assert 0.07 * TRIALS <= cells["Xiang all"].violations <= 0.13 * TRIALS


def test_6_many_bits_revealed_at_once() -> None:
    """(0, delta)-DP: epsilon is 0 at that delta, and the default never says more than it may."""
    trials = 500
    cells = _cells("correlated (0, 0.01)", trials)
    assert set(cells) >= {"default, delta"}
    assert cells["default, delta"].violations <= _most(0.05, trials)


def test_7_unfair_coins_are_refused() -> None:
    rng = np.random.default_rng(0)
    included = rng.random(1000) < 0.1
    names = np.arange(1000)
    declared = CoinFlip(names, included, dataset_size=1000, probability=0.1)
    scores = canary_scores(rng.standard_normal(1000), canary_indices=names)
    with pytest.raises(ConfigurationError, match="fair coins"):
        one_run(scores, coin_flip=declared)
    with pytest.raises(ConfigurationError, match="declare the probability"):
        CoinFlip(names, included, dataset_size=1000)


@pytest.mark.parametrize("name", ["constant scores", "three tied values"])
def test_8_ties(name: str) -> None:
    for method, cell in _cells(name).items():
        assert cell.violations <= _most(0.05), method


def test_9_no_error_at_all_has_its_exact_probability() -> None:
    for m in (10, 100, 1000):
        assert xiang_mu_pvalue(m, m, 0, 1.0) == pytest.approx(stats.norm.cdf(0.5) ** m, rel=1e-10)
    # The failure rate at the nominal bound is the nominal one, not 7.1 % as by Chernoff's inequality.
    bound = xiang_mu(100, 100, 0, 0.05)
    assert stats.norm.cdf(bound / 2) ** 100 == pytest.approx(0.05, rel=1e-9)


def test_10_more_canaries_never_hurt() -> None:
    found = [xiang_mu(m, m, math.floor(m * stats.norm.cdf(-0.5))) for m in (100, 1000, 10_000, 100_000)]
    assert found == sorted(found)
