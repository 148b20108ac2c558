"""memaudit compare: two reports side by side."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memaudit.report.compare import Change, Comparison

ALIASES = {"-o": "--output"}
WORDS = {
    "higher": "higher, beyond chance",
    "lower": "lower, beyond chance",
    "within": "within chance",
    "same": "same",
    "not_measured": "not measured",
}


def compare(first: str, second: str, json: bool = False, output: str | None = None) -> int:
    """Say what changed from one report to another, and whether by more than chance explains.

    Args:
        first: the earlier report's file.
        second: the later report's file.
        json: print JSON instead of the table.
        output: write the JSON there as well.
    """
    from memaudit.files import write_atomic
    from memaudit.report.compare import compare as compare_reports
    from memaudit.report.store import load_report

    found = compare_reports(load_report(first), load_report(second))
    text = jsonlib.dumps(found.to_dict(), indent=1, allow_nan=False) + "\n"
    if output is not None:
        write_atomic(output, text)
    if json:
        print(text, end="")
    else:
        _show(found)
    return 0


def _show(found: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"A: {found.first}\nB: {found.second}", highlight=False, markup=False)
    table = Table()
    for column in ("", "A [95%]", "B [95%]", "B - A", "judgement"):
        table.add_column(column, justify="left" if column in ("", "judgement") else "right")
    for change in found.changes:
        difference = "-" if change.difference is None else f"{change.difference:+.3f}"
        table.add_row(
            change.name,
            _side(change, 0),
            _side(change, 1),
            difference,
            WORDS[change.judgement] + ("" if change.pvalue is None else f" (p = {change.pvalue:.2g})"),
        )
    console.print(table)
    console.print("Each figure is judged by itself at 5%: of twenty that did not change, one may seem to.")
    for caution in found.cautions:
        console.print(f"Note: {caution}", highlight=False, markup=False)


def _side(change: Change, index: int) -> str:
    value = (change.first, change.second)[index]
    limits = (change.first_interval, change.second_interval)[index]
    if value is None:
        return "-"
    return f"{value:.3f}" + (
        "" if limits is None else f" [{limits[0]:.3f}, {limits[1]:.3f}]".replace("[", "\\[")
    )
