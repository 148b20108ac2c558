"""DeepSpeed's ZeRO: stages 0 to 2 keep parameters whole on each rank, stage 3 partitions them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from memaudit.errors import StrategyError
from memaudit.strategies.core import ModelStrategy


def _offload(engine: Any) -> dict[str, bool]:
    """Say what DeepSpeed keeps on the CPU or a disk."""
    return {
        "offload_optimizer": bool(engine.zero_offload_optimizer()),
        "offload_parameters": bool(engine.zero_offload_param()),
    }


def _autocast(engine: Any) -> tuple[Callable[[], AbstractContextManager[Any]], str | None]:
    """Return the autocast that the engine makes around its module, for calls that pass it by, and its precision."""
    if not bool(getattr(engine, "torch_autocast_enabled", bool)()):
        return nullcontext, None
    kind, dtype = torch.device(engine.device).type, engine.torch_autocast_dtype()
    return lambda: torch.autocast(kind, dtype=dtype), str(dtype).removeprefix("torch.")


class ZeROStrategy(ModelStrategy):
    """ZeRO-1 and ZeRO-2 (and stage 0): the module inside the engine is scored, which has no collective.

    Gradients are taken by ``autograd.grad``, so that the hooks by which the engine reduces them see nothing.
    """

    name = "zero2"
    sharded = False

    def __init__(self, root: nn.Module, model: nn.Module, **options: Any) -> None:
        super().__init__(root, model, **options)
        self._engine = cast(Any, self._outer)
        self._context, self._precision = _autocast(self._engine)
        self.name = f"zero{int(self._engine.zero_optimization_stage())}"

    def _device(self) -> torch.device | None:
        return torch.device(self._engine.device)

    def _details(self) -> Mapping[str, Any]:
        return {"stage": int(self._engine.zero_optimization_stage()), **_offload(self._engine)}


def _is_whole(parameter: Any) -> bool:
    """Whether a parameter that ZeRO-3 partitions is gathered; small ones stay so by its own settings."""
    status = getattr(parameter, "ds_status", None)
    return status is not None and status.name == "AVAILABLE" and not getattr(parameter, "ds_persist", False)


class ZeRO3Strategy(ModelStrategy):
    """ZeRO-3: parameters are partitioned, and hooks on the module in the engine gather them layer by layer.

    That module is called rather than the engine, which hooks its outputs: a backward from them would count as a
    micro-step of training.

    Each rank scores its own records in lockstep. Gradient norms need no reduction: with ``autograd.grad`` each
    rank has the whole gradient of its own record, one parameter at a time as backward gathers the layers, and
    the hooks that fill DeepSpeed's buckets see nothing.
    """

    name = "zero3"
    sharded = True
    lockstep = True
    synced_generation = True

    def __init__(self, root: nn.Module, model: nn.Module, **options: Any) -> None:
        super().__init__(root, model, **options)
        self._engine = cast(Any, self._outer)
        if bool(getattr(self._engine, "is_deepcompile_active", bool)()):
            raise StrategyError(
                "ZeRO-3 under DeepCompile has no hooks that gather parameters in an eager forward; audit without "
                "engine.compile(), or from a checkpoint"
            )
        self._context, self._precision = _autocast(self._engine)

    def _device(self) -> torch.device | None:
        return torch.device(self._engine.device)  # parameters may be offloaded

    def _squared_norm(self, loss: Tensor) -> float:
        norm = super()._squared_norm(loss)
        offload = self._engine.optimizer.parameter_offload
        if hasattr(offload, "release_backward_leftovers"):
            offload.release_backward_leftovers()
        held = [p for p in self._model.parameters() if _is_whole(p)]
        if held:
            raise StrategyError(
                f"ZeRO-3 left {len(held)} parameters whole after a backward for gradient norms; this version of "
                "DeepSpeed is not supported for them, leave them out of the audit"
            )
        return norm

    def _counts(self) -> tuple[int, int]:
        parameters: list[Any] = list(self._model.parameters())
        local = sum(int(getattr(p, "ds_tensor", p).numel()) for p in parameters)
        return local, sum(int(getattr(p, "ds_numel", p.numel())) for p in parameters)

    def consolidate(self) -> dict[str, Tensor]:
        """Return the full state dict on rank 0, gathered one parameter at a time, in the parameters' precision."""
        import deepspeed

        names: dict[int, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        state: dict[str, Tensor] = {}
        for parameter in self._model.parameters():
            with deepspeed.zero.GatheredParameters([parameter]):
                if self.rank == 0:
                    value = parameter.detach().cpu().clone()
                    state.update(dict.fromkeys(names[id(parameter)], value))
        if self.rank == 0:
            kept = self._model.state_dict(keep_vars=True)  # names alone: values are empty outside a forward
            buffers = {name: buffer for name, buffer in self._model.named_buffers() if name in kept}
            state.update({name: buffer.detach().cpu().clone() for name, buffer in buffers.items()})
        return state

    def _details(self) -> Mapping[str, Any]:
        return {"stage": 3, **_offload(self._engine)}
