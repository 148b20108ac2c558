"""Properties that hold for every input, by hypothesis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from memaudit.errors import ConfigurationError
from memaudit.privacy.estimate import make_estimate
from memaudit.stats.gdp import gdp_epsilon
from memaudit.stats.guesses import guess, preregistered_pairs, ranking
from memaudit.stats.one_run import (
    mahloujifar_mu,
    steinke_delta,
    steinke_epsilon,
    xiang_delta,
    xiang_epsilon,
    xiang_mu,
)
from memaudit.stats.roc import auc, delong_interval, tpr_at_fpr

COUNTS = st.integers(1, 300).flatmap(
    lambda m: st.integers(1, m).flatmap(lambda r: st.tuples(st.just(m), st.just(r), st.integers(0, r)))
)
DELTAS = st.one_of(st.just(0.0), st.floats(1e-12, 0.5))
ALPHAS = st.floats(0.001, 0.4)


@settings(deadline=None)
@given(COUNTS, DELTAS, ALPHAS)
def test_one_more_correct_guess_never_lowers_a_bound(
    counts: tuple[int, int, int], delta: float, alpha: float
) -> None:
    m, r, v = counts
    if v < r:
        assert steinke_epsilon(m, r, v + 1, delta, alpha) >= steinke_epsilon(m, r, v, delta, alpha) - 1e-9
        assert mahloujifar_mu(m, r, v + 1, alpha) >= mahloujifar_mu(m, r, v, alpha) - 1e-9
        assert xiang_epsilon(m, m, m - v - 1, delta, alpha) >= xiang_epsilon(m, m, m - v, delta, alpha) - 1e-9
        assert xiang_mu(m, m, m - v - 1, alpha) >= xiang_mu(m, m, m - v, alpha) - 1e-9
    # A further guess that is right, in place of an abstention.
    if r < m:
        assert steinke_epsilon(m, r + 1, v + 1, 0.0, alpha) >= steinke_epsilon(m, r, v, 0.0, alpha) - 1e-9


@settings(deadline=None)
@given(COUNTS, st.floats(0.0, 1.0), ALPHAS)
def test_delta_and_epsilon_invert_each_other(
    counts: tuple[int, int, int], share: float, alpha: float
) -> None:
    """From any epsilon below the bound to the largest delta there, and back."""
    m, r, v = counts
    epsilon = share * steinke_epsilon(m, r, v, 0.0, alpha)
    delta = steinke_delta(m, r, v, epsilon, alpha)
    if delta > 0:
        assert steinke_epsilon(m, r, v, delta, alpha) == pytest.approx(epsilon, abs=1e-8)
    model = share * xiang_epsilon(m, m, m - v, 0.0, alpha)
    leak = xiang_delta(m, m, m - v, model, alpha)
    if leak > 0:
        assert xiang_epsilon(m, m, m - v, leak, alpha) == pytest.approx(model, abs=1e-8)


@settings(deadline=None)
@given(COUNTS, DELTAS, ALPHAS)
def test_no_bound_is_nan_negative_or_infinite(
    counts: tuple[int, int, int], delta: float, alpha: float
) -> None:
    m, r, v = counts
    values = [
        steinke_epsilon(m, r, v, delta, alpha),
        mahloujifar_mu(m, r, v, alpha),
        xiang_mu(m, r, r - v, alpha),
        xiang_epsilon(m, r, r - v, delta, alpha),
    ]
    if delta > 0:
        values.append(gdp_epsilon(values[1], delta))
    assert all(math.isfinite(value) and value >= 0 for value in values)


@st.composite
def audits(draw: Any) -> tuple[Any, Any]:
    m = draw(st.integers(1, 60))
    scores = draw(hnp.arrays(np.float64, m, elements=st.floats(-1e308, 1e308)))
    return scores, draw(hnp.arrays(np.bool_, m))


def _bounds(scores: Any, coins: Any, ids: Any) -> list[float]:
    estimate = make_estimate(scores, coins, ids)
    return [
        float(estimate.epsilon_at(delta=0.0)),
        float(estimate.epsilon_at(delta=1e-3)),
        float(estimate.gdp().epsilon_at(delta=1e-3)),
        float(estimate.epsilon_at(delta=1e-3, method="xiang")),
        float(estimate.beta_at(alpha=0.1)),
    ]


@settings(max_examples=60, deadline=None)
@given(audits(), st.randoms(use_true_random=False))
def test_order_of_records_and_monotone_transforms_change_nothing(audit: tuple[Any, Any], random: Any) -> None:
    scores, coins = audit
    ids = np.arange(scores.size)
    before = _bounds(scores, coins, ids)
    assert not any(math.isnan(value) for value in before)
    shuffled = list(range(scores.size))
    random.shuffle(shuffled)
    assert _bounds(scores[shuffled], coins[shuffled], ids[shuffled]) == before
    ranks = np.unique(scores, return_inverse=True)[1].astype(float)
    assert _bounds(np.exp(ranks / 10), coins, ids) == before


@settings(max_examples=60, deadline=None)
@given(audits())
def test_attack_metrics_are_finite_or_refused(audit: tuple[Any, Any]) -> None:
    scores, coins = audit
    estimate = make_estimate(scores, coins)
    if not 0 < coins.sum() < coins.size:
        with pytest.raises(ConfigurationError, match="needs both"):
            estimate.attack_auc()
        return
    members, others = scores[coins], scores[~coins]
    low, high = delong_interval(members, others)
    assert 0 <= low <= auc(members, others) <= high <= 1
    beta = np.asarray(estimate.attack_beta_at(alpha=np.linspace(0, 1, 11)))
    assert ((beta >= -1e-12) & (beta <= 1)).all() and (np.diff(beta) <= 1e-12).all()
    assert 0 <= tpr_at_fpr(members, others, 0.1).tpr <= 1


@settings(deadline=None)
@given(audits())
def test_guesses_do_not_look_at_the_coins(audit: tuple[Any, Any]) -> None:
    scores, coins = audit
    order = ranking(scores, np.arange(scores.size))
    for pair in preregistered_pairs(scores.size):
        right, wrong = guess(order, coins, pair), guess(order, ~coins, pair)
        assert right.correct + wrong.correct == right.made == sum(pair)
