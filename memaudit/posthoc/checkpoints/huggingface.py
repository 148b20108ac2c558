"""Hugging Face folders: config.json beside safetensors or torch files, whole or in shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from memaudit.errors import CheckpointError
from memaudit.posthoc.checkpoints.base import Checkpoint, DictSource, WeightSource, box, damaged, some

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SINGLE = ("model.safetensors", "pytorch_model.bin")


def detect(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a folder that has config.json and weights, or None.

    Raises:
        CheckpointError: shards that the index lists are missing.
    """
    if not (path / "config.json").is_file():
        return None
    files = weight_files(path)
    if not files:
        return None
    return Checkpoint(kind="huggingface", path=path, config=path, files=files)


def weight_files(path: Path) -> tuple[Path, ...]:
    """Return a folder's weight files, all of them there.

    Raises:
        CheckpointError: shards that the index lists are missing, or the index is damaged.
    """
    for name in _SINGLE:
        if (path / name).is_file():
            return (path / name,)
    for name in _INDEXES:
        index = path / name
        if index.is_file():
            return tuple(path / shard for shard in sorted(set(_weight_map(index).values())))
    return ()


def _weight_map(index: Path) -> dict[str, str]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise damaged(index, error) from error
    listed = set(weight_map.values())
    missing = {shard for shard in listed if not (index.parent / shard).is_file()}
    if missing:
        raise CheckpointError(
            f"{index.parent} lacks {len(missing)} of the {len(listed)} shards that {index.name} lists: "
            f"{some(missing, 8)}; copy the missing files"
        )
    return weight_map


class SafetensorsSource:
    """Tensors of safetensors files, of which any box is read without the rest.

    Args:
        files: the files; a name may occur in one of them only.

    Raises:
        CheckpointError: a file is cut off or of another kind.
    """

    def __init__(self, files: tuple[Path, ...]) -> None:
        from safetensors import SafetensorError, safe_open

        self._handles: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for file in files:
            try:
                handle = safe_open(file, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise damaged(file, error) from error
            for name in handle.keys():  # noqa: SIM118 - a handle is no mapping
                self._handles[name] = handle
                self._shapes[name] = tuple(handle.get_slice(name).get_shape())

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Full shape of each tensor by name."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        tensor: Tensor = self._handles[name].get_tensor(name)
        return tensor

    def read_box(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        """Return a box of one tensor; only its rows are read."""
        if not sizes:
            return self.read(name)
        rows: Tensor = self._handles[name].get_slice(name)[offsets[0] : offsets[0] + sizes[0]]
        return box(rows, (0, *offsets[1:]), sizes)


def open_source(checkpoint: Checkpoint) -> WeightSource:
    """Return the tensors of a Hugging Face folder.

    Raises:
        CheckpointError: a file is cut off or of another kind.
    """
    return open_files(checkpoint.files)


def open_files(files: tuple[Path, ...]) -> WeightSource:
    """Return the tensors of safetensors or torch files; torch files are mapped, not read."""
    if all(file.suffix == ".safetensors" for file in files):
        return SafetensorsSource(files)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(load_torch_file(file))
    return DictSource(tensors)


def load_torch_file(file: Path, *, trust_pickle: bool = False) -> dict[str, Any]:
    """Return what torch.save wrote, its tensors mapped to memory.

    Raises:
        CheckpointError: the file is damaged, or holds Python objects and ``trust_pickle`` is False.
    """
    import pickle

    import torch

    try:
        loaded: dict[str, Any] = torch.load(
            file, map_location="cpu", mmap=True, weights_only=not trust_pickle
        )
    except pickle.UnpicklingError as error:
        if "weights" not in str(error).lower():
            raise damaged(file, error) from error
        raise CheckpointError(
            f"{file} holds Python objects besides tensors, and loading those runs code; if you trust the file, "
            "pass --trust-pickle"
        ) from error
    except Exception as error:
        raise damaged(file, error) from error
    return loaded
