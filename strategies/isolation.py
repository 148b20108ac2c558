"""Isolation: an audit leaves training as it was, to the bit, also when it raises."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class RandomState:
    """The states of python's, numpy's and torch's global generators, on the CPU and every device."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    devices: tuple[tuple[str, Any], ...]

    @classmethod
    def capture(cls) -> RandomState:
        """Read every state; a device library that was never started is left alone."""
        devices: list[tuple[str, Any]] = []
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            devices.append(("cuda", torch.cuda.get_rng_state_all()))
        if hasattr(torch, "xpu") and torch.xpu.is_available() and torch.xpu.is_initialized():
            devices.append(("xpu", torch.xpu.get_rng_state_all()))
        if torch.backends.mps.is_available():
            devices.append(("mps", torch.mps.get_rng_state()))
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(),
            cpu=torch.get_rng_state(),
            devices=tuple(devices),
        )

    def restore(self) -> None:
        """Put every state back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        for name, state in self.devices:
            if name == "mps":
                torch.mps.set_rng_state(state)
            else:
                getattr(torch, name).set_rng_state_all(state)


def _set_training(module: nn.Module, flag: bool) -> None:
    # Not module.train(): that recurses, and subclasses override it (DeepSpeed, PEFT, frozen norms).
    module.training = flag


@contextlib.contextmanager
def model_state(root: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradient checkpointing and no cache in the config; each as it was on leaving.

    The training flag is kept for each submodule: some were in evaluation mode on purpose.
    """
    modules = list(root.modules())
    training = [(module, module.training) for module in modules]
    checkpointing = [
        (module, module.__dict__["gradient_checkpointing"])
        for module in modules
        if isinstance(module.__dict__.get("gradient_checkpointing"), bool)
    ]
    held: list[Any] = [getattr(module, "config", None) for module in modules]
    configs: dict[int, Any] = {id(config): config for config in held if hasattr(config, "use_cache")}
    caches = [(config, config.use_cache) for config in configs.values()]
    try:
        for module, _ in training:
            _set_training(module, False)
        for module, _ in checkpointing:
            module.__dict__["gradient_checkpointing"] = False
        for config, _ in caches:
            config.use_cache = False
        yield
    finally:
        for module, flag in training:
            _set_training(module, flag)
        for module, flag in checkpointing:
            module.__dict__["gradient_checkpointing"] = flag
        for config, flag in caches:
            config.use_cache = flag


@contextlib.contextmanager
def eager_if_compiled(root: nn.Module) -> Iterator[None]:
    """Run compiled modules eagerly: dynamo skips hooks that were added after compiling."""
    compiled = any(
        getattr(module, "_compiled_call_impl", None) is not None or "_orig_mod" in module._modules
        for module in root.modules()
    )
    if not compiled:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def isolated(
    root: nn.Module, *, gradients: bool = False, after: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Enter evaluation; on leaving, also after an exception, everything about training is as before.

    Saved and restored: random states, each submodule's training flag, gradient checkpointing and
    ``config.use_cache``. Autocast stays as the caller has it; its weight cache is emptied on both sides, since
    casts made without gradients would cut training's graph. inference_mode is left, because tensors made in it
    break the first training step of sharded models.

    Args:
        root: the outermost module.
        gradients: keep autograd on (for gradient norms); by default it is off.
        after: run last of all, for example resharding.

    Example:
        >>> model = nn.Dropout()
        >>> with isolated(model):
        ...     _ = torch.rand(1)
        ...     model.training, torch.is_grad_enabled()
        (False, False)
        >>> model.training
        True
    """
    state = RandomState.capture()
    try:
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(gradients),
            eager_if_compiled(root),
            model_state(root),
        ):
            torch.clear_autocast_cache()
            try:
                yield
            finally:
                torch.clear_autocast_cache()
                after()
    finally:
        state.restore()
