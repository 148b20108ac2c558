"""What surrounds the verdicts: the canaries, the model, the release, where the numbers come from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from memaudit.report.schema.base import Count, Execution, JsonDict, OpenSection, Rate, Section

ReleaseName = Literal["public-api", "internal", "open-weights", "unspecified"]
Profile = Literal["smoke", "routine", "powered", "custom"]


class ModelInfo(OpenSection):
    """The audited model: class, name or path, whether adapters are on it, and what else the caller knows."""

    class_: str | None = Field(default=None, alias="class")
    name_or_path: str | None = None
    peft: bool | None = None


class ReferenceInfo(OpenSection):
    """What the scores are calibrated against: ``disable_adapter``, ``step0``, ``checkpoint`` or ``none``."""

    mode: str
    identity: str | None = None
    note: str | None = None


class ReleaseContext(Section):
    """How the model will be exposed (EDPB Opinion 28/2024, paragraph 46): declared, never inferred."""

    edpb_ref: str = "EDPB Opinion 28/2024, paragraph 46"
    declared: ReleaseName
    declared_by: Literal["user", "nobody"]
    implied_attack_surface: str


class CanaryInfo(Section):
    """How the canaries were drawn and split."""

    requested_family: str
    actual_generator: str = Field(description="What really drew the tokens; several are joined by '+'.")
    generators: dict[str, Count]
    n: Count
    n_candidates: Count
    n_members: Count
    n_held_out: Count
    n_controls: Count = Field(description="Never inserted, whatever the coins.")
    include_prob: Rate
    repetitions: list[int]
    secret_tokens_min: Count | None
    secret_tokens_max: Count | None
    secret_tokens_mean: float | None
    token_share: float | None = Field(description="The canaries' share of all training tokens, where known.")
    tokenizer: str


class RealRecords(OpenSection):
    """A sample of the user's own records: descriptive, no FPR, no evidence about any individual record."""

    execution: Execution
    reason: str | None = None
    sample_seed: int | None = None
    n_train_sampled: Count | None = None
    n_comparison_split: Count | None = None
    comparison_population: str | None = None
    exact_dup_rate: Rate | None = Field(
        default=None, description="Null when no text could be read, never 0 then."
    )
    set_level: JsonValue = None
    ranked: list[JsonDict] = Field(default_factory=list)
    redacted: bool = True


class SeedTpr(Section):
    """The operating point under one seed of the audit procedure."""

    seed: int
    tpr: Rate | None
    threshold: float | None


class StabilityVariance(Section):
    """TPR over the seeds."""

    tpr_mean: Rate | None
    tpr_min: Rate | None
    tpr_max: Rate | None
    tpr_std: float | None
    per_seed: list[SeedTpr]


class Stability(Section):
    """Several seeds of the audit procedure: the model is trained once, so training variance is not in it."""

    label: str = "audit-procedure variance, not training variance"
    seeds: list[int]
    varies: str
    variance: StabilityVariance
    reason: str | None = None


class Privacy(Section):
    """Lower bounds on epsilon, each with what it assumes; a bound near 0 is no evidence of privacy."""

    execution: Execution
    reason: str | None = None
    result: JsonDict | None = None


class Limitations(Section):
    """What the report does not say."""

    statement: str
    items: list[str]


class Assumption(Section):
    """An assumption, which numbers stand on it, and whether the run's own data support it."""

    name: str
    statement: str
    concerns: list[str]
    status: Literal["by_design", "checked", "assumed", "violated"]


class AttackCoverage(Section):
    """One attack class of paragraph 55 and whether this audit covers it."""

    attack: str
    edpb_ref: str
    in_scope: bool
    status: str
    method: str | None
    result: str | None = None


class ThreatModel(Section):
    """Whom a verdict is about: access, knowledge and assumptions (paragraph 58(c))."""

    subject: str
    attacker_access: str
    assumptions: str
    source: str


class ComplianceAnnex(Section):
    """Test evidence along EDPB Opinion 28/2024, paragraphs 46, 55 and 58. No legal determination."""

    disclaimer: str
    edpb_refs: dict[str, str]
    attack_coverage: list[AttackCoverage]
    threat_models: list[ThreatModel]
    test_scope: JsonDict
    quantified_results: list[str]
    release_context: ReleaseContext
    limitations: str


class Provenance(Section):
    """Where the numbers come from: hashes, resolved configuration and versions. The report is unsigned."""

    manifest_hash: str
    canary_manifest_sha256: str
    canary_set_sha256: str | None
    dataset_fingerprint: str | None
    model_fingerprint: str | None
    adapter_fingerprint: str | None
    tokenizer: JsonDict
    resolved_config: JsonDict
    environment: JsonDict
    n_canaries: Count
    fmt: str
    n_host_rows: int | None
    n_inserted_rows: int
    local_only: bool = True
    signing: str = "content integrity only: report_sha256 proves that nothing changed, not who wrote it"


class CanaryRow(Section):
    """One canary by its id and the hash of its secret."""

    id: str
    role: Literal["candidate", "control"]
    group: Literal["member", "held_out", "control"]
    included: bool
    repetitions: Count
    family: str
    generator: str
    n_tokens: Count
    secret_sha256: str = Field(description="The first 16 hexadecimal digits of the secret's SHA-256.")
    scores: dict[str, float | None]
    p_value: Rate | None = Field(
        description="Conformal p-value against the calibration canaries; null in that set."
    )
    detected: bool | None
    regurgitated: bool | None = None
    extraction: JsonDict | None = None


class AuditScope(Section):
    """How much was tested."""

    n_members: Count
    n_held_out: Count
    n_controls: Count
    repetitions: list[int]
    step: int | None
    epoch: float | None
    n_audits: Count
    summary: str
