"""What each job writes beside its signals: which manifest, model and version they belong to, and which share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memaudit.errors import SignalStoreError
from memaudit.files import write_atomic

JOBS_NAME = "memaudit-jobs"
JOB_VERSION = 1


class JobRecord(BaseModel):
    """One job of an audit: a slice of one checkpoint's canaries, or all of them.

    ``reference`` holds mode, identity, note and the fingerprint under which its signals are stored;
    ``options`` are the audit's choices, the same in every job that is merged; ``complete`` is set once every
    signal of the slice is stored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = JOB_VERSION
    tool_version: str
    checkpoint: str
    kind: str
    step: int | None
    slice_index: int
    slice_count: int
    manifest: str
    manifest_sha256: str
    weights: str
    tokenizer: str
    model: dict[str, Any]
    facts: dict[str, Any]
    reference: dict[str, Any]
    options: dict[str, Any]
    dataset: str | None = None
    complete: bool = False
    forwards: int = Field(default=0, ge=0)

    @property
    def name(self) -> str:
        """The slice as text."""
        return f"{self.slice_index}/{self.slice_count}"

    def save(self, folder: Path) -> Path:
        """Write the record into ``folder``/memaudit-jobs; return its path."""
        path = folder / JOBS_NAME / f"slice-{self.slice_index:04d}-of-{self.slice_count:04d}.json"
        return write_atomic(path, json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n")


def read_jobs(folder: Path) -> list[JobRecord]:
    """Return the jobs recorded under a folder, in order of slice.

    Raises:
        SignalStoreError: a record is damaged or of another version.
    """
    jobs: list[JobRecord] = []
    for path in sorted((folder / JOBS_NAME).glob("slice-*.json")):
        try:
            document = json.loads(path.read_text())
            if document.get("version") != JOB_VERSION:
                raise SignalStoreError(
                    f"{path} has version {document.get('version')}, this memaudit reads {JOB_VERSION}; "
                    "merge with the memaudit that wrote it"
                )
            jobs.append(JobRecord.model_validate(document))
        except (OSError, ValueError, ValidationError) as error:
            raise SignalStoreError(f"{path} is damaged; run its job again") from error
    return sorted(jobs, key=lambda job: (job.slice_count, job.slice_index))
