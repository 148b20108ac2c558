"""The report as Markdown: the annex for a data-protection officer, the section for a hub's model card."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memaudit.report.numbers import percent
from memaudit.report.schema import Report


def annex_markdown(report: Report) -> str:
    """Return the compliance annex.

    Example:
        >>> from memaudit.report.build import build_report
        >>> from memaudit.report.examples import example_inputs
        >>> annex_markdown(build_report(example_inputs())).splitlines()[0]
        '# Compliance annex (EDPB Opinion 28/2024)'
    """
    annex = report.compliance_annex
    scope = [(name.replace("_", " "), _plain(value)) for name, value in annex.test_scope.items()]
    parts = [
        "# Compliance annex (EDPB Opinion 28/2024)",
        f"**{annex.disclaimer}**",
        f"Report SHA-256: `{report.report_sha256 or 'not stamped'}`",
        "## 1. Verdicts",
        *(
            f"- **{name}.** {found.question} {found.answer} {found.detail}"
            for name, found in (
                ("Membership", report.verdicts.membership),
                ("Regurgitation", report.verdicts.regurgitation),
            )
        ),
        "## 2. Attack coverage (paragraph 55)",
        _table(
            ("attack", "reference", "status", "method", "result"),
            (
                (row.attack, row.edpb_ref, row.status, row.method or "–", row.result or "–")
                for row in annex.attack_coverage
            ),
        ),
        "## 3. Threat models (paragraph 58(c))",
        _table(
            ("subject", "attacker's access", "assumptions", "source"),
            ((row.subject, row.attacker_access, row.assumptions, row.source) for row in annex.threat_models),
        ),
        "## 4. Scope of the test",
        _table(("what", "value"), scope),
        "## 5. Quantified results",
        *(f"- {_escape(line)}" for line in annex.quantified_results),
        "## 6. Release context (paragraph 46)",
        f"{annex.release_context.declared} (declared by: {annex.release_context.declared_by}): "
        f"{annex.release_context.implied_attack_surface}.",
        "## 7. Limits of this evidence",
        annex.limitations,
        *(f"- {_escape(line)}" for line in report.limitations.items),
    ]
    return _join(parts)


def model_card(report: Report) -> str:
    """Return the section for a hub's model card: both verdicts, the numbers, what they do not say.

    Example:
        >>> from memaudit.report.build import build_report
        >>> from memaudit.report.examples import example_inputs
        >>> "## Memorisation audit" in model_card(build_report(example_inputs()))
        True
    """
    found, emitted = report.membership, report.regurgitation
    rows = [
        (
            f"TPR at {percent(found.target_fpr)} FPR ({found.headline_attack})",
            "refused: " + (found.headline_reason or "")
            if found.tpr_at_target_fpr is None
            else f"{found.tpr_at_target_fpr:.3g} ({_span(found.ci_low, found.ci_high)})",
        )
    ]
    for name, tier in found.by_repetition.items():
        if name != "pooled" and tier.tpr is not None:
            rows.append(
                (f"of that, {name}", f"{tier.detected} of {tier.n} ({_span(tier.ci_low, tier.ci_high)})")
            )
    area = "–" if found.auc is None else f"{found.auc:.3g} ({_span(found.auc_ci_low, found.auc_ci_high)})"
    rows += [
        ("AUC (secondary)", area),
        ("Verbatim regurgitation", emitted.detected.wording),
        ("Canaries", report.audit_scope.summary),
        ("Reference", report.reference.mode),
        ("Release context (declared)", report.release_context.declared),
        ("Report SHA-256", f"`{report.report_sha256 or 'not stamped'}`"),
    ]
    parts = [
        "## Memorisation audit",
        f"Audited with memaudit {report.tool_version} on {report.created_at[:10]}; intervals are "
        f"{percent(found.ci_level)}.",
        f"- **Membership.** {_escape(report.verdicts.membership.answer)}",
        f"- **Regurgitation.** {_escape(report.verdicts.regurgitation.answer)}",
        _table(("measure", "value"), rows),
        _escape(report.limitations.statement),
    ]
    return _join(parts)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'|'.join(' --- ' for _ in columns)}|"]
    lines += [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return _escape(text).replace("|", "\\|").replace("\n", " ")


def _escape(text: str) -> str:
    return text.replace("<", "&lt;")


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _span(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.3g} to {high:.3g}"


def _join(parts: Sequence[str]) -> str:
    """Blank lines between blocks, none between the items of a list."""
    text = ""
    for before, part in zip(["", *parts], parts, strict=False):
        text += (
            ("\n" if before.startswith("- ") and part.startswith("- ") else "\n\n") + part if text else part
        )
    return text + "\n"
