"""The randomisation test: exact against all coins, valid under dependence, powerful, by clusters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.randomization import randomization_test
from memaudit.stats.roc import auc


def _area(scores: np.ndarray, coins: np.ndarray) -> float:
    return auc(scores[coins], scores[~coins]) if 0 < coins.sum() < coins.size else 0.5


def test_the_pvalue_approaches_that_over_all_coins() -> None:
    rng = np.random.default_rng(0)
    scores, coins = rng.standard_normal(10), np.array([1, 1, 0, 1, 0, 0, 1, 0, 1, 0], dtype=bool)
    scores[coins] += 0.7
    everything = [_area(scores, np.array(c, dtype=bool)) for c in itertools.product([0, 1], repeat=10)]
    exact = np.mean(np.array(everything) >= _area(scores, coins))
    found = randomization_test(scores, coins, draws=20_000, seed=1)
    assert found.statistic == pytest.approx(_area(scores, coins))
    assert found.pvalue == pytest.approx(exact, abs=4 * np.sqrt(exact / 20_000))
    by_function = randomization_test(scores, coins, draws=4000, seed=2, statistic=_area)
    assert by_function.pvalue == pytest.approx(exact, abs=4 * np.sqrt(exact / 4000))


def test_size_is_kept_however_the_scores_depend_on_each_other() -> None:
    rng = np.random.default_rng(2)
    hits = 0
    for seed in range(1000):
        scores = np.repeat(rng.standard_normal(4), 10) + 0.01 * rng.standard_normal(40)
        hits += randomization_test(scores, rng.random(40) < 0.5, draws=99, seed=seed).pvalue <= 0.05
    assert hits <= int(stats.binom.ppf(0.999, 1000, 0.05))


def test_coins_of_clusters_are_redrawn_by_cluster() -> None:
    """Documents share a coin and a level: redrawing per record is far over size, per document it is not."""
    rng = np.random.default_rng(3)
    label = np.repeat(np.arange(12), 10)
    wrong = right = 0
    for seed in range(400):
        coins = (rng.random(12) < 0.5)[label]
        scores = rng.standard_normal(12)[label] + 0.3 * rng.standard_normal(120)
        wrong += randomization_test(scores, coins, draws=99, seed=seed).pvalue <= 0.05
        right += randomization_test(scores, coins, draws=99, seed=seed, clusters=label).pvalue <= 0.05
    assert right <= int(stats.binom.ppf(0.999, 400, 0.05))
    assert wrong > 60


def test_a_leak_is_found_on_either_side() -> None:
    rng = np.random.default_rng(4)
    coins = rng.random(200) < 0.5
    up, down = rng.standard_normal(200) + coins, rng.standard_normal(200) - coins
    assert randomization_test(up, coins, draws=999).pvalue == 0.001
    assert randomization_test(down, coins, draws=999).pvalue > 0.9
    assert randomization_test(down, coins, draws=999, alternative="two-sided").pvalue == 0.001


def test_constant_scores_and_one_sided_coins_claim_nothing() -> None:
    assert randomization_test([1.0] * 20, [True, False] * 10, draws=99).pvalue == 1.0
    assert randomization_test([1.0, 2.0], [True, True], draws=99).pvalue > 0.05
    assert randomization_test([1.0], [1], draws=99).pvalue == 1.0


def test_it_is_seeded_and_refuses_what_does_not_fit() -> None:
    scores, coins = np.arange(30.0), np.arange(30) % 3 == 0
    assert randomization_test(scores, coins, 99, seed=5) == randomization_test(scores, coins, 99, seed=5)
    with pytest.raises(ConfigurationError, match="share one coin"):
        randomization_test(scores, coins, clusters=np.zeros(30))
    with pytest.raises(ConfigurationError, match="one coin per score"):
        randomization_test(scores, coins[:-1])
    with pytest.raises(ConfigurationError, match="'auc' or a function"):
        randomization_test(scores, coins, statistic="mean")
