"""How much the operating point would move with other controls.

Resampling the controls with replacement and taking the threshold again is biased: a resample never exceeds the
largest control and usually misses it, so thresholds come out too low and rates too high. Two things are reported
instead. (1) Exact: given n controls the false-positive rate follows a known Beta law, and the true quantile of the
controls lies between two order statistics with a known probability, whatever the distribution of scores.
(2) Repeated splitting without replacement: the threshold is set on one part by its own finite-sample rule and
checked on the rest, so the mean false-positive rate on the rest is at most the target; the parts are smaller than
the whole, and (when more than half is needed) overlap, which is why sizes are reported.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.seeds import generator
from memaudit.stats.arrays import Floats, as_scores, check_rate
from memaudit.stats.thresholds import above, allowed_above, conformal_threshold, controls_needed


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation, extremes and 5 % and 95 % points of a quantity over the splits."""

    mean: float
    std: float
    min: float
    max: float
    p05: float
    p95: float


@dataclass(frozen=True)
class CalibrationStability:
    """Stability of a conformal operating point; ``identified`` is False when there are too few controls.

    Attributes:
        fpr_low, fpr_high: exact 95 % range of the false-positive rate given these controls.
        threshold_low, threshold_high: order statistics that hold the true (1 - fpr) quantile with 95 %.
        tpr_low, tpr_high: share of members above those two.
        threshold, tpr: spread over the splits, None when a part cannot resolve the rate.
        checked_fpr: mean false-positive rate on the parts that did not set the threshold.
        n_calibration, n_check: sizes of the two parts.
    """

    fpr: float
    identified: bool
    method: str
    n_controls: int
    n_members: int
    resamples: int
    fpr_low: float
    fpr_high: float
    threshold_low: float
    threshold_high: float
    tpr_low: float
    tpr_high: float
    n_calibration: int
    n_check: int
    threshold: Spread | None
    tpr: Spread | None
    checked_fpr: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary for a report."""
        return asdict(self)


def calibration_stability(
    members: Any, controls: Any, fpr: float, resamples: int = 200, seed: int = 0
) -> CalibrationStability:
    """Describe how far the threshold, TPR and FPR could move with other controls.

    Args:
        members: scores of members, shape (n1,), n1 >= 1.
        controls: scores of non-members, shape (n0,).
        fpr: false-positive rate of the operating point.
        resamples: number of random splits.
        seed: root seed of the splits.

    Returns:
        A CalibrationStability.

    Raises:
        ConfigurationError: NaN scores, no member, a rate out of range, no split asked for.

    Example:
        >>> found = calibration_stability([300.0, 5.0], range(400), 0.05, resamples=50)
        >>> found.n_calibration, found.checked_fpr <= 0.07
        (200, True)
    """
    p = as_scores(members, "member scores", minimum=1)
    n = as_scores(controls, "control scores")
    rate = check_rate(fpr, "fpr")
    if resamples < 1:
        raise ConfigurationError(f"resamples is {resamples}; give at least 1")
    whole = conformal_threshold(n, rate)
    fpr_low, fpr_high = whole.fpr_interval() if whole.identified else (0.0, 1.0)
    low, high = _quantile_limits(np.sort(n), rate, 0.95)
    part = max(n.size // 2, controls_needed(rate))
    splits = _splits(p, n, rate, part, resamples, seed) if part < n.size else None
    return CalibrationStability(
        fpr=rate,
        identified=whole.identified,
        method="exact order statistics; repeated splits without replacement, threshold set on one part, "
        "checked on the other",
        n_controls=n.size,
        n_members=p.size,
        resamples=resamples if splits else 0,
        fpr_low=fpr_low,
        fpr_high=fpr_high,
        threshold_low=low,
        threshold_high=high,
        tpr_low=float(np.mean(p > high)),
        tpr_high=float(np.mean(p > low)),
        n_calibration=part if splits else 0,
        n_check=n.size - part if splits else 0,
        threshold=_spread(splits[0]) if splits else None,
        tpr=_spread(splits[1]) if splits else None,
        checked_fpr=float(splits[2].mean()) if splits else None,
    )


def _quantile_limits(ordered: Floats, fpr: float, level: float) -> tuple[float, float]:
    """Order statistics that hold the (1 - fpr) quantile with probability ``level``; infinite where n is too small."""
    n = ordered.size
    tail = (1.0 - level) / 2.0
    ranks = np.arange(1, n + 1)
    # P[k-th smallest <= quantile] = P[Bin(n, 1 - fpr) >= k].
    at_most = special.betainc(ranks, n - ranks + 1, 1.0 - fpr) if n else np.zeros(0)
    lower = np.nonzero(at_most >= 1.0 - tail)[0]
    upper = np.nonzero(at_most <= tail)[0]
    low = float(ordered[lower[-1]]) if lower.size else -math.inf
    high = float(ordered[upper[0]]) if upper.size else math.inf
    return low, high


def _splits(
    members: Floats, controls: Floats, fpr: float, part: int, resamples: int, seed: int
) -> tuple[Floats, Floats, Floats]:
    rng = generator(seed, "calibration-stability")
    thresholds, tprs, fprs = np.empty(resamples), np.empty(resamples), np.empty(resamples)
    assert allowed_above(part, fpr) >= 0
    for index in range(resamples):
        shuffled = rng.permutation(controls)
        threshold = conformal_threshold(shuffled[:part], fpr)
        thresholds[index] = threshold.value
        tprs[index] = above(members, threshold).mean()
        fprs[index] = above(shuffled[part:], threshold).mean()
    return thresholds, tprs, fprs


def _spread(values: Floats) -> Spread:
    p05, p95 = np.quantile(values, [0.05, 0.95], method="inverted_cdf")
    low, high = float(values.min()), float(values.max())
    if not math.isfinite(low) or not math.isfinite(high):
        # An infinite control has no mean or deviation to speak of; the order statistics still tell the story.
        return Spread(
            float(np.median(values)), math.inf if low < high else 0.0, low, high, float(p05), float(p95)
        )
    deviation = float(values.std(ddof=1)) if values.size > 1 else 0.0
    return Spread(float(values.mean()), deviation, low, high, float(p05), float(p95))
