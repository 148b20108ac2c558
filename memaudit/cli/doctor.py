"""memaudit doctor: can this machine run an audit?"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memaudit.cli._checks import Finding

MARKS = {
    "ok": "[green]ok[/green]",
    "missing": "[yellow]missing[/yellow]",
    "bad": "[red]BAD[/red]",
    "info": "-",
}


def doctor(
    skip_demo: bool = False, report: str | None = None, output_dir: str | None = None, nproc: int = 1
) -> int:
    """Check versions, known-bad combinations, devices and back ends, then audit a tiny model end to end.

    Args:
        skip_demo: leave the end-to-end run out.
        report: check this report's schema and checksum as well.
        output_dir: keep the end-to-end run's files there; a temporary folder when not given.
        nproc: ranks of the end-to-end run.

    Returns:
        0 when all is well, 1 when something would make an audit fail. A missing extra is no failure.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from memaudit.cli import _checks as checks

    console = Console()
    findings: list[Finding] = []
    for part in (checks.versions(), checks.combinations(), checks.devices(), checks.back_ends()):
        findings.extend(part)
    findings.extend(checks.folder(output_dir or "."))
    if report is not None:
        findings.extend(checks.written_report(report))
    table = Table(show_header=False, box=None, pad_edge=False)
    for one in findings:
        table.add_row(MARKS[one.state], one.what, escape(one.detail))
    console.print(table)
    failed = _bad(findings)
    if not skip_demo:
        failed += _end_to_end(output_dir, nproc)
    verdict = "this machine can run audits" if not failed else "NOT ready: " + ", ".join(failed)
    if skip_demo:
        verdict += " (the end-to-end run was left out)"
    console.print(f"memaudit doctor: {verdict}", highlight=False)
    return 1 if failed else 0


def _bad(findings: Iterable[Finding]) -> list[str]:
    return [one.what for one in findings if one.state == "bad"]


def _end_to_end(output_dir: str | None, nproc: int) -> list[str]:
    """Train and audit the demo's tiny model; its report has to fit the schema and to verify."""
    from memaudit.cli._checks import written_report
    from memaudit.demo.run import run_demo
    from memaudit.demo.settings import DemoSettings
    from memaudit.errors import MemauditError

    with tempfile.TemporaryDirectory() as temporary:
        out = output_dir or temporary
        settings = DemoSettings(nproc=nproc, strategy="single" if nproc == 1 else "fsdp2", output_dir=out)
        try:
            failed = ["positive control"] if run_demo(settings) else []
            failed += _bad(written_report(str(Path(out) / "memaudit-report.json")))
        except MemauditError as error:
            print(f"memaudit: the end-to-end run failed: {error}")
            return ["end-to-end run"]
    return failed
