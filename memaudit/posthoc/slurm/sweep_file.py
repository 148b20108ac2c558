"""memaudit-slurm.json: what a sweep consists of, read by its merge job and by ``--status``."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from memaudit.errors import ConfigurationError
from memaudit.files import write_atomic

SWEEP_NAME = "memaudit-slurm.json"

STOP_NAME = "stop"
"""A file beside it that keeps tasks that are told to end from going back into the queue."""


class SweepCheckpoint(BaseModel):
    """One checkpoint of a sweep and the folder, below the sweep's, of its audit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    folder: str
    step: int | None = None


class Sweep(BaseModel):
    """A sweep: checkpoints times slices, the folder of the signals that all share, the job ids once submitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = 1
    checkpoints: tuple[SweepCheckpoint, ...]
    slices: int = 1
    store: str = "signals"
    manifest: str
    array_job: int | None = None
    merge_job: int | None = None

    @property
    def tasks(self) -> int:
        """Number of array tasks."""
        return len(self.checkpoints) * self.slices

    def save(self, folder: Path) -> Path:
        """Write the file; return its path."""
        document = json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
        return write_atomic(folder / SWEEP_NAME, document)


def read_sweep(folder: Path) -> Sweep | None:
    """Return the sweep in a folder, or None where there is none.

    Raises:
        ConfigurationError: the file is damaged.
    """
    path = folder / SWEEP_NAME
    if not path.is_file():
        return None
    try:
        return Sweep.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        raise ConfigurationError(f"{path} is damaged; write it again with memaudit slurm") from error
