"""The coin-flip partition: uniform, fair, reproducible, joined by id, honest about its probability."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError, InputTypeError
from memaudit.privacy import CanaryScores, CoinFlip, canary_scores, coin_flip


def test_a_partition_is_what_its_key_says() -> None:
    first, again = (coin_flip(range(500), num_canaries=100, key=42) for _ in range(2))
    assert np.array_equal(first.canary_indices, again.canary_indices)
    assert np.array_equal(first.included, again.included)
    other = coin_flip(range(500), num_canaries=100, key=43)
    assert not np.array_equal(first.canary_indices, other.canary_indices)


def test_a_numpy_generator_is_a_key() -> None:
    one = coin_flip(range(50), num_canaries=20, key=np.random.default_rng(7))
    same = coin_flip(range(50), num_canaries=20, key=np.random.default_rng(7))
    assert np.array_equal(one.canary_indices, same.canary_indices)
    rng = np.random.default_rng(7)
    coin_flip(range(50), num_canaries=20, key=rng)
    assert not np.array_equal(
        coin_flip(range(50), num_canaries=20, key=rng).canary_indices, one.canary_indices
    )
    for bad in ("42", 1.5, None, True):
        with pytest.raises(InputTypeError, match="integer seed or a numpy Generator"):
            coin_flip(range(50), num_canaries=20, key=bad)  # type: ignore[arg-type]


def test_selection_is_uniform_and_coins_are_fair_and_independent() -> None:
    flips = [coin_flip(range(20), num_canaries=5, key=key) for key in range(4000)]
    chosen = np.bincount(np.concatenate([f.canary_indices for f in flips]), minlength=20)
    assert stats.chisquare(chosen).pvalue > 1e-4
    coins = np.stack([f.included for f in flips])
    assert stats.binomtest(int(coins.sum()), coins.size).pvalue > 1e-4
    pairs = coins[:, 0] * 2 + coins[:, 1]
    assert stats.chisquare(np.bincount(pairs, minlength=4)).pvalue > 1e-4
    # The coin of a record does not depend on which record it is.
    by_record = np.concatenate([f.canary_indices[f.included] for f in flips])
    assert stats.chisquare(np.bincount(by_record, minlength=20)).pvalue > 1e-4


def test_training_takes_everything_but_the_coins_losers() -> None:
    flip = coin_flip(range(60), num_canaries=30, key=0)
    kept = flip.train_indices(60)
    assert all(isinstance(index, int) for index in kept)
    assert sorted([*kept, *flip.out_indices.tolist()]) == list(range(60))
    assert set(flip.in_indices.tolist()) <= set(kept)
    with pytest.raises(ConfigurationError, match="made for 60 records"):
        flip.train_indices(59)


def test_a_pool_keeps_canaries_inside_it() -> None:
    flip = coin_flip(range(100), num_canaries=10, key=1, candidate_indices=range(90, 100))
    assert sorted(flip.canary_indices.tolist()) == list(range(90, 100))
    shuffled = coin_flip(range(100), num_canaries=5, key=1, candidate_indices=[99, 3, 50, 7, 8, 9])
    ordered = coin_flip(range(100), num_canaries=5, key=1, candidate_indices=[3, 7, 8, 9, 50, 99])
    assert np.array_equal(shuffled.canary_indices, ordered.canary_indices)
    for pool, message in [
        ([1, 1, 2], "repeat"),
        ([1, 200], "0 <= index < 100"),
        ([0.5, 1.5], "give integers"),
        ([1], "at most that many"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            coin_flip(range(100), num_canaries=2, key=1, candidate_indices=pool)


@pytest.mark.parametrize("number", [0, -1, 101, 2.5, True])
def test_impossible_numbers_of_canaries(number: int) -> None:
    with pytest.raises(ConfigurationError, match="num_canaries"):
        coin_flip(range(100), num_canaries=number, key=0)


def test_scores_are_split_by_identifier() -> None:
    flip = CoinFlip([5, 3, 9], [True, False, True], dataset_size=10)
    scores = canary_scores([0.9, 0.5, 0.3], canary_indices=[9, 5, 3])
    inside, outside = flip.split_scores(scores)
    assert inside.tolist() == [0.5, 0.9]
    assert outside.tolist() == [0.3]


@pytest.mark.parametrize(
    ("ids", "message"), [([5, 3], "1 canaries have no score"), ([5, 3, 8], "1 scores are of no canary")]
)
def test_a_join_that_is_not_one_to_one_raises(ids: list[int], message: str) -> None:
    flip = CoinFlip([5, 3, 9], [True, False, True], dataset_size=10)
    with pytest.raises(ConfigurationError, match=message):
        flip.split_scores(canary_scores([0.0] * len(ids), canary_indices=ids))


def test_bare_scores_are_refused() -> None:
    flip = CoinFlip([5, 3], [True, False], dataset_size=10)
    with pytest.raises(InputTypeError, match="canary_scores"):
        flip.split_scores(np.zeros(2))  # type: ignore[arg-type]


def test_partitions_and_scores_are_immutable_and_survive_pickling() -> None:
    flip = coin_flip(range(50), num_canaries=10, key=3)
    with pytest.raises(ValueError, match="read-only"):
        flip.included[0] = True
    with pytest.raises(AttributeError, match="immutable"):
        flip.included = np.zeros(10, dtype=bool)
    copy = pickle.loads(pickle.dumps(flip))
    assert np.array_equal(copy.included, flip.included) and copy.dataset_size == 50
    values = np.array([1.0, 2.0])
    scores = CanaryScores(values, [0, 1])
    values[0] = 9.0
    assert scores.scores.tolist() == [1.0, 2.0] == np.asarray(scores).tolist()
    assert pickle.loads(pickle.dumps(scores)) == scores


@pytest.mark.parametrize(
    ("scores", "ids", "message"),
    [
        ([1.0, float("nan")], [0, 1], "1 of 2 scores are NaN"),
        ([[1.0, 2.0]], [0], "one-dimensional"),
        ([1.0], [0, 1], "one index per score"),
        ([1.0, 2.0], [0.0, 1.0], "integers"),
        ([1.0, 2.0], [4, 4], "repeat"),
    ],
)
def test_malformed_scores_are_named(scores: object, ids: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        canary_scores(scores, canary_indices=ids)


def test_coins_that_cannot_be_fair_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="100 of 100 coins are heads"):
        CoinFlip(range(100), [True] * 100, dataset_size=100)
    assert CoinFlip(range(10), [True] * 10, dataset_size=10).out_indices.size == 0
    with pytest.raises(ConfigurationError, match="probability"):
        CoinFlip(range(10), [True] * 10, dataset_size=10, probability=1.0)
