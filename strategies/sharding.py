"""What FSDP2 and tensor parallelism share: DTensor parameters, their counts, gradients and resharding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from memaudit.strategies.core import ModelStrategy, check_spans
from memaudit.strategies.gradients import record_loss, squared_norm


def param_groups(module: Any) -> list[Any]:
    """Return the FSDP2 parameter groups of one module (newer torch has several, older one)."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def fsdp_modules(root: nn.Module) -> list[FSDPModule]:
    """Return every FSDP2 module at or below ``root``."""
    return [module for module in root.modules() if isinstance(module, FSDPModule)]


def data_mesh(module: nn.Module) -> Any:
    """Return the mesh over which FSDP2 shards (and replicates) data, of the first module with parameters."""
    for inner in module.modules():
        if isinstance(inner, FSDPModule):
            for group in param_groups(inner):
                return group.mesh_info.mesh
    raise ValueError("no FSDP2 module below it holds parameters")


def place_in_mesh(mesh: Any) -> int:
    """Return this rank's index among the ranks of a mesh."""
    ranks: list[int] = mesh.mesh.flatten().tolist()
    return ranks.index(dist.get_rank())


def reshard(root: nn.Module) -> None:
    """Free every unsharded parameter: after a forward without gradients FSDP2's root keeps them."""
    for module in fsdp_modules(root):
        module.reshard()


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def counts(model: nn.Module) -> tuple[int, int]:
    """Return this rank's and the whole model's number of parameters."""
    parameters = list(model.parameters())
    return sum(local_tensor(p).numel() for p in parameters), sum(p.numel() for p in parameters)


def copies(tensor: Tensor, world_size: int) -> int:
    """Return how many ranks hold each element of a tensor."""
    if not isinstance(tensor, DTensor):
        return world_size
    mesh = tensor.device_mesh
    sharded = [mesh.size(i) for i, placement in enumerate(tensor.placements) if not placement.is_replicate()]
    return world_size // math.prod(sharded)


def local_share(gradient: Tensor, world_size: int) -> float:
    """Return what this rank adds to the squared norm, so that the sum over ranks counts each element once."""
    if isinstance(gradient, DTensor):
        if any(placement.is_partial() for placement in gradient.placements):
            whole = [Replicate() if p.is_partial() else p for p in gradient.placements]
            gradient = gradient.redistribute(placements=whole)
        return squared_norm(gradient.to_local()) / copies(gradient, world_size)
    return squared_norm(gradient) / world_size


@contextmanager
def gradients_aside(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Move every ``.grad`` aside and put the same tensors back, so that a backward here leaves no trace."""
    kept = [(parameter, parameter.grad) for parameter in parameters]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


_GROUP_FLAGS = {"reduce_grads": True, "all_reduce_grads": True, "_partial_reduce_output": None}


@contextmanager
def reduction_alone(root: nn.Module) -> Iterator[None]:
    """Let FSDP2 reduce what one backward leaves, and nothing that gradient accumulation has kept unreduced."""
    groups = [group for module in fsdp_modules(root) for group in param_groups(module)]
    flags = [(group, {name: getattr(group, name) for name in _GROUP_FLAGS}) for group in groups]
    held = [p for group in groups for p in group.fsdp_params]
    pending = [(p, p.unsharded_accumulated_grad) for p in held]
    # Without a change of precision, unreduced gradients stay on the unsharded parameters themselves.
    whole = [p._unsharded_param for p in held if hasattr(p, "_unsharded_param")]
    contexts = [module._get_fsdp_state()._state_ctx for module in fsdp_modules(root)]
    last = [(context, context.is_last_backward) for context in contexts]
    try:
        for group, _ in flags:
            for name, value in _GROUP_FLAGS.items():
                setattr(group, name, value)
        for fsdp_param, _ in pending:
            fsdp_param.unsharded_accumulated_grad = None
        for context, _ in last:
            context.is_last_backward = True
        with gradients_aside(whole):
            yield
    finally:
        for group, values in flags:
            for name, value in values.items():
                setattr(group, name, value)
        for fsdp_param, gradient in pending:
            fsdp_param.unsharded_accumulated_grad = gradient
        for context, value in last:
            context.is_last_backward = value


def backward_share(loss: Tensor, root: nn.Module, world_size: int) -> float:
    """Run one backward and return this rank's share of the squared gradient norm; gradients are dropped."""
    loss.backward()
    share = 0.0
    for parameter in root.parameters():
        if parameter.grad is not None:
            share += local_share(parameter.grad, world_size)
            parameter.grad = None
    return share


def full_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the full state dict on rank 0, on the CPU, gathered one tensor at a time; empty elsewhere."""
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        value = tensor.detach()
        if isinstance(value, DTensor):
            # Parameters offloaded to the CPU travel over the mesh's own device.
            whole: DTensor = value.to(value.device_mesh.device_type)  # type: ignore[assignment]
            value = whole.full_tensor()
        if dist.get_rank() == 0:
            state[name] = value.cpu().clone()
        del value
    return state


def device_of(mesh: Any) -> torch.device:
    """Return this rank's device of a mesh: where an offloaded model computes."""
    kind = str(mesh.device_type)
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.get_device_module(kind).current_device())


def is_on_cpu(model: nn.Module) -> bool:
    """Whether the model computes on the CPU."""
    return all(parameter.device == torch.device("cpu") for parameter in model.parameters())


class DTensorStrategy(ModelStrategy):
    """A model whose parameters are DTensors: every rank runs the same backward on its shards of them."""

    sharded = True
    lockstep = True

    def _after(self) -> None:
        reshard(self._outer)

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """Return each record's squared gradient norm: every rank runs the same backward on its shards."""
        check_spans(input_ids, spans)
        reshard(self._outer)  # so that the parameters met below are the shards
        shares: list[float] = []
        with (
            self._open(gradients=True) as forward,
            reduction_alone(self._outer),
            gradients_aside(list(self._outer.parameters())),
        ):
            for ids, span in zip(input_ids, spans, strict=True):
                shares.append(backward_share(record_loss(forward, ids, span), self._outer, self.world_size))
                reshard(self._outer)
        return self._collectives.sum(shares)

    def consolidate(self) -> dict[str, Tensor]:
        """Return the full state dict on rank 0, gathered one tensor at a time."""
        reshard(self._outer)
        return full_state(self._model)

    def _counts(self) -> tuple[int, int]:
        reshard(self._outer)
        return counts(self._model)
