"""This process among the job's ranks: joining the process group that torchrun, accelerate or SLURM set up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from memaudit.errors import AuditError, ConfigurationError

T = TypeVar("T")


def world_size() -> int:
    """Return the number of ranks that the launcher started.

    Raises:
        ConfigurationError: WORLD_SIZE is set and RANK is not: half a launcher's environment.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and "RANK" not in os.environ:
        raise ConfigurationError(
            f"WORLD_SIZE={world} is set and RANK is not; start with torchrun, accelerate launch or memaudit slurm"
        )
    return world


def local_device() -> torch.device:
    """Return this rank's device: its GPU, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def process_group(timeout: float = 1800.0) -> Iterator[int]:
    """Join the process group for as long as the block runs; yield this process's rank.

    Does nothing in a world of one, and leaves a group alone that is there already.

    Args:
        timeout: seconds that a collective waits for the other ranks.

    Raises:
        AuditError: the other ranks were not to be met.
    """
    if world_size() == 1 or dist.is_initialized():
        yield dist.get_rank() if dist.is_initialized() else 0
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    local_device()
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise AuditError(
            f"rank {os.environ.get('RANK')} could not meet the other ranks ({reason}); the first error of another "
            "rank says why, else check MASTER_ADDR and MASTER_PORT"
        ) from error
    try:
        yield dist.get_rank()
    finally:
        # Without it some jobs abort at exit; after a failure the others may be gone, and waiting is no use.
        dist.destroy_process_group()


def from_rank_zero(value: T) -> T:
    """Return rank 0's value on every rank."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return value
    boxed: list[Any] = [value]
    dist.broadcast_object_list(boxed, src=0)
    received: T = boxed[0]
    return received
