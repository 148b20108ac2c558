"""Pouring a checkpoint's tensors into a model, whole, in FSDP2's shards or in ZeRO-3's partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from memaudit.errors import StrategyError
from memaudit.posthoc.checkpoints.base import WeightSource
from memaudit.posthoc.checkpoints.dcp import DcpSource
from memaudit.posthoc.checkpoints.skeleton import blocks, materialise, tensors

Sources = Mapping[str, tuple[WeightSource, str]]
"""Which source, and which name in it, fills each of the model's tensors."""


def fill_whole(model: nn.Module, sources: Sources, device: torch.device) -> nn.Module:
    """Fill a meta model on one device; a tensor at a time passes through the CPU."""
    materialise(model, device)
    with torch.no_grad():
        for name, tensor in tensors(model):
            if name in sources:
                source, stored = sources[name]
                tensor.copy_(source.read(stored))
    return model


def fill_fsdp2(model: nn.Module, sources: Sources, device: torch.device) -> nn.Module:
    """Shard a meta model over the process group and fill each rank's shards from disk.

    A rank reads the rows that it keeps. DCP checkpoints are read by torch's own planner, at any world size.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for block in blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=device)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        planned: dict[DcpSource, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors(model):
            if name not in sources:
                continue
            source, stored = sources[name]
            if isinstance(source, DcpSource):
                planned.setdefault(source, {})[stored] = tensor.data
            else:
                _fill_shard(tensor, source, stored)
        for source, targets in planned.items():
            source.fill(targets, distributed=True)
    return model


def _fill_shard(tensor: torch.Tensor, source: WeightSource, stored: str) -> None:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(tensor, DTensor):
        tensor.copy_(source.read(stored))
        return
    sizes, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    local = tensor.to_local()
    if local.numel():
        local.copy_(source.read_box(stored, tuple(offsets), tuple(sizes)))


def zero3_config() -> dict[str, Any]:
    """Return the DeepSpeed configuration of a ZeRO-3 model that is only forwarded."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }


def fill_zero3(model: nn.Module, sources: Sources, config: dict[str, Any]) -> Any:
    """Fill a model that was built under ``deepspeed.zero.Init``, one parameter at a time, from rank 0.

    Returns:
        The DeepSpeed engine.
    """
    import deepspeed

    rank = torch.distributed.get_rank()
    for name, parameter in model.named_parameters():
        if not hasattr(parameter, "ds_id"):
            raise StrategyError(f"parameter {name} was not partitioned by ZeRO-3; use --strategy fsdp2")
        source, stored = sources[name]
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if rank == 0:
                parameter.copy_(source.read(stored))
    engine, *_ = deepspeed.initialize(model=model, config=config)
    return engine
