"""A model without its weights: parameters on the meta device, buffers computed for real.

Buffers that no checkpoint stores (rotary frequencies) come out of the constructor, so they must not be built on
the meta device, where ``to_empty`` would leave them undefined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memaudit.errors import CheckpointError, MissingExtraError
from memaudit.posthoc.checkpoints.base import some


def read_model_config(folder: str | Path) -> Any:
    """Return the transformers configuration in a folder, or of a hub id.

    Raises:
        CheckpointError: there is none, or transformers does not know it.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(folder))
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"no usable model configuration at {folder}: {reason}") from error


def build(config: Any, *, dtype: torch.dtype, adapter_config: Mapping[str, Any] | None = None) -> nn.Module:
    """Return a causal language model with parameters on the meta device, tied as its configuration says.

    Args:
        config: a transformers configuration.
        dtype: dtype of its parameters.
        adapter_config: PEFT's configuration, to put the adapter's empty parameters in too.
    """
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
        if adapter_config is not None:
            model = _with_adapter(model, adapter_config)
    inner = getattr(model, "get_base_model", lambda: model)()
    inner.tie_weights()
    for parameter in model.parameters():
        parameter.requires_grad_(False)  # an audit trains nothing
    if adapter_config is not None:
        model.to(dtype=dtype)  # FSDP2's groups need one dtype
    evaluated: nn.Module = model.eval()
    return evaluated


def _with_adapter(model: nn.Module, adapter_config: Mapping[str, Any]) -> nn.Module:
    try:
        from peft import PeftConfig, get_peft_model
    except ImportError as error:
        raise MissingExtraError("peft", "peft", "reading an adapter") from error
    config = PeftConfig.from_peft_type(**dict(adapter_config))
    config.inference_mode = True
    with_adapter: nn.Module = get_peft_model(model, config, autocast_adapter_dtype=False)
    return with_adapter


def tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and persistent buffers by name, tied ones once."""
    yield from model.named_parameters()
    persistent = set(model.state_dict().keys())
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in persistent)


def aliases(model: nn.Module) -> dict[str, list[str]]:
    """Return the other names of each tied parameter."""
    by_id: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        by_id.setdefault(id(parameter), []).append(name)
    return {names[0]: names[1:] for names in by_id.values() if len(names) > 1}


def ignored_patterns(model: nn.Module) -> list[str]:
    """Return the patterns of stored names that the architecture passes over."""
    inner = getattr(model, "get_base_model", lambda: model)()
    return [str(one) for one in getattr(inner, "_keys_to_ignore_on_load_unexpected", None) or []]


def materialise(model: nn.Module, device: torch.device) -> None:
    """Give every parameter on the meta device memory on ``device``, ties kept, and move the buffers there."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                data = (
                    torch.empty_like(parameter, device=device) if parameter.is_meta else parameter.to(device)
                )
                made[id(parameter)] = nn.Parameter(data, requires_grad=False)
            module._parameters[name] = made[id(parameter)]
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = buffer.to(device)
    undefined = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if undefined:
        raise CheckpointError(f"buffers {some(undefined)} were left undefined; load with --strategy single")


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the layers that are sharded one by one: those that transformers says must not be split.

    Example:
        >>> blocks(nn.Sequential(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])))
        [Linear(in_features=2, out_features=2, bias=True), Linear(in_features=2, out_features=2, bias=True)]
    """
    names: set[str] = set()
    for module in model.modules():
        names.update(getattr(module, "_no_split_modules", None) or ())
    found = [module for module in model.modules() if type(module).__name__ in names]
    if found:
        return found
    lists: list[nn.Module] = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) > 1]
    if not lists:
        return []
    return list(max(lists, key=lambda one: sum(p.numel() for p in one.parameters())).children())


def adapter_names(model: nn.Module) -> dict[str, str]:
    """Return, for each of the adapter's parameters, the name that PEFT gives it in the adapter's file."""
    from peft import get_peft_model_state_dict

    parameters = dict(model.named_parameters(remove_duplicate=False))
    by_id = {id(value): name for name, value in parameters.items()}
    saved = get_peft_model_state_dict(model, state_dict=parameters, save_embedding_layers=False)
    return {by_id[id(value)]: name for name, value in saved.items()}


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file's object."""
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded
