"""Start the demonstration's ranks, wait for them, and judge the positive control."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from memaudit.demo.settings import DemoSettings
from memaudit.demo.table import print_summary
from memaudit.errors import AuditError
from memaudit.report.build import load_report
from memaudit.session import REPORT_NAME
from memaudit.timeline import TIMELINE_NAME

MINIMUM_AUC_AT_16 = 0.8


def run_demo(settings: DemoSettings, console: Console | None = None) -> int:
    """Run the demonstration; print its table.

    Args:
        settings: model, data, ranks, strategy, output folder, seed.
        console: where the table goes; standard output where not given.

    Returns:
        0 when the positive control holds, 1 when it does not.

    Raises:
        AuditError: a rank failed; its message has been shown.
    """
    out = Path(settings.output_dir)
    out.mkdir(parents=True, exist_ok=True)
    # The output folder of an earlier run would pass for a resumed one.
    (out / TIMELINE_NAME).unlink(missing_ok=True)
    console = console or Console()
    console.print(
        f"memaudit demo: {settings.model}, {settings.nproc} rank(s), {settings.strategy}, seed {settings.seed}; "
        "trains and audits on this machine, nothing is downloaded or sent",
        soft_wrap=True,
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        settings.save(file)
        code = subprocess.run(_command(settings, file), env=_environment(settings)).returncode
    if code != 0:
        raise AuditError(f"the demonstration's ranks ended with exit code {code}; their messages stand above")
    report = load_report(out / REPORT_NAME)
    passed, problems = judge(report)
    print_summary(console, report, out / REPORT_NAME, seconds=time.monotonic() - began, problems=problems)
    return 0 if passed else 1


def judge(report: object) -> tuple[bool, list[str]]:
    """Say whether the positive control holds: repetition 16 is detected and controls are clean.

    Args:
        report: a loaded report.

    Returns:
        Whether it holds, and what is wrong where not.
    """
    membership = report.membership  # type: ignore[attr-defined]
    problems: list[str] = []
    summary = report.attacks[membership.headline_attack]  # type: ignore[attr-defined]
    auc = summary.auc_by_repetition.get("16x")
    tier = membership.by_repetition.get("16x")
    if auc is None or auc < MINIMUM_AUC_AT_16:
        problems.append(
            f"AUC of canaries repeated 16 times is {auc}, at least {MINIMUM_AUC_AT_16} was expected"
        )
    if not membership.headline_valid:
        problems.append(f"the headline was refused: {membership.headline_reason}")
    elif tier is None or not tier.detected:
        problems.append("no canary repeated 16 times was detected")
    rate = report.negative_controls.regurgitation_rate  # type: ignore[attr-defined]
    if rate is None or rate > 0.0:
        problems.append(f"controls are not clean: {rate} of them were regurgitated")
    return not problems, problems


def _command(settings: DemoSettings, file: Path) -> list[str]:
    worker = ["-m", "memaudit.demo.worker", str(file)]
    if settings.nproc == 1:
        return [sys.executable, *worker]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={settings.nproc}",
        *worker,
    ]


def _environment(settings: DemoSettings) -> dict[str, str]:
    """Threads shared out over the ranks, hubs off, no advice from libraries on the screen."""
    threads = max(1, (os.cpu_count() or 1) // settings.nproc)
    return {
        "OMP_NUM_THREADS": str(threads),
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PYTHONUNBUFFERED": "1",
    }
