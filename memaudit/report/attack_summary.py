"""The short account of one attack among several on the same signals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from memaudit.manifest import Manifest
from memaudit.report.groups import ScoreGroups
from memaudit.report.numbers import finite
from memaudit.report.schema.membership import AttackSummary
from memaudit.report.separation import area
from memaudit.stats.arrays import Floats
from memaudit.stats.roc import tpr_at_fpr


def summarize_attack(
    manifest: Manifest,
    scores: Mapping[str, float],
    *,
    is_headline: bool,
    target_fpr: float = 0.01,
    level: float = 0.95,
    refused: bool = False,
) -> AttackSummary:
    """Return the short account of one attack; its operating point is null where the headline is refused.

    Raises:
        ReportError: the scores' ids are not those of the manifest.
    """
    groups = ScoreGroups(manifest, scores)
    members, calibration = groups.members, groups.calibration
    found = tpr_at_fpr(members, calibration, target_fpr, level=level)
    shown = bool(members.size) and found.identified and not refused
    auc, auc_low, auc_high, reason = area(members, calibration, level)
    return AttackSummary(
        auc=auc,
        auc_ci_low=auc_low,
        auc_ci_high=auc_high,
        tpr_at_target_fpr=found.tpr if shown else None,
        ci_low=found.ci_low if shown else None,
        ci_high=found.ci_high if shown else None,
        n_detected=found.n_detected if shown else None,
        n_members=members.size,
        n_controls=calibration.size,
        n_unscored=len(groups.unscored().ids),
        threshold=finite(found.threshold.value),
        is_headline=is_headline,
        inverted=auc_high is not None and auc_high < 0.5,
        auc_by_repetition={
            f"{tier}x": area(groups.of_tier(tier), calibration, level)[0] for tier in groups.tiers()
        },
        member_mean=_mean(members),
        control_mean=_mean(calibration),
        reason=reason,
    )


def _mean(values: Floats) -> float | None:
    return finite(float(values.mean())) if values.size and np.isfinite(values).all() else None
