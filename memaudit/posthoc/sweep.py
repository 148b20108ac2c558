"""A folder of audits over checkpoints: merging each one's slices, then the curve, naming what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memaudit.errors import MemauditError, SignalStoreError
from memaudit.posthoc.curve import build_curve, write_curve
from memaudit.posthoc.jobs import read_jobs
from memaudit.posthoc.merge import find_jobs, merge_slices, missing_slices
from memaudit.session import REPORT_NAME


@dataclass(frozen=True, slots=True)
class SweepOutcome:
    """What a merge wrote: the reports, the curve's files, and what is missing by name and reason."""

    reports: tuple[Path, ...]
    curve: tuple[Path, ...]
    missing: tuple[str, ...]


def merge_sweep(
    root: Path,
    folders: Sequence[Path],
    *,
    store: Path | None = None,
    manifest: str | None = None,
    skip_generation: bool = False,
    allow_missing: bool = False,
) -> SweepOutcome:
    """Make the reports of every folder's slices and the curve over them.

    Args:
        root: where the curve goes.
        folders: one folder a checkpoint, those that should be there included.
        store: folder of the signals that the jobs shared; each folder's own by default.
        manifest: path of the manifest, where it has moved.
        skip_generation: leave near-verbatim matches out.
        allow_missing: write the curve of what is there, with the missing named in it.

    Raises:
        SignalStoreError: something is missing and that was not allowed, or jobs of several audits are mixed.
    """
    missing: list[str] = []
    reports: list[Path] = []
    _require_one_design(folders)
    for folder in folders:
        reason = _merge_one(folder, store, manifest, skip_generation)
        if reason:
            missing.append(f"{folder.name} ({reason})")
        else:
            reports.append(folder / REPORT_NAME)
    if missing and not allow_missing:
        raise SignalStoreError(
            f"{len(missing)} of {len(folders)} checkpoints are missing: {'; '.join(missing)}; run their jobs again, "
            "or merge what is there with --allow-missing"
        )
    curve = build_curve(reports, missing)
    return SweepOutcome(tuple(reports), write_curve(curve, root), tuple(missing))


def _merge_one(folder: Path, store: Path | None, manifest: str | None, skip_generation: bool) -> str:
    """Make one checkpoint's report where slices need it; return why that cannot be, or nothing."""
    if not folder.is_dir() or not read_jobs(folder):
        return "never started"
    found = find_jobs([folder])
    if gaps := missing_slices(found):
        return "slices " + ", ".join(gaps) if found.jobs[0].slice_count > 1 else "not finished"
    if found.jobs[0].slice_count > 1:
        try:
            merge_slices(
                [folder],
                stores=[store] if store else [],
                manifest=manifest,
                skip_generation=skip_generation,
            )
        except MemauditError as error:
            return str(error)
    return "" if (folder / REPORT_NAME).is_file() else "its report is gone"


def _require_one_design(folders: Sequence[Path]) -> None:
    """Checkpoints of a sweep share manifest, version and options; their weights differ."""
    first = None
    for folder in folders:
        for job in read_jobs(folder) if folder.is_dir() else []:
            first = first or (folder, job)
            for field, name in (
                ("manifest_sha256", "manifests"),
                ("tool_version", "versions of memaudit"),
                ("options", "options"),
            ):
                if getattr(job, field) != getattr(first[1], field):
                    raise SignalStoreError(
                        f"{first[0]} and {folder} were audited with different {name}; merge only what belongs together"
                    )
