"""Calibration stability: unbiased under the null, where the bootstrap of the controls is not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy import stats

from memaudit.stats.stability import calibration_stability


def test_no_leak_looks_like_no_leak() -> None:
    """116 controls at 1 %: checked FPR and mean TPR stay at 1 %, where the peer's bootstrap reported 1.8 %."""
    rng = np.random.default_rng(0)
    checked, tpr, bootstrap = [], [], []
    for seed in range(300):
        members, controls = rng.standard_normal(30), rng.standard_normal(116)
        found = calibration_stability(members, controls, 0.01, resamples=40, seed=seed)
        assert found.checked_fpr is not None and found.tpr is not None
        checked.append(found.checked_fpr)
        tpr.append(found.tpr.mean)
        resampled = np.sort(rng.choice(controls, (40, 116)), axis=1)[:, -1]
        bootstrap.append(np.mean(members[None, :] > resampled[:, None]))
    spread = np.std(tpr) / np.sqrt(300)
    assert np.mean(checked) <= 0.01 + 4 * np.std(checked) / np.sqrt(300)
    assert np.mean(tpr) <= 0.01 + 4 * spread
    assert np.mean(bootstrap) > 0.012, "the biased way is biased, or this test shows nothing"


def test_exact_limits_hold_the_true_quantile() -> None:
    rng = np.random.default_rng(1)
    truth, missed = stats.norm.ppf(0.9), 0
    for seed in range(400):
        found = calibration_stability([0.0], rng.standard_normal(100), 0.1, resamples=1, seed=seed)
        missed += not found.threshold_low <= truth <= found.threshold_high
    assert missed <= int(stats.binom.ppf(0.999, 400, 0.05))


def test_too_few_controls_say_so() -> None:
    found = calibration_stability([1.0], [0.0] * 50, 0.01)
    assert not found.identified
    assert (found.threshold, found.tpr, found.checked_fpr, found.resamples) == (None, None, None, 0)
    assert (found.fpr_low, found.fpr_high) == (0.0, 1.0)


def test_it_is_seeded_and_its_record_is_plain() -> None:
    rng = np.random.default_rng(2)
    members, controls = rng.standard_normal(30) + 1, rng.standard_normal(400)
    found = calibration_stability(members, controls, 0.05, resamples=20, seed=3)
    assert found == calibration_stability(members, controls, 0.05, resamples=20, seed=3)
    assert json.loads(json.dumps(found.to_dict()))["n_calibration"] == 200
    assert found.tpr_low <= found.tpr_high
    assert found.tpr is not None and found.tpr.mean == pytest.approx(np.mean(members > 1.64), abs=0.15)
