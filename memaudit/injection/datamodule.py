"""LightningDataModules: the rows that their set-up leaves behind are replaced, each time it runs."""

from __future__ import annotations

import types
from typing import Any

from memaudit.errors import InjectionError
from memaudit.injection import datasets_hf as hf
from memaudit.injection.inject import Job, inject_rows
from memaudit.manifest import Manifest

USUAL = (
    "train_dataset",
    "train_ds",
    "train_data",
    "dataset_train",
    "train_set",
    "ds_train",
    "train",
    "dataset",
    "datasets",
)
"""Attributes in which data modules keep their training rows."""


def into_datamodule(job: Job, module: Any, attribute: str | None) -> tuple[Any, Manifest]:
    """Plant in the training rows of a data module; return it, changed, and the manifest.

    ``prepare_data`` and ``setup("fit")`` are run once to see the rows. Lightning runs ``setup`` again, on each
    rank: it is wrapped to plant the same rows at the same places each time.

    Raises:
        InjectionError: no attribute holds the rows.
    """
    module.prepare_data()
    module.setup("fit")
    name = attribute or _find(module)
    rows = _rows(module, name)
    changed, manifest = inject_rows(job, rows)
    _store(module, name, changed)
    original = module.setup

    def setup(self: Any, stage: Any = None) -> None:
        before = _rows(self, name)
        original(stage)
        fresh = _rows(self, name)
        if fresh is before:  # it keeps the rows that it has: they hold the canaries already
            return
        again, _ = inject_rows(job, fresh)
        _store(self, name, again)

    module.setup = types.MethodType(setup, module)
    return module, manifest


def _find(module: Any) -> str:
    present = [name for name in USUAL if getattr(module, name, None) is not None]
    if not present:
        held = ", ".join(sorted(name for name in vars(module) if not name.startswith("_"))) or "none"
        raise InjectionError(
            f"{type(module).__name__} holds its training rows in no usual attribute after setup('fit'); name it "
            f"with attribute= (it has {held})"
        )
    return present[0]


def _rows(module: Any, name: str) -> Any:
    if not hasattr(module, name):
        raise InjectionError(f"{type(module).__name__} has no attribute {name!r} after setup('fit')")
    held = getattr(module, name)
    if hf.kind(held) == "dict" or isinstance(held, dict):
        if "train" not in held:
            raise InjectionError(
                f"{type(module).__name__}.{name} has no split 'train'; it has {', '.join(map(str, held))}"
            )
        return held["train"]
    return held


def _store(module: Any, name: str, rows: Any) -> None:
    held = getattr(module, name)
    if hf.kind(held) == "dict" or isinstance(held, dict):
        held["train"] = rows
    else:
        setattr(module, name, rows)
