"""Multiple testing against scipy, statsmodels' worked definition, and simulated false-discovery rates."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from memaudit.errors import ConfigurationError
from memaudit.stats.multiple import benjamini_hochberg, combine_pvalues, holm
from memaudit.stats.thresholds import conformal_pvalues


def test_adjusted_pvalues_are_scipys() -> None:
    p = np.random.default_rng(0).random(50) ** 3
    assert benjamini_hochberg(p).adjusted == pytest.approx(stats.false_discovery_control(p, method="bh"))
    any_dependence = benjamini_hochberg(p, dependence="any").adjusted
    assert any_dependence == pytest.approx(stats.false_discovery_control(p, method="by"))


def test_rejections_follow_the_step_up_rule() -> None:
    p = np.array([0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205])
    found = benjamini_hochberg(p, 0.05)
    assert found.rejected.tolist() == [True, True, False, False, False, False, False, False]
    assert found.count == 2
    assert holm(p, 0.05).rejected.tolist() == [True, False] + [False] * 6


def test_false_discoveries_among_records_with_shared_controls() -> None:
    """200 records, 40 of them members, conformal p-values over the same 500 controls: mean FDP at most 10 %."""
    rng = np.random.default_rng(1)
    shares, found = [], []
    for _ in range(300):
        scores = rng.standard_normal(200)
        scores[:40] += 4
        rejected = benjamini_hochberg(conformal_pvalues(scores, rng.standard_normal(500)), 0.1).rejected
        shares.append(rejected[40:].sum() / max(1, rejected.sum()))
        found.append(rejected[:40].mean())
    assert np.mean(shares) <= 0.1 * 160 / 200 + 4 * np.std(shares) / np.sqrt(300)
    assert np.mean(found) > 0.5


def test_combined_pvalues_are_valid_for_equal_and_for_independent_ones() -> None:
    rng = np.random.default_rng(2)
    same = [combine_pvalues([p] * 7) for p in rng.random(4000)]
    mixed = [combine_pvalues(rng.random(7)) for _ in range(4000)]
    for values in (same, mixed):
        for level in (0.01, 0.05, 0.2):
            assert np.mean(np.array(values) <= level) <= level + 4 * np.sqrt(level / 4000)
    assert combine_pvalues([0.01, 0.4], "bonferroni") == 0.02


def test_nothing_and_nonsense() -> None:
    assert benjamini_hochberg([]).count == 0
    for bad in ([1.1], [-0.1], [float("nan")]):
        with pytest.raises(ConfigurationError):
            benjamini_hochberg(bad)
    with pytest.raises(ConfigurationError, match="at least one"):
        combine_pvalues([])
