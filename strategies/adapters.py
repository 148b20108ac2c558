"""The reference of an adapter fine-tune: the same model with its adapters off, refused where that is not true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from memaudit.errors import ReferenceModeError

BASE = "base"
"""Name of the reference that has every adapter off."""


def check_reference(peft_model: Any, reference_adapter: str | None) -> None:
    """Raise where switching adapters off does not give the model that training started from.

    Args:
        peft_model: the PeftModel.
        reference_adapter: the adapter that the fine-tune started from, ``"base"`` for none; needed where the
            model carries several.

    Raises:
        ReferenceModeError: adapters are merged, bias terms or base weights are trained, or several adapters
            are there and none was named.
    """
    configs: dict[str, Any] = peft_model.peft_config
    if reference_adapter not in (None, BASE) and reference_adapter not in configs:
        raise ReferenceModeError(
            f"no adapter is called {reference_adapter!r}; the model has {sorted(configs)} (or name 'base')"
        )
    if len(configs) > 1 and reference_adapter is None:
        raise ReferenceModeError(
            f"the model carries the adapters {sorted(configs)}, so adapters off may not be where training began; "
            "name reference_adapter= as one of them, or 'base'"
        )
    active = peft_model.active_adapters
    names = list(active) if isinstance(active, (list, tuple)) else [active]
    for name in names:
        bias = getattr(configs.get(name), "bias", "none")
        if bias not in ("none", None):
            raise ReferenceModeError(
                f"adapter {name!r} trains bias terms of the base model (bias={bias!r}), which stay when it is off; "
                "use reference='initial' or a checkpoint"
            )
    for path, module in peft_model.named_modules():
        if getattr(module, "merged", False) is True:
            raise ReferenceModeError(
                f"adapters are merged into {path}, so the base weights are gone; unmerge them, or use "
                "reference='initial' or a checkpoint"
            )
    changed = trained_base_parameters(peft_model)
    if changed:
        raise ReferenceModeError(
            f"{len(changed)} parameters of the base model are trained beside the adapter (first: {changed[0]}), "
            "which stay when it is off; use reference='initial' or a checkpoint"
        )


def trained_base_parameters(peft_model: Any) -> list[str]:
    """Return the names of trainable parameters that belong to no adapter."""
    adapter: set[int] = set()
    for module in peft_model.modules():
        for attribute in getattr(module, "adapter_layer_names", ()):  # lora_A, lora_embedding_A, ...
            layer = getattr(module, attribute, None)
            if isinstance(layer, (nn.Module, nn.ParameterDict, nn.ParameterList)):
                adapter.update(id(parameter) for parameter in layer.parameters())
        if type(module).__name__ in ("ModulesToSaveWrapper", "TrainableTokensWrapper"):
            original = {id(p) for p in getattr(module, "original_module", nn.Module()).parameters()}
            adapter.update(id(p) for p in module.parameters() if id(p) not in original)
    prompt = getattr(peft_model, "prompt_encoder", None)
    if isinstance(prompt, nn.Module):
        adapter.update(id(parameter) for parameter in prompt.parameters())
    prefixes = ("lora_", "modules_to_save.", "trainable_tokens_", "prompt_encoder")
    return [
        name
        for name, parameter in peft_model.named_parameters()
        # By identity, and by name for wrappers (FSDP1) that make parameters anew.
        if parameter.requires_grad and id(parameter) not in adapter and not any(p in name for p in prefixes)
    ]


@contextmanager
def adapters_off(peft_model: Any, reference_adapter: str | None) -> Iterator[None]:
    """Switch to the reference and back; every parameter's ``requires_grad`` is as before on leaving.

    PEFT switches requires_grad along with the adapters, so that frozen adapter weights would come back
    trainable.
    """
    flags = [(parameter, parameter.requires_grad) for parameter in peft_model.parameters()]
    try:
        if reference_adapter in (None, BASE):
            with peft_model.disable_adapter():
                _check_saved_modules_off(peft_model)
                yield
        else:
            active = peft_model.active_adapter
            peft_model.set_adapter(reference_adapter)
            try:
                yield
            finally:
                peft_model.set_adapter(active)
    finally:
        for parameter, flag in flags:
            if parameter.requires_grad != flag:
                parameter.requires_grad_(flag)


def _check_saved_modules_off(peft_model: Any) -> None:
    for path, module in peft_model.named_modules():
        off = getattr(module, "disable_adapters", getattr(module, "_disable_adapters", True))
        if type(module).__name__ == "ModulesToSaveWrapper" and not off:
            raise ReferenceModeError(
                f"this version of peft leaves the trained copy of {path} on when adapters are off; "
                "upgrade peft, or use reference='initial' or a checkpoint"
            )
