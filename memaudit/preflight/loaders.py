"""Data loaders, and the trainers of Lightning: their dataset and collator, never their iterators."""

from __future__ import annotations

from typing import Any

from memaudit.preflight.findings import Finding
from memaudit.preflight.sources import Source


def is_loader(value: object) -> bool:
    """Whether it is a torch DataLoader, or something that has a dataset and a collator like one."""
    return hasattr(value, "dataset") and hasattr(value, "collate_fn")


def is_lightning(value: object) -> bool:
    """Whether it is a Lightning Trainer."""
    return any(
        cls.__module__.split(".")[0] in ("lightning", "pytorch_lightning") and cls.__name__ == "Trainer"
        for cls in type(value).__mro__
    )


def source_of_loader(loader: Any, max_rows: int) -> Source:
    """Return the source that a data loader draws from."""
    return Source(loader.dataset, loader.collate_fn, max_rows)


def source_of_lightning(trainer: Any, max_rows: int) -> tuple[Source | None, list[Finding]]:
    """Return the source of a Lightning Trainer's training loader: from its data module or its module."""
    loader = getattr(trainer, "train_dataloader", None)
    for owner in (getattr(trainer, "datamodule", None), getattr(trainer, "lightning_module", None)):
        if loader is None and owner is not None and callable(getattr(owner, "train_dataloader", None)):
            loader = owner.train_dataloader()
    while isinstance(loader, (list, tuple)) and loader:
        loader = loader[0]
    if loader is None or not is_loader(loader):
        return None, [
            Finding(
                "no-train-loader",
                "warning",
                "the Lightning trainer shows no torch DataLoader for training, so its rows were not looked at",
                "run the pre-flight on the data loader itself: run_preflight(loader, manifest, tokenizer=...)",
            )
        ]
    return source_of_loader(loader, max_rows), []
