"""The report's schema: pydantic models, version 2.0.0, and the JSON Schema that comes from them.

Names and meanings follow the published schema 1.3.0 where it has them. Differences that a reader must know:
``membership.tpr_at_1pct_fpr`` is the rate at 1 % whatever the target is (``tpr_at_target_fpr`` is the
headline), thresholds are strict, and ``execution`` is ``executed`` or ``not_run`` with the reason beside it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from memaudit.report.schema.base import Execution, JsonDict, Section
from memaudit.report.schema.context import (
    Assumption,
    AuditScope,
    CanaryInfo,
    CanaryRow,
    ComplianceAnnex,
    Limitations,
    ModelInfo,
    Privacy,
    Profile,
    Provenance,
    RealRecords,
    ReferenceInfo,
    ReleaseContext,
    Stability,
    ThreatModel,
)
from memaudit.report.schema.extraction import Extraction, NegativeControls, Regurgitation
from memaudit.report.schema.membership import AttackSummary, Membership

SCHEMA_VERSION: Literal["2.0.0"] = "2.0.0"

__all__ = ["SCHEMA_VERSION", "Execution", "Report", "json_schema"]


class Verdict(Section):
    """A verdict in plain words: the answer first, then what it rests on."""

    question: str
    answer: str
    detail: str
    level: Literal["clean", "leak", "unknown"]


class Verdicts(Section):
    """The two verdicts, always both."""

    membership: Verdict
    regurgitation: Verdict


class Report(Section):
    """Everything an audit found, and what it stands on.

    Example:
        >>> json_schema()["properties"]["schema_version"]["const"]
        '2.0.0'
    """

    schema_version: Literal["2.0.0"] = SCHEMA_VERSION
    tool: Literal["memaudit"] = "memaudit"
    tool_version: str
    created_at: str = Field(description="UTC, ISO 8601.")
    local_only: Literal[True] = True
    phone_home: Literal[False] = False
    verdicts: Verdicts
    audit_profile: Profile
    target_fpr: float
    step: int | None
    epoch: float | None
    seeds: JsonDict
    canary_manifest_hash: str
    model: ModelInfo
    adapter: JsonDict | None
    reference: ReferenceInfo
    release_context: ReleaseContext
    threat_model: list[ThreatModel]
    attack_coverage: JsonDict
    canaries: CanaryInfo
    audit_scope: AuditScope
    membership: Membership
    attacks: dict[str, AttackSummary]
    regurgitation: Regurgitation
    extraction: Extraction
    negative_controls: NegativeControls
    real_records: RealRecords
    privacy: Privacy
    stability: Stability | None = Field(description="Only with several seeds.")
    timeline: list[JsonDict]
    distributed: JsonDict
    forwards: JsonDict
    preflight: JsonDict | None
    assumptions: list[Assumption]
    recommendations: list[str]
    limitations: Limitations
    compliance_annex: ComplianceAnnex
    provenance: Provenance
    per_canary: list[CanaryRow]
    audit_seconds: float | None
    audit_warnings: list[str]
    non_finite: dict[str, str] = Field(
        description="Which numbers are null because they were not finite, and what they were."
    )
    report_sha256: str | None = Field(
        default=None, description="SHA-256 over the canonical JSON of everything else; stamped when written."
    )

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, under the field names of the schema."""
        return self.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a written report, with the tool's and the schema's version."""
    schema = Report.model_json_schema(by_alias=True, mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"memaudit report {SCHEMA_VERSION}"
    return schema
