"""From a sweep and its options to readable sbatch files, out of the templates in launch/."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memaudit import launch
from memaudit.errors import ConfigurationError
from memaudit.posthoc.checkpoints import Checkpoint
from memaudit.posthoc.interrupt import EXIT_AGAIN
from memaudit.posthoc.slurm.sweep_file import STOP_NAME, Sweep, SweepCheckpoint

OURS = (
    "array",
    "nodes",
    "ntasks-per-node",
    "output",
    "open-mode",
    "requeue",
    "signal",
    "job-name",
    "dependency",
)
"""sbatch options that the templates set themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """How the jobs run.

    Args:
        name: of the jobs.
        nodes: nodes of each array task.
        ntasks_per_node: ranks on each node; one torchrun a node starts them.
        cpus_per_task: CPUs of each node's torchrun; by default one a rank.
        at_once: array tasks that may run together; 0 for as many as there is room for.
        grace: seconds before the end of the time limit at which SLURM warns the task.
        python: the interpreter, the same on every node.
        setup: shell lines before the work (modules, environments).
        options: further sbatch options, for example ``--partition=gpu``.
        merge_options: those of the merge job.
        allow_missing: whether the merge writes the curve of what is there.
    """

    name: str = "memaudit"
    nodes: int = 1
    ntasks_per_node: int = 1
    cpus_per_task: int | None = None
    at_once: int = 0
    grace: int = 120
    python: str = "python"
    setup: Sequence[str] = ()
    options: Sequence[str] = ()
    merge_options: Sequence[str] = ()
    allow_missing: bool = False
    arguments: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        if min(self.nodes, self.ntasks_per_node) < 1 or self.grace < 1 or self.at_once < 0:
            raise ConfigurationError("nodes, ntasks-per-node and grace are at least 1, at-once at least 0")
        for option in (*self.options, *self.merge_options):
            check_option(option)


def check_option(option: str) -> None:
    """Refuse what is no sbatch option, and those that the templates set.

    Raises:
        ConfigurationError: it is one of them.
    """
    found = re.match(r"--?([A-Za-z][\w-]*)", option)
    if found is None or "\n" in option:
        raise ConfigurationError(
            f"{option!r} is no sbatch option; write it as on sbatch's command line: --qos=high"
        )
    if found[1] in OURS:
        raise ConfigurationError(f"sbatch option --{found[1]} is set by memaudit slurm itself; leave it out")


def make_sweep(checkpoints: Sequence[Checkpoint], manifest: Path, slices: int) -> Sweep:
    """Return the sweep over checkpoints, each with a folder named after it.

    Raises:
        ConfigurationError: there are no checkpoints, or fewer than one slice.
    """
    if not checkpoints or slices < 1:
        raise ConfigurationError("a sweep needs at least one checkpoint and one slice")
    named: list[SweepCheckpoint] = []
    taken: set[str] = set()
    for one in checkpoints:
        base = re.sub(r"[^\w.=-]+", "-", one.path.name) or "checkpoint"
        folder, number = base, 1
        while folder in taken:
            number += 1
            folder = f"{base}-{number}"
        taken.add(folder)
        named.append(SweepCheckpoint(path=str(one.path.resolve()), folder=folder, step=one.step))
    return Sweep(checkpoints=tuple(named), slices=slices, manifest=str(manifest.resolve()))


def render(sweep: Sweep, folder: Path, job: JobOptions) -> tuple[str, str]:
    """Return the text of the array job's and of the merge job's sbatch file.

    Args:
        sweep: what is audited.
        folder: the sweep's folder.
        job: how the jobs run.

    Example:
        >>> one = SweepCheckpoint(path="/out/checkpoint-10", folder="checkpoint-10")
        >>> sweep = Sweep(checkpoints=(one,), manifest="/out/m.json")
        >>> render(sweep, Path("/audits"), JobOptions())[0].splitlines()[0]
        '#!/bin/bash'
    """
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",
        comment_end_string="##}",
        autoescape=False,  # shell, not HTML: values are quoted below
    )
    values = {
        "name": job.name,
        "tasks": sweep.tasks,
        "at_once": job.at_once,
        "nodes": job.nodes,
        "ntasks_per_node": job.ntasks_per_node,
        "ranks": job.nodes * job.ntasks_per_node,
        "cpus": job.cpus_per_task or job.ntasks_per_node,
        "grace": job.grace,
        "folder": shlex.quote(str(folder)),
        "store": shlex.quote(str(folder / sweep.store)),
        "stop": shlex.quote(str(folder / STOP_NAME)),
        "setup": list(job.setup),
        "python": shlex.quote(job.python),
        "slices": sweep.slices,
        "checkpoints": [
            {"path": shlex.quote(one.path), "folder": shlex.quote(str(folder / one.folder))}
            for one in sweep.checkpoints
        ],
        "arguments": [*_pairs(["--manifest", sweep.manifest]), *_pairs(job.arguments)],
        "exit_again": EXIT_AGAIN,
        "allow_missing": job.allow_missing,
    }
    audit = environment.from_string(launch.read("audit.sbatch")).render(values, options=list(job.options))
    merge = environment.from_string(launch.read("merge.sbatch")).render(
        values, options=list(job.merge_options)
    )
    return audit, merge


def _pairs(arguments: Sequence[str]) -> list[str]:
    """Write each option with its value on one line, quoted for the shell."""
    lines: list[str] = []
    for argument in arguments:
        if lines and not argument.startswith("--") and " " not in lines[-1] and lines[-1].startswith("--"):
            lines[-1] += " " + shlex.quote(argument)
        else:
            lines.append(shlex.quote(argument))
    return lines
