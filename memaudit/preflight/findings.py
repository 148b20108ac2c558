"""What a pre-flight found: findings with a code, a severity and advice, and the counts of the survival scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from memaudit.errors import PreflightError

Severity = Literal["error", "warning", "info"]

ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found.

    An error would make the audit measure nothing, and stops training; a warning goes into the report.
    ``canaries`` are ids, never secrets.
    """

    code: str
    severity: Severity
    message: str
    advice: str
    canaries: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.severity} {self.code}: {self.message}; {self.advice}"


@dataclass(frozen=True, slots=True)
class ScanCounts:
    """What became of the included canaries in the rows that the trainer sees.

    Each canary counts once, by its best copy: ``found`` whole and trained on, ``masked`` with labels that leave
    it out (wholly or in part), ``truncated`` or split over rows, ``missing``. ``by_text`` of the found ones were
    found as text, their ids differing. ``copies`` counts whole copies that are trained on, of ``copies_expected``.
    ``absent`` counts excluded canaries that were looked for and not seen, ``leaked`` those that were seen.
    """

    expected: int
    found: int = 0
    masked: int = 0
    truncated: int = 0
    missing: int = 0
    by_text: int = 0
    copies: int = 0
    copies_expected: int = 0
    absent: int = 0
    leaked: int = 0
    rows: int = 0
    tokens: int = 0
    complete: bool = True
    labels_seen: bool = False


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """The findings, errors first, the scan's counts, and the context in which the secrets are trained.

    ``observed_prefix`` holds the ids before the secret in the trainer's rows where they are the same for every
    canary and differ from :func:`memaudit.injection.render`'s: score in this context, which is the trained one.
    """

    findings: tuple[Finding, ...]
    counts: ScanCounts
    observed_prefix: tuple[int, ...] | None = None
    observed: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that stop training."""
        return tuple(one for one in self.findings if one.severity == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that go into the report."""
        return tuple(one for one in self.findings if one.severity == "warning")

    @property
    def ok(self) -> bool:
        """Whether nothing stops training."""
        return not self.errors

    def raise_for_errors(self) -> None:
        """Raise where the audit would measure nothing.

        Raises:
            PreflightError: joins every finding of severity error.
        """
        if self.errors:
            raise PreflightError(
                "; ".join(f"[{one.code}] {one.message}: {one.advice}" for one in self.errors)
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, without any token of a secret."""
        listed = [dataclasses.asdict(one) | {"canaries": list(one.canaries)} for one in self.findings]
        return {
            "ok": self.ok,
            "findings": listed,
            "errors": [one for one in listed if one["severity"] == "error"],
            "warnings": [one for one in listed if one["severity"] == "warning"],
            "scan": dataclasses.asdict(self.counts),
            "context_differs": self.observed_prefix is not None or bool(self.observed),
        }


def ordered(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, errors first, each once."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda one: ORDER[one.severity]))
