"""The membership verdict, from a manifest and a score per canary. No label chooses what it later judges.

Which canaries set the threshold. Members, held-out candidates and never-inserted controls come from one
generator and differ in nothing but the coin or the role, both fixed before training. So a held-out candidate and
a control are equally good draws of "not trained on": both set the threshold, steadier than from either alone,
and both counts are stated. The coin's own two groups are kept apart for what needs the coin: the randomisation test
here, the bounds on epsilon in ``memaudit.privacy``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from memaudit.manifest import Manifest
from memaudit.report.groups import ScoreGroups, some_of
from memaudit.report.numbers import finite, percent
from memaudit.report.schema.membership import (
    Exploratory,
    Membership,
    ScorerInfo,
    Tier,
)
from memaudit.report.separation import area, coins_test, roc, stability
from memaudit.stats.arrays import Floats
from memaudit.stats.intervals import clopper_pearson
from memaudit.stats.roc import tpr_at_fpr
from memaudit.stats.thresholds import Threshold, above, conformal_threshold

MAX_UNSCORED_SHARE = 0.05
"""Above this share of members or of calibration canaries without a score the headline is refused."""


def membership(
    manifest: Manifest,
    scores: Mapping[str, float],
    *,
    headline_attack: str,
    target_fpr: float = 0.01,
    level: float = 0.95,
    profile: str = "custom",
    scorer_version: str = "1",
    seed: int = 0,
) -> Membership:
    """Return the membership verdict.

    Args:
        manifest: what was planted, held out and kept as a control.
        scores: canary id to score, higher = more member-like, one for every canary of the manifest; NaN
        where a
            canary could not be scored (it is counted and named), infinities are ordered as numbers are.
        headline_attack: name of the attack that gave the scores, chosen before they were seen.
        target_fpr: false-positive rate of the headline, strictly between 0 and 1.
        level: confidence of the intervals.
        profile: ``smoke`` refuses the headline.
        scorer_version: version of the attack's definition.
        seed: root seed of the splits and of the redrawn coins.

    Returns:
        A Membership; its headline is None with a reason where it would not be honest.

    Raises:
        ReportError: the scores' ids are not those of the manifest.
        ConfigurationError: a rate out of range.

    Example:
        >>> from memaudit.report.examples import example_manifest, example_scores
        >>> manifest = example_manifest(n=40, n_controls=100)
        >>> found = membership(manifest, example_scores(manifest), headline_attack="min_k_plus_plus")
        >>> found.headline_valid, found.n_controls >= 100, found.threshold_identified
        (True, True, True)
    """
    groups = ScoreGroups(manifest, scores)
    members, calibration = groups.members, groups.calibration
    threshold = conformal_threshold(calibration, target_fpr)
    needed = math.ceil(1.0 / target_fpr - 1e-9)
    refusal = _refusal(groups, threshold, profile, needed, target_fpr)
    valid = refusal is None
    hits = int(above(members, threshold).sum())
    low, high = clopper_pearson(hits, members.size, level) if members.size else (None, None)
    auc, auc_low, auc_high, auc_reason = area(members, calibration, level)
    inverted = auc_high is not None and auc_high < 0.5
    randomization, randomization_reason = coins_test(manifest, groups, seed)
    identified = threshold.identified
    return Membership(
        headline_attack=headline_attack,
        scorer=ScorerInfo(name=headline_attack, version=scorer_version),
        headline_valid=valid,
        headline_reason=refusal,
        target_fpr=target_fpr,
        tpr_at_target_fpr=hits / members.size if valid else None,
        tpr_at_1pct_fpr=_at_one_percent(members, calibration, refusal, profile),
        ci_low=low if valid else None,
        ci_high=high if valid else None,
        ci_level=level,
        detection_claim=_claim(refusal, hits, members.size, low, high, threshold, level),
        threshold=finite(threshold.value),
        threshold_identified=identified,
        fpr_guarantee=threshold.expected_fpr if identified else None,
        achievable_fpr=threshold.resolvable_fpr,
        min_controls_required=needed,
        calibration=groups.info(),
        n_members=members.size,
        n_controls=calibration.size,
        n_detected=hits if valid else None,
        n_members_planted=len(manifest.members),
        unscored=groups.unscored(),
        auc=auc,
        auc_ci_low=auc_low,
        auc_ci_high=auc_high,
        auc_reason=auc_reason,
        inverted=inverted,
        roc=roc(members, calibration),
        by_repetition=_tiers(manifest, groups, threshold, valid, level),
        calibration_stability=stability(members, calibration, target_fpr, seed),
        randomization=randomization,
        randomization_reason=randomization_reason,
        exploratory=None if valid else _exploratory(members, calibration, level),
        warnings=_warnings(groups, auc, inverted),
    )


def _refusal(groups: ScoreGroups, threshold: Threshold, profile: str, needed: int, fpr: float) -> str | None:
    """Why the headline would not be honest; None where it is."""
    lost, n = groups.unscored(), groups.calibration.size
    not_scored = lost.n_held_out + lost.n_controls
    if groups.members.size == 0:
        return (
            f"no inserted canary has a score ({len(groups.manifest.members)} were inserted); "
            "insert some and audit again"
        )
    if profile == "smoke":
        return (
            "audit_profile smoke refuses the headline: it tries the machinery; audit with routine or powered"
        )
    if n < needed or not threshold.identified:
        return (
            f"underpowered: {n} canaries that were not trained on cannot support a {percent(fpr)} "
            "false-positive "
            f"rate; at least {needed} are required"
        )
    for what, share in (
        ("members", lost.n_members / max(1, lost.n_members + groups.members.size)),
        ("canaries that set the threshold", not_scored / max(1, n + not_scored)),
    ):
        if share > MAX_UNSCORED_SHARE:
            return (
                f"{percent(share)} of the {what} have no score (not a number), more than "
                f"{percent(MAX_UNSCORED_SHARE)}: what is left may not be representative; find the cause and "
                "rescore"
            )
    return None


def _claim(
    refusal: str | None,
    hits: int,
    n: int,
    low: float | None,
    high: float | None,
    threshold: Threshold,
    level: float,
) -> str:
    if refusal is not None or low is None or high is None:
        return f"no claim: {refusal}"
    return (
        f"{hits} of {n} inserted canaries detected, TPR {hits / n:.3g} "
        f"({percent(level)} interval {low:.3g} to {high:.3g}) at a false-positive rate of at most "
        f"{percent(threshold.fpr)} (mean {percent(threshold.expected_fpr)} from {threshold.n_controls} "
        "canaries "
        "that were not trained on)"
    )


def _at_one_percent(
    members: Floats,
    calibration: Floats,
    refusal: str | None,
    profile: str,
) -> float | None:
    if members.size == 0 or calibration.size < 100 or profile == "smoke":
        return None
    # Too few canaries for a stricter target do not spoil the rate at 1 %; every other refusal does.
    if refusal is not None and not refusal.startswith("underpowered"):
        return None
    return tpr_at_fpr(members, calibration, 0.01).tpr


def _tiers(
    manifest: Manifest, groups: ScoreGroups, threshold: Threshold, valid: bool, level: float
) -> dict[str, Tier]:
    meaning = {1: "single exposure: the closest to an ordinary record seen once"}
    tiers = {
        f"{tier}x": _tier(
            groups.of_tier(tier),
            groups.calibration,
            threshold,
            valid,
            level,
            meaning.get(tier, f"exposure stress: each canary of this tier was inserted {tier} times"),
        )
        for tier in groups.tiers()
    }
    pooled = "all inserted canaries: the headline; its mix of repetitions is the design's, not your data's"
    tiers["pooled"] = _tier(groups.members, groups.calibration, threshold, valid, level, pooled)
    return tiers


def _tier(
    members: Floats,
    calibration: Floats,
    threshold: Threshold,
    valid: bool,
    level: float,
    meaning: str,
) -> Tier:
    n = members.size
    hits = int(above(members, threshold).sum()) if valid else None
    low, high = clopper_pearson(hits, n, level) if hits is not None and n else (None, None)
    auc, auc_low, auc_high, _ = area(members, calibration, level)
    return Tier(
        n=n,
        detected=hits,
        tpr=hits / n if hits is not None and n else None,
        ci_low=low,
        ci_high=high,
        auc=auc,
        auc_ci_low=auc_low,
        auc_ci_high=auc_high,
        threshold_identified=threshold.identified,
        meaning=meaning,
    )


def _exploratory(
    members: Floats,
    calibration: Floats,
    level: float,
) -> Exploratory | None:
    if members.size == 0 or calibration.size == 0:
        return None
    # At 1/(n + 1) a score is detected when it is above every calibration score.
    top = float(calibration.max())
    hits = int((members > top).sum())
    low, high = clopper_pearson(hits, members.size, level)
    return Exploratory(
        fpr=1.0 / (calibration.size + 1),
        threshold=finite(top),
        n_detected=hits,
        tpr=hits / members.size,
        ci_low=low,
        ci_high=high,
        note="above every canary that was not trained on: the strictest rate at hand, not the declared one",
    )


def _warnings(groups: ScoreGroups, auc: float | None, inverted: bool) -> list[str]:
    warnings: list[str] = []
    lost = groups.unscored()
    if lost.ids:
        warnings.append(
            f"{len(lost.ids)} of {len(groups.score)} canaries have no score (not a number), in no denominator: "
            f"{some_of(lost.ids, 20)}; "
            "look for masked vocabulary entries, overflow in half precision or empty secrets"
        )
    if groups.excluded:
        warnings.append(
            f"{groups.excluded} controls were drawn by another generator than every candidate and set no "
            "threshold; "
            "draw controls and candidates alike"
        )
    if inverted and auc is not None:
        warnings.append(
            f"AUC {auc:.3g} is clearly below 0.5: members and non-members are told apart with the score's "
            "sign "
            f"turned (AUC {1 - auc:.3g}); this is leakage too, or the score's orientation is wrong"
        )
    if groups.calibration.size and np.unique(groups.calibration).size == 1 and groups.calibration.size > 1:
        warnings.append("every calibration score is the same: the score carries no information")
    return warnings
