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
    """Sum of the bits as 64-bit words, plain and weighted by position, modulo 2**64."""
    if tensor.numel() == 0 or tensor.is_meta:
        return (0, 0)
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    plain = weighted = 0
    # Where a shard does not begin at a multiple of eight bytes, its bytes are copied to where they do.
    aligned = flat.storage_offset() % 8 == 0
    words = (flat[:whole] if aligned else flat[:whole].clone()).view(torch.int64)
    position = torch.arange(1, 1 + min(_CHUNK, words.numel()), device=flat.device)
    for start in range(0, words.numel(), _CHUNK):
        chunk = words[start : start + _CHUNK]
        total = int(chunk.sum())
        plain += total
        weighted += int((chunk * position[: chunk.numel()]).sum()) + start * total
    rest = int.from_bytes(bytes(flat[whole:].cpu().tolist()), "little")
    plain += rest
    weighted += rest * (words.numel() + 1)
    return plain & (2**64 - 1), weighted & (2**64 - 1)
