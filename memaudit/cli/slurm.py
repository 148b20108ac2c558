"""memaudit slurm: sbatch files that audit many checkpoints, their submission and their status."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

ALIASES = {"-o": "--output-dir"}


def slurm(
    *,
    checkpoints: str | None = None,
    manifest: str | None = None,
    output_dir: str = "memaudit-slurm",
    status: str | None = None,
    cancel: str | None = None,
    submit: bool = False,
    array_by: Literal["checkpoint", "canaries"] = "checkpoint",
    slices: int = 4,
    nodes: int = 1,
    ntasks_per_node: int = 1,
    cpus_per_task: int | None = None,
    partition: str | None = None,
    account: str | None = None,
    qos: str | None = None,
    time: str | None = None,
    gpus_per_node: str | None = None,
    mem: str | None = None,
    constraint: str | None = None,
    sbatch: str = "",
    at_once: int = 0,
    grace: int = 120,
    merge_after: Literal["any", "ok"] = "any",
    allow_missing: bool = False,
    python: str | None = None,
    setup: str = "",
    name: str = "memaudit",
    ref: str = "auto",
    strategy: Literal["auto", "single", "ddp", "fsdp2", "zero3", "device-map"] = "auto",
    skip_generation: bool = False,
    batch_size: int = 32,
    audit: str = "",
) -> int:
    """Write sbatch files that audit checkpoints, one array task each, and merge the results.

    Args:
        checkpoints: pattern of the checkpoints, in quotes: 'out/checkpoint-*'; several separated by commas.
        manifest: the manifest that inject() wrote.
        output_dir: folder of the sbatch files, logs, signals and reports; every node must see it.
        status: print how the jobs of this folder are, and do nothing else.
        cancel: cancel the jobs of this folder for good (after a plain scancel a task goes back into the queue).
        submit: hand the files to sbatch.
        array_by: one array task for each checkpoint, or several for each, by slices of the canaries.
        slices: slices of each checkpoint's canaries, with --array-by canaries.
        nodes: nodes of each task.
        ntasks_per_node: ranks on each node.
        cpus_per_task: CPUs on each node; by default one a rank.
        partition: sbatch's --partition.
        account: sbatch's --account.
        qos: sbatch's --qos.
        time: sbatch's --time.
        gpus_per_node: sbatch's --gpus-per-node.
        mem: sbatch's --mem.
        constraint: sbatch's --constraint.
        sbatch: any other sbatch options, as one text: --sbatch="--exclude=node7 --reservation=audit".
        at_once: tasks that may run together; 0 for as many as there is room for.
        grace: seconds before the time limit at which a task ends by itself and goes back into the queue.
        merge_after: start the merge after any end of the tasks (it names what is missing), or only if all are ok.
        allow_missing: let the merge write the curve of the checkpoints that are there.
        python: the interpreter on the nodes; by default this one.
        setup: shell lines before the work, separated by semicolons: "module load cuda; source env/bin/activate".
        name: of the jobs.
        ref: as for memaudit audit.
        strategy: as for memaudit audit.
        skip_generation: as for memaudit audit.
        batch_size: as for memaudit audit.
        audit: any other options of memaudit audit, as one text: --audit="--release-context internal --seeds 0,1".
    """
    import shlex
    import sys

    from memaudit.errors import ConfigurationError
    from memaudit.files import write_atomic
    from memaudit.manifest import Manifest
    from memaudit.posthoc.checkpoints import expand
    from memaudit.posthoc.slurm.render import JobOptions, make_sweep, render
    from memaudit.posthoc.slurm.submit import submit as hand_over

    if status is not None:
        return _print_status(Path(status))
    if cancel is not None:
        return _cancel(Path(cancel))
    if checkpoints is None or manifest is None:
        raise ConfigurationError("give --checkpoints PATTERN and --manifest FILE, or --status DIR")
    Manifest.load(manifest)  # a wrong file is an error here, not on every node
    found = expand([part for part in checkpoints.split(",") if part])
    folder = Path(output_dir).resolve()
    sweep = make_sweep(found, Path(manifest), slices if array_by == "canaries" else 1)
    named: dict[str, Any] = {
        "partition": partition,
        "account": account,
        "qos": qos,
        "time": time,
        "gpus-per-node": gpus_per_node,
        "mem": mem,
        "constraint": constraint,
    }
    options = [f"--{key}={value}" for key, value in named.items() if value is not None] + shlex.split(sbatch)
    shared = [one for one in options if one.startswith(("--partition", "--account", "--qos"))]
    arguments = ["--ref", _absolute(ref), "--strategy", strategy, "--batch-size", str(batch_size)]
    arguments += ["--skip-generation", "true"] if skip_generation else []
    job = JobOptions(
        name=name,
        nodes=nodes,
        ntasks_per_node=ntasks_per_node,
        cpus_per_task=cpus_per_task,
        at_once=at_once,
        grace=grace,
        python=python or sys.executable,
        setup=[line.strip() for line in setup.split(";") if line.strip()],
        options=options,
        merge_options=shared,
        allow_missing=allow_missing,
        arguments=[*arguments, *shlex.split(audit)],
    )
    array_file, merge_file = render(sweep, folder, job)
    write_atomic(folder / "audit.sbatch", array_file)
    write_atomic(folder / "merge.sbatch", merge_file)
    (folder / "logs").mkdir(exist_ok=True)
    sweep.save(folder)
    print(
        f"{sweep.tasks} tasks over {len(found)} checkpoints: {folder / 'audit.sbatch'}, {folder / 'merge.sbatch'}"
    )
    if submit:
        sent = hand_over(folder, sweep, after=merge_after)
        print(f"submitted: array job {sent.array_job}, merge job {sent.merge_job}")
        print(f"how they are: memaudit slurm --status {folder}")
    return 0


def _absolute(ref: str) -> str:
    """Write a path so that it holds on every node; modes and hub ids stay."""
    return str(Path(ref).resolve()) if Path(ref).exists() else ref


def _sweep_of(folder: Path) -> Any:
    from memaudit.errors import ConfigurationError
    from memaudit.posthoc.slurm.sweep_file import SWEEP_NAME, read_sweep

    sweep = read_sweep(folder)
    if sweep is None:
        raise ConfigurationError(f"{folder} has no {SWEEP_NAME}; name the folder that memaudit slurm wrote")
    return sweep


def _cancel(folder: Path) -> int:
    from memaudit.posthoc.slurm.submit import cancel

    cancel(folder, _sweep_of(folder))
    print(f"cancelled; what was scored is in {folder}, memaudit slurm --submit goes on from there")
    return 0


def _print_status(folder: Path) -> int:
    from rich.console import Console
    from rich.table import Table

    from memaudit.posthoc.slurm.submit import status

    sweep = _sweep_of(folder)
    table = Table("task", "checkpoint", "slice", "files", "SLURM")
    rows = status(folder, sweep)
    for row in rows:
        table.add_row(str(row.task), Path(row.checkpoint).name, row.part, row.files, row.slurm)
    Console().print(table)
    done = sum(row.files in ("reported", "scored") for row in rows)
    print(f"{done} of {len(rows)} tasks done")
    return 0
