"""The demonstration's closing table: members and controls by repetition, in plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(console: Console, report: Any, path: Path, *, seconds: float, problems: list[str]) -> None:
    """Print the findings of a report, where it lies, and whether the positive control holds.

    Args:
        console: where to print.
        report: a loaded report.
        path: its file.
        seconds: wall-clock time of the whole demonstration.
        problems: what broke the positive control; empty where it holds.
    """
    membership = report.membership
    summary = report.attacks[membership.headline_attack]
    table = Table(
        title=f"Membership: {membership.headline_attack} at {membership.target_fpr:.0%} false positives"
    )
    for column in ("canaries", "n", "detected", "TPR [95% interval]", "AUC"):
        table.add_column(column, justify="left" if column == "canaries" else "right")
    for name, tier in membership.by_repetition.items():
        if name == "pooled":
            continue
        area = summary.auc_by_repetition.get(name)
        table.add_row(
            f"members, {name}",
            str(tier.n),
            _text(tier.detected),
            _interval(tier.tpr, tier.ci_low, tier.ci_high),
            _text(area),
        )
    table.add_section()
    table.add_row(
        "members, all",
        str(membership.n_members),
        _text(membership.n_detected),
        _interval(membership.tpr_at_target_fpr, membership.ci_low, membership.ci_high),
        _text(membership.auc),
    )
    table.add_row("held out and controls", str(membership.n_controls), "", "", "")
    console.print(table)
    for entry in report.timeline[-1:]:
        share = (
            entry.get("share_of_training_time") if isinstance(entry, dict) else entry.share_of_training_time
        )
        if share is not None:
            console.print(f"audits took {share:.1%} of training time")
    console.print(f"report: {path}", soft_wrap=True)
    console.print(f"next: memaudit verify {path}; memaudit report {path} --html OUT.html", soft_wrap=True)
    console.print(f"{seconds:.0f} s in all")
    for problem in problems:
        console.print(f"[red]positive control failed:[/red] {problem}")
    if not problems:
        console.print("[green]positive control holds:[/green] repetition 16 is detected, controls are clean")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None or low is None or high is None:
        return "-"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
