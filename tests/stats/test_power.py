"""The power calculator against simulated audits and against the bounds it speaks about."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.one_run import steinke_epsilon
from memaudit.stats.power import (
    audit_power,
    canaries_for_ceiling,
    canaries_for_detection,
    ceiling,
    critical_correct,
    operating_point,
)


@pytest.mark.parametrize("m", [5, 10, 101, 1000])
@pytest.mark.parametrize("delta", [0.0, 1e-4])
def test_the_critical_count_is_the_first_with_a_bound(m: int, delta: float) -> None:
    found = critical_correct(m, 0.05, delta)
    assert steinke_epsilon(m, m, found, delta) > 0
    assert steinke_epsilon(m, m, found - 1, delta) == 0


def test_four_canaries_can_show_nothing() -> None:
    found = audit_power(4)
    assert (found.critical_correct, found.detectable_epsilon, found.detectable_mu) == (5, None, None)
    assert found.ceiling == 0.0


def test_the_stated_power_is_met_in_simulation() -> None:
    found = audit_power(400, 0.05, power=0.8)
    assert found.detectable_epsilon is not None
    rng = np.random.default_rng(0)
    correct = rng.binomial(400, 1 / (1 + math.exp(-found.detectable_epsilon)), 4000)
    share = np.mean([steinke_epsilon(400, 400, int(v)) > 0 for v in correct])
    assert share == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 4000))
    assert found.detectable_mu is not None and found.detectable_auc is not None
    assert stats.norm.cdf(found.detectable_mu / 2) == pytest.approx(found.detectable_accuracy)
    assert found.plan_detectable_epsilon is not None
    assert found.plan_detectable_epsilon > found.detectable_epsilon


def test_needed_canaries_suffice_and_fewer_do_not() -> None:
    n = canaries_for_detection(0.5)
    q = 1 / (1 + math.exp(-0.5))
    assert stats.binom.sf(critical_correct(n) - 1, n, q) >= 0.8
    assert stats.binom.sf(critical_correct(n // 2) - 1, n // 2, q) < 0.8
    m = canaries_for_ceiling(2.0, delta=1e-5)
    assert ceiling(m, 0.05, 1e-5) >= 2.0 > ceiling(m - 1, 0.05, 1e-5)


def test_operating_points_name_what_is_missing() -> None:
    point = operating_point(0.01, 50, 16)
    assert not point.resolvable and point.controls_needed == 99
    assert point.tpr_low_if_all_detected == pytest.approx(0.025 ** (1 / 16))


def test_impossible_questions_are_refused() -> None:
    for bad in (0, -3, 2.5):
        with pytest.raises(ConfigurationError):
            audit_power(bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="above 0"):
        canaries_for_detection(0.0)
