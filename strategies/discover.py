"""Finding the model inside its wrappers, and the PEFT model inside that."""

from __future__ import annotations

from typing import Any

from torch import nn

from memaudit.errors import StrategyError


def unwrap(module: nn.Module) -> nn.Module:
    """Take off every wrapper: DistributedDataParallel, FSDP1, DeepSpeed's engine, torch.compile.

    Example:
        >>> unwrap(nn.Identity())
        Identity()
    """
    while True:
        inner = _inner(module)
        if inner is None:
            return module
        module = inner


def _inner(module: nn.Module) -> nn.Module | None:
    for name in ("_orig_mod", "_fsdp_wrapped_module"):  # torch.compile's OptimizedModule, FSDP1
        inner = module._modules.get(name)
        if isinstance(inner, nn.Module):
            return inner
    if type(module).__name__ in ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine"):
        inner = module._modules.get("module")
        return inner if isinstance(inner, nn.Module) else None
    return None


def uncompiled(module: nn.Module) -> nn.Module:
    """Return what torch.compile wrapped: hooks that an audit adds would be skipped in compiled code."""
    inner = module._modules.get("_orig_mod")
    return inner if isinstance(inner, nn.Module) else module


def is_language_model(module: nn.Module) -> bool:
    """Whether a module has an output head of its own, or generates."""
    if not hasattr(module, "config"):
        return False
    return callable(getattr(module, "get_output_embeddings", None)) and callable(
        getattr(module, "generate", None)
    )


def find_model(container: nn.Module, *, given: str) -> nn.Module:
    """Return the one language model in a container: the container itself, or one submodule.

    Args:
        container: a module without wrappers, for example a LightningModule.
        given: what the user gave, for the message.

    Raises:
        StrategyError: it holds several; names the candidates.
    """
    if is_language_model(container):
        return container
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()

    def visit(prefix: str, module: nn.Module) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if is_language_model(unwrap(child)):
                if id(child) not in seen:
                    seen.add(id(child))
                    found.append((path, unwrap(child)))
            else:
                visit(f"{path}.", child)

    visit("", container)
    if len(found) > 1:
        names = ", ".join(f"{path} ({type(module).__name__})" for path, module in found)
        raise StrategyError(f"{given} holds {len(found)} language models: {names}; say which with model=")
    return found[0][1] if found else container


def find_peft(root: nn.Module) -> Any | None:
    """Return the PEFT model inside ``root``, also where a wrapper hides it from isinstance; None without one."""
    import sys

    if "peft" not in sys.modules:  # a PEFT model cannot exist before its library was imported
        return None
    from peft import PeftModel

    for module in root.modules():
        if isinstance(module, PeftModel):
            return module
    return None
