"""The strategies by name, each imported when it is first used, so that none costs what is not needed."""

from __future__ import annotations

import importlib
from typing import Any

from memaudit.errors import ConfigurationError

_HOMES: dict[str, tuple[str, str]] = {
    "single": ("memaudit.strategies.replicated", "SingleStrategy"),
    "ddp": ("memaudit.strategies.replicated", "DDPStrategy"),
    "replicated": ("memaudit.strategies.replicated", "ReplicatedStrategy"),
    "device_map": ("memaudit.strategies.replicated", "DeviceMapStrategy"),
    "fsdp1": ("memaudit.strategies.fsdp", "FSDP1Strategy"),
    "fsdp2": ("memaudit.strategies.fsdp", "FSDP2Strategy"),
    "zero": ("memaudit.strategies.deepspeed", "ZeROStrategy"),
    "zero3": ("memaudit.strategies.deepspeed", "ZeRO3Strategy"),
    "tp": ("memaudit.strategies.tensor_parallel", "TensorParallelStrategy"),
}


def names() -> list[str]:
    """Return the names of every strategy.

    Example:
        >>> "ddp" in names()
        True
    """
    return sorted(_HOMES)


def strategy_class(name: str) -> Any:
    """Return the class of a strategy.

    Raises:
        ConfigurationError: no strategy has this name.

    Example:
        >>> strategy_class("single").__name__
        'SingleStrategy'
    """
    home = _HOMES.get(name)
    if home is None:
        raise ConfigurationError(f"no strategy is called {name!r}; there are {', '.join(names())}")
    return getattr(importlib.import_module(home[0]), home[1])
