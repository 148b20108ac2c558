"""resolve(): from whatever trains the model to the strategy that scores it, or an error that says why not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from memaudit.errors import StrategyError
from memaudit.strategies.base import Strategy
from memaudit.strategies.collectives import is_distributed
from memaudit.strategies.discover import find_model, uncompiled, unwrap
from memaudit.strategies.registry import strategy_class


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a trainer or Accelerator holds: the wrapped model and the precision it applies from outside."""

    outer: nn.Module
    given: str
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    precision: str | None = None
    expected: str | None = None


def resolve(obj: Any, *, model: nn.Module | None = None, reference_adapter: str | None = None) -> Strategy:
    """Return the strategy that fits a model or what trains it; every rank must call it.

    Args:
        obj: a model (bare or in any wrapper), an accelerate.Accelerator, a transformers Trainer or a Lightning
            Trainer. Trainers must have begun: before that nothing is wrapped.
        model: which model, where an Accelerator has prepared several or a LightningModule holds several.
        reference_adapter: the adapter that a fine-tune with several adapters began from, ``"base"`` for none.

    Returns:
        The strategy; its ``facts()`` say what was found.

    Raises:
        StrategyError: nothing fits; says what was given and what would fit.

    Example:
        >>> resolve(nn.Linear(2, 2)).name
        'single'
    """
    found = _find(obj, model)
    host = unwrap(found.outer)
    if model is None or unwrap(model) is host:
        inner = find_model(host, given=found.given)
    else:
        inner = _inside(host, unwrap(model), found.given)
    name, root = _classify(found, inner)
    strategy: Any = strategy_class(name)(
        root,
        inner,
        outer=found.outer,
        host=host if host is not inner and _contains(root, host) else None,
        context=found.context,
        precision=found.precision,
        reference_adapter=reference_adapter,
    )
    if name == "replicated" and found.expected == "ddp":
        strategy.name = "ddp"
    return cast(Strategy, strategy)


def _find(obj: Any, model: nn.Module | None) -> Found:
    """Return the wrapped model of whatever was given."""
    if isinstance(obj, nn.Module):
        return Found(outer=obj, given=f"a {type(obj).__name__}")
    if hasattr(obj, "model_wrapped") and hasattr(obj, "accelerator"):
        return _from_accelerator(obj.accelerator, obj.model_wrapped, given=f"a {type(obj).__name__}")
    if hasattr(obj, "_models") and hasattr(obj, "distributed_type"):
        return _from_accelerator(obj, _prepared(obj, model), given="an Accelerator")
    if hasattr(obj, "lightning_module") and hasattr(obj, "strategy"):
        return _from_lightning(obj)
    raise StrategyError(
        f"given {type(obj).__module__}.{type(obj).__name__}, from which no model can be taken; give a model, an "
        "accelerate.Accelerator, a transformers Trainer or a Lightning Trainer"
    )


def _prepared(accelerator: Any, model: nn.Module | None) -> nn.Module:
    models: list[nn.Module] = list(accelerator._models)
    if model is not None:
        for candidate in models:
            if unwrap(candidate) is unwrap(model):
                return model if unwrap(model) is not model else candidate  # rather in its wrapper
            if _contains(candidate, unwrap(model)):
                return candidate
        raise StrategyError(
            f"model= is a {type(model).__name__} that this Accelerator has not prepared; "
            "give what accelerator.prepare() returned"
        )
    if len(models) != 1:
        names = ", ".join(type(unwrap(candidate)).__name__ for candidate in models) or "none"
        raise StrategyError(
            f"given an Accelerator with {len(models)} prepared models ({names}); expected one: call "
            "accelerator.prepare(model) first, or say which with model="
        )
    return models[0]


_EXPECTED = {"FSDP1": "fsdp1", "FSDP2": "fsdp2", "DEEPSPEED": "zero"}


def _from_accelerator(accelerator: Any, outer: nn.Module, *, given: str) -> Found:
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind == "NO" and is_distributed():
        raise StrategyError(
            f"{given} knows of no distributed training, but {torch.distributed.get_world_size()} processes run; it "
            "fell back without a word: check the launcher, the device and the accelerate config"
        )
    amp = bool(getattr(accelerator, "native_amp", False))
    if kind == "FSDP":
        version = 2 if getattr(accelerator, "is_fsdp2", False) else 1
        kind = f"FSDP{version}"
    return Found(
        outer=outer,
        given=f"{given} of distributed type {kind}",
        context=accelerator.autocast if amp else nullcontext,
        precision=accelerator.mixed_precision if amp else None,
        expected=_EXPECTED.get(kind, "ddp" if kind.startswith("MULTI_") and is_distributed() else None),
    )


def _from_lightning(trainer: Any) -> Found:
    strategy = trainer.strategy
    given = f"a Lightning Trainer with {type(strategy).__name__}"
    outer = getattr(strategy, "model", None) or trainer.lightning_module
    if outer is None:
        raise StrategyError(f"{given} has no model yet; call this from a hook after fit() has begun")
    plugin = strategy.precision_plugin
    precision = str(getattr(plugin, "precision", "32-true"))
    kind = type(strategy).__name__
    expected: str | None = None
    for part, name in (("FSDP", "fsdp1"), ("DeepSpeed", "zero"), ("DDP", "ddp")):
        if part in kind:
            expected = name if name != "ddp" or is_distributed() else None
    return Found(
        outer=outer,
        given=given,
        context=plugin.forward_context,
        precision=precision if "mixed" in precision else None,
        expected=expected,
    )


def _classify(found: Found, inner: nn.Module) -> tuple[str, nn.Module]:
    """Return the strategy's name and the module to call."""
    outer = uncompiled(found.outer)
    name, root = _by_wrapper(outer, inner, found.given)
    # accelerate lists a data-parallel model without its wrapper, and leaves one that trains nothing unwrapped;
    # the strategy for bare models compares the ranks' parameters. A 2-D model counts as FSDP2 to it.
    family = {"zero3": "zero", "replicated": "ddp"}.get(name, name)
    family = found.expected if name == "tp" and found.expected in ("fsdp2", "ddp") else family
    if found.expected is not None and family != found.expected:
        raise StrategyError(
            f"given {found.given}, but its model is {type(outer).__name__}, which is {name}, not {found.expected}; "
            "training has not begun, or the framework fell back without a word (accelerate does on a CPU)"
        )
    return name, root


def _by_wrapper(outer: nn.Module, inner: nn.Module, given: str) -> tuple[str, nn.Module]:
    kind = type(outer).__name__
    if kind == "DeepSpeedEngine":
        stage = int(cast(Any, outer).zero_optimization_stage())
        return ("zero3" if stage == 3 else "zero"), unwrap(outer)
    if any(hasattr(parameter, "ds_id") for parameter in inner.parameters()):
        raise StrategyError(
            f"given {given}, a {kind} partitioned by ZeRO-3 without its engine; give the DeepSpeedEngine, the "
            "Accelerator or the Trainer"
        )
    if kind == "DataParallel":
        raise StrategyError(
            f"given {given}: torch.nn.DataParallel scores on one process; use DistributedDataParallel (torchrun)"
        )
    if torch.distributed.is_available():
        sharded = _by_shards(outer, inner)
        if sharded is not None:
            return sharded
    if kind == "DistributedDataParallel":
        return "ddp", unwrap(outer)
    if _is_dispatched(inner):
        return "device_map", outer
    return ("replicated" if is_distributed() else "single"), outer


def _by_shards(outer: nn.Module, inner: nn.Module) -> tuple[str, nn.Module] | None:
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in outer.modules()):
        return "fsdp1", outer
    tensor = sys.modules.get("torch.distributed.tensor")
    distributed = tensor is not None and any(isinstance(p, tensor.DTensor) for p in inner.parameters())
    fsdp = sys.modules.get("torch.distributed.fsdp")
    roots = [m for m in outer.modules() if fsdp is not None and isinstance(m, fsdp.FSDPModule)]
    if not roots:
        # DTensors, or transformers' own tensor parallelism, which may keep plain local tensors.
        tensor_parallel = distributed or getattr(inner, "_tp_size", None) not in (None, 1)
        return ("tp", outer) if tensor_parallel else None
    data = _data_mesh_size(roots[0])
    root = next((m for m in roots if _contains(m, inner)), inner)
    return ("fsdp2" if data == torch.distributed.get_world_size() else "tp"), root


def _data_mesh_size(module: nn.Module) -> int:
    from memaudit.strategies.sharding import data_mesh

    return int(data_mesh(module).size())


def _is_dispatched(model: nn.Module) -> bool:
    places = getattr(model, "hf_device_map", None)
    return bool(places) and any(hasattr(module, "_hf_hook") for module in model.modules())


def _contains(outer: nn.Module, inner: nn.Module) -> bool:
    return any(module is inner for module in outer.modules())


def _inside(host: nn.Module, model: nn.Module, given: str) -> nn.Module:
    if not _contains(host, model):
        raise StrategyError(
            f"model= is a {type(model).__name__} that is not part of {given}; give one of its modules"
        )
    return model
