"""PyTorch distributed checkpoints (DCP), as FSDP, accelerate, Lightning and torchtitan write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from memaudit.errors import CheckpointError
from memaudit.posthoc.checkpoints.base import Checkpoint, box, damaged, some


def detect(path: Path) -> Checkpoint | None:
    """Return the DCP checkpoint in a folder or in the one subfolder of it that has the model, or None.

    accelerate writes ``pytorch_model_fsdp_0/`` beside ``optimizer_0/``; the optimizer's is passed over.

    Raises:
        CheckpointError: .metadata or files that it lists are missing.
    """
    if not path.is_dir():
        return None
    here = _is_dcp(path)
    folders = [path] if here else [one for one in sorted(path.iterdir()) if one.is_dir() and _is_dcp(one)]
    folders = [one for one in folders if here or not one.name.startswith("optim")]
    if not folders:
        return None
    if len(folders) > 1:
        raise CheckpointError(
            f"{path} holds {len(folders)} distributed checkpoints ({some(one.name for one in folders)}); name one"
        )
    folder = folders[0]
    present = {one.name for one in folder.glob("*.distcp")}
    if not (folder / ".metadata").is_file():
        raise CheckpointError(
            f"{folder} has {len(present)} .distcp files and no .metadata, which rank 0 writes last: the save did not "
            "end, or the hidden file was not copied (cp -a, rsync -a copy it)"
        )
    listed = _listed_files(folder)
    if missing := listed - present:
        raise CheckpointError(
            f"{folder} lacks {len(missing)} of the {len(listed)} shards that .metadata lists: {some(missing, 8)}; "
            "copy the missing files"
        )
    files = tuple(sorted([folder / ".metadata", *(folder / name for name in listed)]))
    return Checkpoint(kind="dcp", path=folder, files=files)


def _is_dcp(path: Path) -> bool:
    return (path / ".metadata").is_file() or any(path.glob("*.distcp"))


def read_metadata(folder: Path) -> Any:
    """Return the checkpoint's metadata.

    Raises:
        CheckpointError: it is damaged.
    """
    from torch.distributed.checkpoint import FileSystemReader

    try:
        return FileSystemReader(folder).read_metadata()
    except Exception as error:
        raise damaged(folder / ".metadata", error) from error


def _listed_files(folder: Path) -> set[str]:
    storage = read_metadata(folder).storage_data or {}
    return {str(info.relative_path) for info in storage.values()}


class DcpSource:
    """Tensors of a DCP checkpoint. :meth:`fill` reads straight into shards; nothing is consolidated.

    Args:
        checkpoint: what :func:`detect` found.

    Raises:
        CheckpointError: its metadata is damaged.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        self._folder = checkpoint.path
        entries = read_metadata(checkpoint.path).state_dict_metadata
        self._entries = {k: v for k, v in entries.items() if isinstance(v, TensorStorageMetadata)}
        self._shapes = {name: tuple(entry.size) for name, entry in self._entries.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Full shape of each tensor by name; the optimizer's are among them where it was saved too."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Return one tensor in full."""
        import torch

        entry = self._entries[name]
        tensor = torch.empty(entry.size, dtype=entry.properties.dtype)
        self.fill({name: tensor}, distributed=False)
        return tensor

    def read_box(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        """Return a box of one tensor, which is read in full for it."""
        return box(self.read(name), offsets, sizes)

    def fill(self, targets: Mapping[str, Tensor], *, distributed: bool) -> None:
        """Read into plain tensors or DTensors, in place.

        Args:
            targets: stored name to tensor of the stored shape.
            distributed: whether every rank of the process group makes this call, which DTensors need.

        Raises:
            CheckpointError: a file is damaged.
        """
        import torch.distributed.checkpoint as dcp

        try:
            dcp.load(dict(targets), checkpoint_id=self._folder, no_dist=not distributed)
        except Exception as error:
            raise damaged(self._folder, error) from error
