"""A name for the weights as they are: the key under which their signals may be used again."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from memaudit.strategies.base import Strategy

_CHUNK = 1 << 22


def model_fingerprint(strategy: Strategy) -> str:
    """Return a fingerprint of all parameters' values, taken on the shards; the same on every rank.

    Two checksums of the bits of every local tensor are made where the tensor lies, and the ranks' results
    are joined; equal replicas count once, so one process and DDP agree. It changes with any bit of any
    parameter and with how the parameters are sharded. It guards against a stale cache, not against forgery.

    Args:
        strategy: how the model is spread; every rank calls.

    Returns:
        64 hexadecimal digits.
    """
    mine = hashlib.sha256()
    for name, parameter in strategy.model.named_parameters():
        local = local_tensor(parameter)
        mine.update(f"{name}|{tuple(local.shape)}|{local.dtype}|{_checksum(local)}\n".encode())
    everyone = sorted(set(strategy.gather([mine.hexdigest()])))
    return hashlib.sha256("\n".join(everyone).encode()).hexdigest()


def local_tensor(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter: a DTensor's local part, ZeRO-3's partition, or all of it."""
    partition = getattr(parameter, "ds_tensor", None)
    if isinstance(partition, Tensor):
        return partition.detach()
    detached = parameter.detach()
    return detached.to_local() if hasattr(detached, "to_local") else detached


def _checksum(tensor: Tensor) -> tuple[int, int]:
    """Sum of the bits as integers, plain and weighted by position, modulo 2**64."""
    if tensor.numel() == 0 or tensor.is_meta:
        return (0, 0)
    flat = tensor.contiguous().view(-1)
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = flat.view(kinds[flat.element_size()])
    plain = weighted = 0
    for start in range(0, bits.numel(), _CHUNK):
        chunk = bits[start : start + _CHUNK].long()
        position = torch.arange(start + 1, start + 1 + chunk.numel(), device=chunk.device)
        plain += int(chunk.sum())
        weighted += int((chunk * position).sum())
    return plain & (2**64 - 1), weighted & (2**64 - 1)
