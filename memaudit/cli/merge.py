"""memaudit merge: one report from the slices that several jobs scored, and the curve over a sweep's checkpoints."""

from __future__ import annotations

from pathlib import Path

ALIASES = {"-o": "--output-dir"}


def merge(
    folder: str,
    *,
    also: str = "",
    output_dir: str | None = None,
    store: str | None = None,
    manifest: str | None = None,
    skip_generation: bool = False,
    allow_missing: bool = False,
) -> int:
    """Join what several jobs scored; nothing is forwarded, so no GPU is needed.

    Args:
        folder: output folder of the jobs of one audit, or a folder that holds one for each checkpoint, as
            memaudit slurm makes it.
        also: further output folders of jobs of the same audit, separated by commas.
        output_dir: where the report goes; the first folder by default.
        store: folder of the signals, where the jobs shared one.
        manifest: path of the manifest, where it has moved.
        skip_generation: leave near-verbatim matches out.
        allow_missing: make the curve of the checkpoints that are there; the missing ones are named in it.
    """
    from memaudit.errors import SignalStoreError
    from memaudit.posthoc.merge import audit_folders, merge_slices
    from memaudit.posthoc.slurm.sweep_file import read_sweep
    from memaudit.posthoc.sweep import merge_sweep
    from memaudit.session import REPORT_NAME

    places = [Path(folder), *(Path(name) for name in also.split(",") if name)]
    shared = Path(store) if store else None
    sweep = read_sweep(places[0]) if len(places) == 1 else None
    below = audit_folders(places[0]) if len(places) == 1 else []
    if sweep is not None:
        below = [places[0] / task.folder for task in sweep.checkpoints]
        shared = shared or places[0] / sweep.store
    elif len(places) == 1 and not below:
        raise SignalStoreError(
            f"{places[0]} holds no jobs of memaudit audit or memaudit slurm; name their folder"
        )
    if sweep is not None or any(one != places[0] for one in below):
        outcome = merge_sweep(
            Path(output_dir) if output_dir else places[0],
            below,
            store=shared,
            manifest=manifest,
            skip_generation=skip_generation,
            allow_missing=allow_missing,
        )
        for path in (*outcome.reports, *outcome.curve):
            print(path)
        for name in outcome.missing:
            print(f"missing: {name}")
        return 0
    target = Path(output_dir) if output_dir else places[0]
    merge_slices(
        places,
        output_dir=target,
        stores=[shared] if shared else [],
        manifest=manifest,
        skip_generation=skip_generation,
    )
    print(target / REPORT_NAME)
    return 0
