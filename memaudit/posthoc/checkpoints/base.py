"""What every kind of checkpoint has in common: what was found, and named tensors that are read one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from memaudit.errors import CheckpointError

KINDS = ("huggingface", "adapter", "dcp", "zero", "lightning", "gguf", "quantised", "hub")


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint that was found on disk.

    Args:
        kind: one of ``KINDS``.
        path: the folder or file that holds the weights.
        config: the folder with config.json, or None where the checkpoint has none.
        files: the files with the weights, in order of name: what its fingerprint is made of.
        tag: DeepSpeed's name of the step, empty elsewhere.
        step: the step in the name of the folder (``checkpoint-30``), or None.

    Example:
        >>> Checkpoint(kind="gguf", path=Path("a.gguf"), files=(Path("a.gguf"),)).kind
        'gguf'
    """

    kind: str
    path: Path
    files: tuple[Path, ...]
    config: Path | None = None
    tag: str = ""
    step: int | None = None


@runtime_checkable
class WeightSource(Protocol):
    """Named tensors of a checkpoint, read from disk one at a time.

    ``shapes`` maps each stored tensor's name to its full shape.
    """

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Full shape of each stored tensor by name."""
        ...

    def read(self, name: str) -> Tensor:
        """Return one tensor in full, on the CPU.

        Raises:
            CheckpointError: its file is missing or damaged.
        """
        ...

    def read_box(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        """Return the box of one tensor that starts at ``offsets`` and has the shape ``sizes``, on the CPU."""
        ...


class DictSource:
    """A source over tensors that are in memory, or mapped to it.

    Args:
        tensors: full tensors by name.

    Example:
        >>> import torch
        >>> DictSource({"a": torch.arange(6.0).view(2, 3)}).read_box("a", (1, 0), (1, 2)).tolist()
        [[3.0, 4.0]]
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Full shape of each tensor by name."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self._tensors[name]

    def read_box(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        """Return a box of one tensor."""
        return box(self.read(name), offsets, sizes)


def box(tensor: Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """Cut the box that starts at ``offsets`` and has the shape ``sizes`` out of a tensor."""
    for dim, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, start, size)
    return tensor


def some(names: object, limit: int = 3) -> str:
    """Write the first few names of a collection, and how many more there are.

    Example:
        >>> some(["b", "a", "c", "d"])
        'a, b, c and 1 more'
    """
    ordered = sorted(str(name) for name in names)  # type: ignore[attr-defined]
    more = len(ordered) - limit
    return ", ".join(ordered[:limit]) + (f" and {more} more" if more > 0 else "")


def damaged(path: Path, error: Exception) -> CheckpointError:
    """Return the error for a weight file that cannot be read."""
    reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
    return CheckpointError(
        f"cannot read {path}: {reason}; the file is cut off or of another kind, copy it again"
    )
