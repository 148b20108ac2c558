"""Regurgitation and extraction: does the model emit canaries when it is given their beginning?"""

from __future__ import annotations

from pydantic import Field

from memaudit.report.schema.base import Count, Execution, JsonDict, Proportion, Rate, Section


class RegurgitationRate(Proportion):
    """How many inserted canaries are completed by any rule, and by each rule.

    Count and rate are null while the near-verbatim verdict of a canary is open: what is known then is ``exact``.
    """

    exact: Count | None = None
    n_open: Count = Field(default=0, description="Canaries without a near-verbatim verdict.")
    near: Count | None = Field(default=None, description="By BLEU or edit distance alone.")
    meaning: str | None = None


class DetectedRegurgitation(Section):
    """Exact matches, with wording that stays inside the protocol."""

    n: Count
    n_detected: Count | None
    rate: Rate | None
    ci_low: Rate | None = None
    ci_high: Rate | None = None
    wording: str


class Regurgitation(Section):
    """The regurgitation verdict on inserted canaries. Where it was not run every number is null, never 0."""

    execution: Execution
    reason: str | None = None
    prefix_policy: str | None = None
    decoding: str | None = None
    match_rule: str | None = None
    prefix_fractions: list[float] = Field(default_factory=list)
    thresholds: dict[str, float] = Field(default_factory=dict)
    detected: DetectedRegurgitation
    overall: RegurgitationRate
    by_tier: dict[str, RegurgitationRate]
    by_prefix: dict[str, Proportion] = Field(
        default={}, description="Exact matches by the fraction of the secret given as the prefix."
    )
    near_verbatim: Execution = "not_run"
    near_verbatim_reason: str | None = None
    note: str | None = None


class ExtractionCurve(Section):
    """Share of inserted canaries that n samples emit with probability at least p, over n."""

    scheme: str
    prefix: str
    p: Rate
    n: list[float]
    members: list[float]
    controls: list[float]


class Extraction(Section):
    """Probabilistic extraction (Hayes et al. 2024) from the scoring forward's own log-probabilities."""

    execution: Execution
    reason: str | None = None
    curves: list[ExtractionCurve] = Field(default_factory=list)
    summary: JsonDict = Field(default_factory=dict)
    note: str | None = None


class NegativeControls(Section):
    """Canaries that were never inserted: what the same attacks say where nothing can be remembered."""

    n: Count
    mean_headline_score: float | None
    mean_member_score: float | None = None
    regurgitation: Execution
    regurgitation_reason: str | None = None
    regurgitation_rate: Rate | None = Field(
        description="By every rule; null while near-verbatim verdicts are open."
    )
    n_regurgitated: Count | None = None
    ci_low: Rate | None = None
    ci_high: Rate | None = None
    exact: Proportion | None = Field(default=None, description="Exact matches alone.")
    note: str | None = None
