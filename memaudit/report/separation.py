"""How well scores tell members from non-members: AUC, ROC, the coins' test, the threshold's steadiness."""

from __future__ import annotations

import math

import numpy as np

from memaudit.manifest import Manifest
from memaudit.report.groups import ScoreGroups
from memaudit.report.numbers import finite, jsonable, percent
from memaudit.report.schema.base import JsonDict
from memaudit.report.schema.membership import CalibrationStability, RocPoint, Spread
from memaudit.stats.arrays import Floats
from memaudit.stats.randomization import randomization_test
from memaudit.stats.roc import auc, delong_interval, roc_band
from memaudit.stats.stability import Spread as SplitSpread
from memaudit.stats.stability import calibration_stability

ROC_POINTS = 400
"""Most points of the ROC that a report keeps, half of them dense at low rates; the ends always stay."""


def area(
    members: Floats,
    calibration: Floats,
    level: float,
) -> tuple[float | None, float | None, float | None, str | None]:
    """Return the AUC with DeLong's limits, or why there is none."""
    if members.size == 0 or calibration.size == 0:
        return None, None, None, "no score on one of the two sides"
    low, high = delong_interval(members, calibration, level)
    return auc(members, calibration), low, high, None


def roc(
    members: Floats,
    calibration: Floats,
) -> list[RocPoint]:
    """Return the ROC's points with their simultaneous band; none where a side has no score."""
    if members.size == 0 or calibration.size == 0:
        return []
    band = roc_band(members, calibration)
    n = band.fpr.size
    kept = np.arange(n)
    if n > ROC_POINTS:
        even, dense = np.linspace(0, n - 1, ROC_POINTS // 2), np.geomspace(1, n, ROC_POINTS // 2) - 1
        kept = np.unique(np.concatenate([even, dense]).round().astype(int))
    return [
        RocPoint(
            fpr=float(band.fpr[i]),
            tpr=float(band.tpr[i]),
            tpr_low=float(band.tpr_low[i]),
            tpr_high=float(band.tpr_high[i]),
        )
        for i in kept
    ]


def stability(
    members: Floats,
    calibration: Floats,
    fpr: float,
    seed: int,
) -> CalibrationStability | None:
    """Return how far the operating point could move with other controls; None where a side has no score."""
    if members.size == 0 or calibration.size == 0:
        return None
    found = calibration_stability(members, calibration, fpr, seed=seed)
    reason = None
    if found.threshold is None:
        reason = f"{found.n_controls} calibration canaries cannot be split and still resolve {percent(fpr)}"
    return CalibrationStability(
        identified=found.identified,
        method=found.method,
        n_controls=found.n_controls,
        n_members=found.n_members,
        resamples=found.resamples,
        fpr_low=finite(found.fpr_low),
        fpr_high=finite(found.fpr_high),
        threshold_low=finite(found.threshold_low),
        threshold_high=finite(found.threshold_high),
        tpr_low=finite(found.tpr_low),
        tpr_high=finite(found.tpr_high),
        n_calibration=found.n_calibration,
        n_check=found.n_check,
        threshold=_spread(found.threshold),
        tpr=_spread(found.tpr),
        checked_fpr=finite(found.checked_fpr),
        reason=reason,
    )


def _spread(spread: SplitSpread | None) -> Spread | None:
    if spread is None:
        return None
    values = {name: getattr(spread, name) for name in ("mean", "std", "min", "max", "p05", "p95")}
    return Spread(**values) if all(math.isfinite(value) for value in values.values()) else None


def coins_test(manifest: Manifest, groups: ScoreGroups, seed: int) -> tuple[JsonDict | None, str | None]:
    """Do the scores depend on the coins? Over members and coin losers alone, by redrawing fair coins."""
    if manifest.include_prob != 0.5:
        return None, f"the coins were not fair (include_prob {manifest.include_prob:g})"
    if not groups.members.size or not groups.coin_losers.size:
        return None, "one of the coin's two groups has no score"
    both = np.concatenate([groups.members, groups.coin_losers])
    coins = np.arange(both.size) < groups.members.size
    draws = int(min(9999, max(999, 2e8 // both.size)))  # a few seconds at most
    found = randomization_test(both, coins, draws=draws, seed=seed)
    result: JsonDict = jsonable(found.to_dict(), {})
    return result, None
