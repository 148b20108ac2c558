"""Fully sharded data parallelism, both of PyTorch's: FSDP2 (fully_shard, hybrid meshes too) and FSDP1."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memaudit.strategies import sharding
from memaudit.strategies.core import ModelStrategy, check_spans
from memaudit.strategies.gradients import record_loss, squared_norm


class FSDP2Strategy(sharding.DTensorStrategy):
    """``fully_shard``: parameters are DTensors that the root's hooks gather layer by layer.

    Each rank scores its own records in lockstep, and the model is resharded after an audit, since a forward
    without gradients leaves the root's parameters whole.
    """

    name = "fsdp2"
    synced_generation = True
    generate_through_root = True

    def _device(self) -> torch.device | None:
        return sharding.device_of(sharding.data_mesh(self._outer))

    def _details(self) -> Mapping[str, Any]:
        mesh = sharding.data_mesh(self._outer)
        return {"mesh": list(mesh.shape), "hybrid": mesh.ndim > 1}


class FSDP1Strategy(ModelStrategy):
    """``FullyShardedDataParallel``: flat parameters that each wrapper gathers around its own forward."""

    name = "fsdp1"
    sharded = True
    lockstep = True
    synced_generation = True

    def _after(self) -> None:
        from torch.distributed.fsdp._runtime_utils import _reshard

        for module in _wrappers(self._outer):
            handle = module._handle
            if handle is not None and handle.uses_sharded_strategy and _is_unsharded(handle):
                _reshard(module, handle, True)

    def _device(self) -> torch.device | None:
        for module in _wrappers(self._outer):
            device = getattr(module, "compute_device", None)
            return torch.device(device) if device is not None else None
        return None

    def _generation_scope(self) -> AbstractContextManager[Any]:
        from torch.distributed.fsdp import FullyShardedDataParallel

        if not isinstance(self._root, FullyShardedDataParallel):
            return nullcontext()
        # The root's own parameters alone: layers gather themselves when generate calls them.
        scope: AbstractContextManager[Any] = FullyShardedDataParallel.summon_full_params(
            self._root, writeback=False, recurse=False
        )
        return scope

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """Return each record's squared gradient norm: every rank runs the same backward on its shards."""
        check_spans(input_ids, spans)
        shares: list[float] = []
        with self._open(gradients=True) as forward, _flat_gradients_aside(self._outer):
            for ids, span in zip(input_ids, spans, strict=True):
                record_loss(forward, ids, span).backward()
                shares.append(self._share())
                _drop_gradients(self._outer)
        return self._collectives.sum(shares)

    def _share(self) -> float:
        """Return this rank's part of the squared norm, so that the sum over ranks counts each element once."""
        weight: dict[int, float] = {}
        for module in _wrappers(self._outer):
            handle = module._handle
            if handle is None:
                continue
            holders = handle.process_group.size() if handle.uses_sharded_strategy else 1
            for parameter in _parameters(handle):
                weight[id(parameter)] = holders / self.world_size
        return sum(
            squared_norm(parameter.grad) * weight.get(id(parameter), 1 / self.world_size)
            for parameter in self._outer.parameters()
            if parameter.grad is not None
        )

    def consolidate(self) -> dict[str, Tensor]:
        """Return the full state dict on rank 0, on the CPU."""
        from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType

        # Offloading a model that already is on the CPU crashes the interpreter (torch 2.13).
        offload = not sharding.is_on_cpu(self._outer)
        settings = FullStateDictConfig(offload_to_cpu=offload, rank0_only=offload)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch points to what crashes on the CPU here
            with FullyShardedDataParallel.state_dict_type(
                self._outer, StateDictType.FULL_STATE_DICT, settings
            ):
                state = self._outer.state_dict()
        if self.rank != 0:
            return {}
        prefix = _path_of(self._host, self._model) if self._host is not None else ""
        return {
            name[len(prefix) :]: tensor.detach().cpu().clone()
            for name, tensor in state.items()
            if name.startswith(prefix)
        }

    def _counts(self) -> tuple[int, int]:
        handles = [module._handle for module in _wrappers(self._outer) if module._handle is not None]
        local = sum(handle.flat_param._sharded_size.numel() for handle in handles)
        total = 0
        for handle in handles:
            flat = handle.flat_param
            padding = flat._is_padding_mask
            total += sum(n for n, pad in zip(flat._numels_with_padding, padding, strict=True) if not pad)
        return local, total

    def _details(self) -> Mapping[str, Any]:
        kinds = {module.sharding_strategy.name for module in _wrappers(self._outer)}
        return {"sharding_strategy": sorted(kinds)}


def _wrappers(root: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return list(FullyShardedDataParallel.fsdp_modules(root))


def _is_unsharded(handle: Any) -> bool:
    # Before the first forward there is nothing to free.
    return hasattr(handle.flat_param, "_full_param_padded") and not handle.needs_unshard()


def _parameters(handle: Any) -> list[nn.Parameter]:
    return list(handle.flat_param._params) if handle._use_orig_params else [handle.flat_param]


def _path_of(host: nn.Module, model: nn.Module) -> str:
    for name, module in host.named_modules():
        if module is model and name:
            path: str = name.replace("_fsdp_wrapped_module.", "")
            return f"{path}."
    return ""


def _drop_gradients(root: nn.Module) -> None:
    for parameter in root.parameters():
        parameter.grad = None
    for module in _wrappers(root):
        if module._handle is not None:
            flat = module._handle.flat_param
            flat.grad = None
            flat.__dict__.pop("_saved_grad_shard", None)
            if getattr(flat, "_cpu_grad", None) is not None:
                flat._cpu_grad.zero_()  # where it is on the model's own device, the next backward adds to it


def _put_back(parameter: nn.Parameter, gradient: Tensor | None) -> None:
    """Set a gradient, also one of another size: without synchronisation FSDP1 keeps them unsharded."""
    if gradient is None or gradient.shape == parameter.shape:
        parameter.grad = gradient
        return
    parameter.grad = torch.empty_like(parameter)
    parameter.grad.data = gradient.data


_FLAGS = ("_saved_grad_shard", "_post_backward_called", "_is_grad_none_mask")


@contextmanager
def _flat_gradients_aside(root: nn.Module) -> Iterator[None]:
    """Move gradients of flat and original parameters aside, and reduce at each backward; put all back."""
    wrappers = _wrappers(root)
    flats = [module._handle.flat_param for module in wrappers if module._handle is not None]
    parameters = [*root.parameters(), *flats]
    gradients = [(parameter, parameter.grad) for parameter in parameters]
    flags = [(flat, {n: flat.__dict__[n] for n in _FLAGS if n in flat.__dict__}) for flat in flats]
    masks = [(flat, list(flat._is_grad_none_mask)) for flat in flats if flat._is_grad_none_mask is not None]
    offloaded = [(f, f._cpu_grad.clone()) for f in flats if getattr(f, "_cpu_grad", None) is not None]
    synced = [(module, module._sync_gradients) for module in wrappers]
    try:
        for module in wrappers:
            module._sync_gradients = True
        _drop_gradients(root)
        yield
    finally:
        _drop_gradients(root)
        for parameter, gradient in gradients:
            _put_back(parameter, gradient)
        for flat, values in flags:
            flat.__dict__.update(values)
        for flat, mask in masks:
            flat._is_grad_none_mask[:] = mask
        for flat, content in offloaded:
            flat._cpu_grad.copy_(content)
        for module, flag in synced:
            module._sync_gradients = flag
