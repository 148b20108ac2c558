"""Joining what several jobs scored: one report per checkpoint from its slices, one curve over the checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memaudit.errors import ConfigurationError, ManifestError, SignalStoreError
from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.posthoc.jobs import JOBS_NAME, JobRecord, read_jobs
from memaudit.signals import Decoding
from memaudit.store import SignalStore

# What jobs must share, and how each is called in the error.
_SAME = (
    ("tool_version", "versions of memaudit"),
    ("manifest_sha256", "manifests"),
    ("weights", "models"),
    ("slice_count", "numbers of slices"),
    ("reference", "references"),
    ("options", "options"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """The jobs of one audit and the folders that they lie in."""

    jobs: tuple[JobRecord, ...]
    folders: tuple[Path, ...]


def find_jobs(folders: Sequence[Path]) -> Found:
    """Read the jobs in folders and check that they belong together.

    Raises:
        SignalStoreError: there are none, or they are of several manifests, models, versions or options.
    """
    jobs: list[JobRecord] = []
    homes: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise SignalStoreError(
                f"no folder {folder}; name the output folders of memaudit audit --slice jobs"
            )
        found = read_jobs(folder)
        if not found:
            raise SignalStoreError(
                f"{folder} has no {JOBS_NAME}: no job of memaudit audit wrote there; name the jobs' output folder"
            )
        jobs += found
        homes += [folder] * len(found)
    first, home = jobs[0], homes[0]
    for job, where in zip(jobs, homes, strict=True):
        for field, name in _SAME:
            if getattr(job, field) != getattr(first, field):
                raise SignalStoreError(
                    f"jobs of different {name} cannot be merged: slice {first.name} in {home} has "
                    f"{_short(getattr(first, field))}, slice {job.name} in {where} has {_short(getattr(job, field))}"
                    f"{_differing(field, first, job)}; merge each audit by itself"
                )
    return Found(tuple(jobs), tuple(dict.fromkeys(homes)))


def _short(value: Any) -> str:
    return str(value)[:16] if isinstance(value, (str, int)) else "one"


def _differing(field: str, first: JobRecord, job: JobRecord) -> str:
    if field not in ("options", "reference"):
        return ""
    one: Mapping[str, Any] = getattr(first, field)
    other: Mapping[str, Any] = getattr(job, field)
    names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    return f" ({', '.join(names)} differ)"


def missing_slices(found: Found) -> list[str]:
    """Name the slices that are not whole: never started, or started and not finished."""
    count = found.jobs[0].slice_count
    started = {job.slice_index for job in found.jobs}
    complete = {job.slice_index for job in found.jobs if job.complete}
    return [
        f"{index}/{count} ({'not finished' if index in started else 'never started'})"
        for index in range(count)
        if index not in complete
    ]


def merge_slices(
    folders: Sequence[Path],
    *,
    output_dir: Path | None = None,
    stores: Sequence[Path] = (),
    manifest: str | None = None,
    skip_generation: bool = False,
) -> Any:
    """Write the report of an audit whose slices several jobs scored; nothing is forwarded.

    Args:
        folders: output folders of the jobs.
        output_dir: where the report goes; the first folder by default.
        stores: folders of signals, where they are not in the jobs' folders.
        manifest: path of the manifest, where it has moved since.
        skip_generation: leave near-verbatim matches out.

    Returns:
        The report.

    Raises:
        SignalStoreError: slices or signals are missing (each is named), or the jobs do not belong together.
        ManifestError: the manifest is another one than the jobs had.
    """
    from transformers import AutoTokenizer

    from memaudit.posthoc.strategies import AbsentStrategy
    from memaudit.session import SIGNALS_NAME, AuditSession

    found = find_jobs(folders)
    job = found.jobs[0]
    if missing := missing_slices(found):
        raise SignalStoreError(
            f"{len(missing)} of {job.slice_count} slices of {job.checkpoint} are missing: {', '.join(missing)}; "
            "run their jobs again, they go on where they stopped"
        )
    plan = Manifest.load(manifest or job.manifest)
    if plan.content_hash() != job.manifest_sha256:
        raise ManifestError(
            f"{manifest or job.manifest} is not the manifest that the jobs had ({job.manifest_sha256[:16]}); "
            "name that one"
        )
    target = output_dir or folders[0]
    store = _one_store(
        list(stores) or [folder / SIGNALS_NAME for folder in found.folders], target / SIGNALS_NAME
    )
    strategy = AbsentStrategy(store, job.weights, job.model, job.facts)
    options = _options(job.options, skip_generation)
    tokenizer = AutoTokenizer.from_pretrained(job.tokenizer)
    session = AuditSession(strategy, tokenizer, plan, output_dir=target, options=options)
    session.engine.store, session.engine.fingerprint, session.engine.fixed_batches = store, job.weights, True
    _require_signals(session, store, job)
    session.use_reference(_reference(session, store, job))
    session.audit(job.step)
    return session.report()


def _one_store(paths: Sequence[Path], target: Path) -> SignalStore:
    """Return the one store, or one in ``target`` into which the shards of all were copied."""
    distinct = list(dict.fromkeys(path.resolve() for path in paths))
    if len(distinct) == 1:
        return SignalStore(distinct[0])
    for path in distinct:
        if path == target.resolve():
            continue
        for shard in sorted(path.glob("*/*.arrow")):
            place = target / shard.parent.name / shard.name
            if place.exists():
                continue
            try:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                partial = place.with_name(f".{place.name}.tmp")
                shutil.copyfile(shard, partial)
                partial.chmod(0o600)
                partial.replace(place)
            except OSError as error:
                raise SignalStoreError(f"cannot copy {shard} to {place.parent}: {error.strerror}") from error
    return SignalStore(target)


def _options(recorded: Mapping[str, Any], skip_generation: bool) -> AuditOptions:
    values = dict(recorded)
    values["decodings"] = tuple(_decoding(name) for name in values["decodings"])
    for name in ("attacks", "prefix_fractions", "seeds"):
        values[name] = tuple(values[name])
    values["skip_generation"] = values["skip_generation"] or skip_generation
    return AuditOptions(**values)


def _decoding(name: str) -> Decoding:
    """Read a scheme's name back: ``t0.7-k50-p1``."""
    temperature, top_k, top_p = name.split("-")
    return Decoding(float(temperature[1:]), int(top_k[1:]), float(top_p[1:]))


def _require_signals(session: Any, store: SignalStore, job: JobRecord) -> None:
    keys = {probe.key: probe.id for probe in session.probes}
    known = store.get_many(keys, job.weights)
    absent = sorted(name for key, name in keys.items() if key not in known)
    if absent:
        raise SignalStoreError(
            f"{store.path} lacks the scores of {len(absent)} canaries ({', '.join(absent[:3])}"
            f"{', ...' if len(absent) > 3 else ''}) of {job.checkpoint}; run the jobs again, they score what is missing"
        )


def _reference(session: Any, store: SignalStore, job: JobRecord) -> Any:
    from memaudit.posthoc.reference import initial_reference
    from memaudit.references import Reference

    record = job.reference
    if record["mode"] == "none":
        return Reference(mode="none", identity=record["identity"], note=record["note"])
    if record["mode"] == "initial":
        checkpoint = Path(job.checkpoint)
        folders = [session.output_dir, checkpoint, *list(checkpoint.parents)[:3]]
        found, reason = initial_reference(session.probes, session.manifest, folders)
        if found is None:
            raise SignalStoreError(f"the reference from step 0 is gone: {reason}")
        return found
    known = store.get_many({probe.key for probe in session.probes}, record["fingerprint"])
    absent = [probe.id for probe in session.probes if probe.key not in known]
    if absent:
        raise SignalStoreError(
            f"{store.path} lacks the reference scores of {len(absent)} canaries, first {absent[0]}; run the jobs again"
        )
    return Reference(
        mode=record["mode"],
        identity=record["identity"],
        note=record["note"],
        signals={probe.id: known[probe.key] for probe in session.probes},
    )


def audit_folders(root: Path) -> list[Path]:
    """Return the folders under ``root``, itself included, in which jobs wrote their records.

    Raises:
        ConfigurationError: there is no such folder.
    """
    if not root.is_dir():
        raise ConfigurationError(
            f"no folder {root}; name the output folder of memaudit audit or memaudit slurm"
        )
    found = [one for one in [root, *sorted(root.iterdir())] if (one / JOBS_NAME).is_dir()]
    return found
