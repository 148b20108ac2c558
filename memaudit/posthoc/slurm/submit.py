"""Handing sbatch files to SLURM, and asking how the jobs are."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from memaudit.errors import ConfigurationError
from memaudit.files import write_atomic
from memaudit.posthoc.jobs import JobRecord, read_jobs
from memaudit.posthoc.slurm.sweep_file import STOP_NAME, Sweep
from memaudit.session import REPORT_NAME


def submit(folder: Path, sweep: Sweep, *, after: str = "any") -> Sweep:
    """Submit the array and the merge that waits for it; record both ids in the sweep's file.

    Args:
        folder: where audit.sbatch and merge.sbatch lie.
        sweep: what they audit.
        after: "any" starts the merge whatever became of the tasks (it names what is missing), "ok" only when
            all succeeded.

    Returns:
        The sweep with its job ids.

    Raises:
        ConfigurationError: there is no sbatch here, or it refuses a file.
    """
    (folder / STOP_NAME).unlink(missing_ok=True)
    array = _sbatch([str(folder / "audit.sbatch")])
    waiting = [
        f"--dependency=after{after}:{array}",
        "--kill-on-invalid-dep=yes",
        str(folder / "merge.sbatch"),
    ]
    merge = _sbatch(waiting)
    submitted = sweep.model_copy(update={"array_job": array, "merge_job": merge})
    submitted.save(folder)
    return submitted


def _sbatch(arguments: list[str]) -> int:
    if shutil.which("sbatch") is None:
        raise ConfigurationError(
            "no sbatch on this machine; copy the folder to the cluster's login node and run sbatch audit.sbatch there"
        )
    done = subprocess.run(["sbatch", "--parsable", *arguments], capture_output=True, text=True, check=False)
    found = re.match(r"\d+", done.stdout)
    if done.returncode != 0 or found is None:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ConfigurationError(
            f"sbatch refused {arguments[-1]}: {reason}; correct the option, then submit again"
        )
    return int(found[0])


def cancel(folder: Path, sweep: Sweep) -> None:
    """Cancel a sweep's jobs for good: a task that is only told to end would go back into the queue.

    Raises:
        ConfigurationError: the sweep was not submitted, or there is no scancel here.
    """
    jobs = [str(job) for job in (sweep.array_job, sweep.merge_job) if job is not None]
    if not jobs or shutil.which("scancel") is None:
        raise ConfigurationError(
            f"no jobs of {folder} to cancel: it was not submitted, or this machine has no scancel"
        )
    write_atomic(folder / STOP_NAME, "")
    subprocess.run(["scancel", *jobs], check=False)


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One array task: what it audits, what its files say and what SLURM says."""

    task: int
    checkpoint: str
    part: str
    files: str
    slurm: str


def status(folder: Path, sweep: Sweep) -> list[TaskStatus]:
    """Return how each task is, from the files that it wrote and from squeue where that knows the job.

    Args:
        folder: the sweep's folder.
        sweep: the sweep.
    """
    states = _squeue(sweep.array_job)
    found: list[TaskStatus] = []
    for task in range(sweep.tasks):
        index, part = divmod(task, sweep.slices)
        one = sweep.checkpoints[index]
        home = folder / one.folder
        jobs = {job.slice_index: job for job in read_jobs(home)} if home.is_dir() else {}
        files = _files(home, jobs.get(part), sweep.slices)
        found.append(
            TaskStatus(task, one.path, f"{part}/{sweep.slices}", files, states.get(task, "not in the queue"))
        )
    return found


def _files(home: Path, job: JobRecord | None, slices: int) -> str:
    if job is None:
        return "not started"
    if not job.complete:
        return "started"
    return "reported" if slices == 1 and (home / REPORT_NAME).is_file() else "scored"


def _squeue(job: int | None) -> dict[int, str]:
    """Return the state of each task of an array job that SLURM still has in its queue."""
    if job is None or shutil.which("squeue") is None:
        return {}
    command = ["squeue", "--noheader", "--array", "--jobs", str(job), "--format", "%K %T %R"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    states: dict[int, str] = {}
    for line in done.stdout.splitlines():
        fields = line.split(maxsplit=1)
        if len(fields) == 2 and fields[0].isdigit():
            states[int(fields[0])] = fields[1]
    return states
