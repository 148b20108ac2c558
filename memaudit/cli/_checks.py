"""The checks of `memaudit doctor`, each a function that looks and says what it found."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.version import Version

State = Literal["ok", "missing", "bad", "info"]

KNOWN_BAD = (
    (
        {"transformers": ">=5.16,<5.17", "torch": ">=2.6.0.dev0,<2.6.0rc1"},
        "transformers 5.16 with a torch 2.6 development build hangs on importing FSDP; install a released torch",
    ),
    (
        {"numpy": ">=2", "torch": "<2.3"},
        "torch before 2.3 was built for numpy 1 and cannot exchange arrays with numpy 2; upgrade torch",
    ),
)
"""Combinations of versions that are known to fail, with what to do."""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table; ``bad`` makes it fail."""

    what: str
    state: State
    detail: str


def versions() -> Iterator[Finding]:
    """Compare what is installed with what memaudit asks for; a missing extra is named with its command."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("memaudit", "ok", importlib.metadata.version("memaudit"))
    extras: dict[str, list[str]] = {}
    seen: set[str] = set()
    for text in importlib.metadata.requires("memaudit") or []:
        requirement = Requirement(text)
        extra = _extra_of(requirement)
        if requirement.name == "memaudit" or extra in ("dev", "all"):
            continue
        installed = _version(requirement.name)
        if installed is None:
            if extra is None:
                yield Finding(requirement.name, "bad", f"missing; run: pip install '{requirement.name}'")
            else:
                extras.setdefault(extra, []).append(requirement.name)
        elif requirement.name in seen:
            continue
        elif not requirement.specifier.contains(installed, prereleases=True):
            wanted = f"{installed}, but {requirement.specifier} is asked for; "
            yield Finding(
                requirement.name,
                "bad",
                f"{wanted}run: pip install '{requirement.name}{requirement.specifier}'",
            )
        else:
            seen.add(requirement.name)
            yield Finding(requirement.name, "ok", str(installed))
    for extra, names in sorted(extras.items()):
        yield Finding(
            f"extra {extra}",
            "missing",
            f"{', '.join(names)} not installed; run: pip install 'memaudit[{extra}]'",
        )


def combinations() -> Iterator[Finding]:
    """Name each known-bad combination that is installed."""
    found = False
    for needs, advice in KNOWN_BAD:
        installed = {name: _version(name) for name in needs}
        if all(
            version is not None
            and Requirement(f"{name}{needs[name]}").specifier.contains(version, prereleases=True)
            for name, version in installed.items()
        ):
            found = True
            pair = " with ".join(f"{name} {version}" for name, version in installed.items())
            yield Finding("combination", "bad", f"{pair}: {advice}")
    if not found:
        yield Finding("combinations", "ok", f"none of the {len(KNOWN_BAD)} known-bad ones")


def devices() -> Iterator[Finding]:
    """Say on what a model could run here."""
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    yield Finding(
        "cpu",
        "ok",
        f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} (OMP_NUM_THREADS {threads})",
    )
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(index)
            yield Finding(f"cuda:{index}", "ok", f"{card.name}, {card.total_memory / 2**30:.0f} GiB")
    else:
        yield Finding("cuda", "info", "none; audits run on the CPU, fp32")
    if torch.backends.mps.is_available():
        yield Finding("mps", "ok", "available")


def back_ends() -> Iterator[Finding]:
    """Say which distributed back ends torch was built with."""
    import torch.distributed as dist

    if not dist.is_available():
        yield Finding(
            "torch.distributed", "bad", "not in this build of torch; sharded models cannot be audited"
        )
        return
    for name, there in (
        ("gloo", dist.is_gloo_available()),
        ("nccl", dist.is_nccl_available()),
        ("mpi", dist.is_mpi_available()),
    ):
        yield Finding(
            f"back end {name}", "ok" if there else "info", "available" if there else "not in this torch"
        )


def folder(path: str) -> Iterator[Finding]:
    """Say whether the output folder can be written, and how much space it has."""
    target = Path(path).resolve()
    while not target.exists():
        target = target.parent
    free = shutil.disk_usage(target).free / 2**30
    if os.access(target, os.W_OK):
        yield Finding("output folder", "ok", f"{target}, {free:.1f} GiB free")
    else:
        yield Finding("output folder", "bad", f"{target} cannot be written; name another with --output-dir")


def written_report(path: str) -> Iterator[Finding]:
    """Check a report: schema, checksum, sidecar."""
    from memaudit.report.store import load_report, verify_report

    report = load_report(path)
    yield Finding("report schema", "ok", f"{path} fits schema {report.schema_version}")
    found = verify_report(path)
    yield Finding("report checksum", "ok" if found.intact else "bad", "; ".join(found.problems) or "intact")


def _extra_of(requirement: Requirement) -> str | None:
    marker = str(requirement.marker or "")
    if "extra ==" not in marker:
        return None
    return marker.split("extra ==")[1].strip().split()[0].strip("'\"")


def _version(name: str) -> Version | None:
    try:
        return Version(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return None
