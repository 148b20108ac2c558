"""Collectives over every rank on the CPU: gathering picklable rows, sums, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

_CPU_GROUPS: dict[int, tuple[Any, Any]] = {}


def is_distributed() -> bool:
    """Whether a process group of more than one rank is up."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def cpu_group() -> Any:
    """Return a group of every rank that carries CPU tensors: the default one, or a gloo group beside NCCL.

    Making one is itself a collective: every rank comes here at the same time, when its strategy is made.
    """
    world = dist.group.WORLD
    if "gloo" in str(dist.get_backend_config(world)):
        return world
    # Kept with the world that it belongs to: a group that was destroyed and made anew has another.
    kept = _CPU_GROUPS.get(id(world))
    if kept is None or kept[0] is not world:
        _CPU_GROUPS.clear()
        _CPU_GROUPS[id(world)] = kept = (world, dist.new_group(backend="gloo"))
    return kept[1]


class Collectives:
    """The collectives of one strategy; on a single process each is the identity.

    Example:
        >>> Collectives().gather([1, 2])
        [1, 2]
        >>> Collectives().sum([1.5])
        [1.5]
    """

    def __init__(self) -> None:
        self.active = is_distributed()
        self.rank = dist.get_rank() if self.active else 0
        self.world_size = dist.get_world_size() if self.active else 1
        self._group = cpu_group() if self.active else None

    def gather(self, rows: Sequence[T]) -> list[T]:
        """Return every rank's rows in order of rank."""
        if not self.active:
            return list(rows)
        parts: list[Any] = [None] * self.world_size
        dist.all_gather_object(parts, list(rows), group=self._group)
        return [row for part in parts for row in part]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return the elementwise sum over ranks, in float64."""
        return self._reduce(values, dist.ReduceOp.SUM if self.active else None)

    def largest(self, value: int) -> int:
        """Return the largest value over ranks."""
        return int(self._reduce([float(value)], dist.ReduceOp.MAX if self.active else None)[0])

    def _reduce(self, values: Sequence[float], operation: Any) -> list[float]:
        if not self.active or not values:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64)
        dist.all_reduce(tensor, op=operation, group=self._group)
        result: list[float] = tensor.tolist()
        return result

    def barrier(self) -> None:
        """Wait for every rank."""
        if self.active:
            dist.barrier(group=self._group)


_PIECE = 1 << 24


def fingerprint(tensors: Sequence[Tensor]) -> list[int]:
    """Return two integers that change when a bit of the tensors, or their order, changes.

    Example:
        >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
        >>> fingerprint([a]) == fingerprint([a.clone()]), fingerprint([a]) == fingerprint([b])
        (True, False)
    """
    modulus = (1 << 61) - 1
    plain = weighted = 0
    for tensor in tensors:
        for piece in tensor.detach().contiguous().reshape(-1).view(torch.uint8).split(_PIECE):
            flat = piece.to(torch.int64)  # eight times the memory: a piece at a time
            index = torch.arange(flat.numel(), device=flat.device) % 65_521 + 1
            plain = (plain * 31 + int(flat.sum())) % modulus
            weighted = (weighted * 37 + int((flat * index).sum())) % modulus
    return [plain, weighted]
