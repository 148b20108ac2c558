"""Membership: can an attacker who sees log-probabilities tell which canaries were trained on?"""

from __future__ import annotations

from pydantic import Field

from memaudit.report.schema.base import Count, JsonDict, Rate, Section


class ScorerInfo(Section):
    """Which score was computed, and by which version of it."""

    name: str
    version: str


class CalibrationSet(Section):
    """Whose scores set the threshold: canaries that were not trained on, drawn as the members were."""

    rule: str = Field(description="Which canaries set the threshold, and why they may.")
    n: Count = Field(description="How many scores set the threshold.")
    n_never_inserted: Count = Field(description="Of them, controls that could never have been inserted.")
    n_coin_losers: Count = Field(description="Of them, candidates that their coin kept out.")
    n_excluded: Count = Field(
        default=0, description="Controls left out: drawn by a generator that no candidate was."
    )


class Tier(Section):
    """One repetition tier (or all of them, ``pooled``) at the pooled threshold."""

    n: Count
    detected: Count | None = Field(
        description="Null when the pooled threshold is not identified, or refused."
    )
    tpr: Rate | None
    ci_low: Rate | None
    ci_high: Rate | None
    auc: Rate | None = Field(
        default=None, description="Members of this tier against the calibration canaries."
    )
    auc_ci_low: Rate | None = None
    auc_ci_high: Rate | None = None
    threshold_identified: bool
    meaning: str


class Spread(Section):
    """Mean, standard deviation, extremes and 5 % and 95 % points of a quantity over random splits."""

    mean: float
    std: float
    min: float
    max: float
    p05: float
    p95: float


class CalibrationStability(Section):
    """How far threshold, TPR and FPR could move with other controls; apart from the members' own interval.

    The exact ranges come from order statistics; the spreads from splits without replacement, because a
    bootstrap of the largest controls is biased towards detection.
    """

    identified: bool
    method: str
    n_controls: Count
    n_members: Count
    resamples: Count
    fpr_low: Rate | None
    fpr_high: Rate | None
    threshold_low: float | None
    threshold_high: float | None = Field(
        description="Null where so few controls bound the quantile on one side only."
    )
    tpr_low: Rate | None
    tpr_high: Rate | None
    n_calibration: Count
    n_check: Count
    threshold: Spread | None
    tpr: Spread | None
    checked_fpr: Rate | None
    reason: str | None = None


class RocPoint(Section):
    """A point of the ROC, with the simultaneous band for the TPR at that FPR."""

    fpr: Rate
    tpr: Rate
    tpr_low: Rate
    tpr_high: Rate


class Unscored(Section):
    """Canaries whose score is not a number: counted and named, and in no denominator."""

    n_members: Count = 0
    n_held_out: Count = 0
    n_controls: Count = 0
    ids: list[str] = Field(default_factory=list)


class Exploratory(Section):
    """The strictest rate that the canaries at hand resolve; no headline, and no gate reads it."""

    fpr: Rate
    threshold: float | None
    n_detected: Count
    tpr: Rate | None
    ci_low: Rate | None
    ci_high: Rate | None
    note: str


class Membership(Section):
    """The membership verdict: TPR at a low FPR on inserted canaries, thresholded on canaries that stayed out.

    A score is detected when it is strictly above the threshold, which is an order statistic of the
    calibration
    scores: a canary that was not trained on is detected with probability at most ``fpr_guarantee``.
    """

    headline_attack: str
    predeclared_headline: bool = True
    scorer: ScorerInfo
    score_orientation: str = "higher = more member-like"
    headline_valid: bool
    headline_reason: str | None = Field(description="Why the headline is null; null when it is valid.")
    target_fpr: float
    tpr_at_target_fpr: Rate | None = Field(description="The headline: detection rate at target_fpr.")
    tpr_at_1pct_fpr: Rate | None = Field(
        description="The detection rate at 1 % FPR. The headline when target_fpr is 0.01; null when it is "
        "refused "
        "or when the canaries cannot resolve 1 %."
    )
    ci_low: Rate | None = Field(description="Clopper-Pearson limits of tpr_at_target_fpr.")
    ci_high: Rate | None
    ci_level: Rate
    ci_method: str = "Clopper-Pearson, exact, given the threshold"
    detection_claim: str
    detection_rule: str = "(1 + number of calibration scores >= s)/(n + 1) <= target_fpr; a tie never detects"
    threshold: float | None = Field(description="Detected is strictly above it.")
    threshold_identified: bool
    fpr_guarantee: Rate | None = Field(
        description="Exact mean false-positive rate at the threshold, never above target_fpr; null if "
        "unidentified."
    )
    achievable_fpr: Rate | None = Field(
        description="The smallest rate that so many controls resolve: 1/(n + 1)."
    )
    min_controls_required: Count
    calibration: CalibrationSet
    n_members: Count = Field(description="Inserted canaries with a score.")
    n_controls: Count = Field(
        description="Canaries that set the threshold: held-out candidates and controls."
    )
    n_detected: Count | None
    n_members_planted: Count
    unscored: Unscored
    auc: Rate | None = Field(description="Secondary: average case, not the headline.")
    auc_ci_low: Rate | None
    auc_ci_high: Rate | None
    auc_method: str = "DeLong on the logit scale; disjoint pairs where its variance is 0"
    auc_reason: str | None = None
    inverted: bool = Field(description="AUC clearly below 0.5: leakage too, with the score's sign turned.")
    roc: list[RocPoint]
    roc_band: str = "simultaneous 95 % band (Dvoretzky-Kiefer-Wolfowitz, half of the error on each axis)"
    by_repetition: dict[str, Tier]
    calibration_stability: CalibrationStability | None
    randomization: JsonDict | None = Field(
        description="Do the scores depend on the coins? Exact under the design; null with "
        "randomization_reason."
    )
    randomization_reason: str | None = None
    exploratory: Exploratory | None
    warnings: list[str]


class AttackSummary(Section):
    """One further attack on the same signals; descriptive, because nothing corrects for choosing the best."""

    auc: Rate | None
    auc_ci_low: Rate | None
    auc_ci_high: Rate | None
    tpr_at_target_fpr: Rate | None
    ci_low: Rate | None
    ci_high: Rate | None
    n_detected: Count | None
    n_members: Count
    n_controls: Count
    n_unscored: Count
    threshold: float | None
    is_headline: bool
    inverted: bool
    auc_by_repetition: dict[str, float | None] = Field(default_factory=dict)
    member_mean: float | None
    control_mean: float | None
    reason: str | None = None
