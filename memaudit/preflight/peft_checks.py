"""Checks on a PEFT model: what trains, and whether switching the adapters off gives the base model back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memaudit.preflight.findings import Finding

_EMBEDDINGS = ("embed", "wte", "wpe", "lm_head", "word_embeddings")


def check_model(model: Any) -> Iterator[Finding]:
    """Yield findings about a model, with or without adapters; it is read, never changed."""
    if model is None:
        return
    trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not trainable:
        yield Finding(
            "nothing-trains",
            "error",
            "no parameter of the model is trainable",
            "call get_peft_model(), or unfreeze the model, before the trainer is made",
        )
    wrapped = find_peft(model)
    if wrapped is None:
        yield from _quantised(model)
        return
    yield from _adapters(wrapped, trainable)
    yield from _quantised(model)


def find_peft(model: Any) -> Any:
    """Return the PEFT model in or under a wrapper, or None."""
    seen = model
    for _ in range(8):
        if hasattr(seen, "peft_config") and hasattr(seen, "base_model"):
            return seen
        seen = getattr(seen, "module", None)
        if seen is None:
            return None
    return None


def _adapters(model: Any, trainable: list[str]) -> Iterator[Finding]:
    configs = dict(model.peft_config)
    active = getattr(model, "active_adapters", None) or getattr(model, "active_adapter", None) or []
    names = [active] if isinstance(active, str) else list(active)
    used = [configs[name] for name in names if name in configs] or list(configs.values())
    if len(configs) > 1:
        yield Finding(
            "several-adapters",
            "warning",
            f"the model has {len(configs)} adapters ({', '.join(configs)}), active: {', '.join(names)}",
            "with adapters off the reference is the base model without any of them; name a base checkpoint as ref= "
            "where that is not the model before this training",
        )
    kinds = {str(getattr(config.peft_type, "value", config.peft_type)) for config in used}
    lora = {"LORA", "ADALORA", "LOHA", "LOKR", "OFT", "BOFT", "VERA", "IA3", "RANDLORA", "HRA"}
    if kinds - lora:
        yield Finding(
            "adapter-kind",
            "warning",
            f"the adapter is of type {', '.join(sorted(kinds))}: it changes the sequence, not the weights",
            "the reference with adapters off sees other positions; consider ref='initial'",
        )
    if any(getattr(config, "inference_mode", False) for config in used):
        yield Finding(
            "adapter-frozen",
            "error" if not trainable else "warning",
            "an active adapter was loaded for inference and does not train",
            "load it with is_trainable=True",
        )
    for config in used:
        bias = str(getattr(config, "bias", "none"))
        if bias not in ("none", "None"):
            yield Finding(
                "adapter-bias",
                "warning",
                f"the adapter trains biases (bias={bias!r}): with adapters off they stay changed",
                "use ref='initial' or a base checkpoint as reference, or bias='none'",
            )
        if getattr(config, "use_dora", False):
            yield Finding(
                "adapter-dora",
                "info",
                "the adapter is DoRA: it trains magnitudes too",
                "nothing to do: switching it off restores the base weights",
            )
        saved = list(getattr(config, "modules_to_save", None) or [])
        if saved:
            trained = [name for name in saved if any(word in name for word in _EMBEDDINGS)]
            yield Finding(
                "modules-to-save",
                "warning" if trained else "info",
                f"whole modules are trained beside the adapter ({', '.join(map(str, saved))})",
                "embeddings and heads store rare tokens: expect more memorisation than from the adapter alone"
                if trained
                else "they are part of what is audited; with adapters off the originals are used",
            )
        if getattr(config, "trainable_token_indices", None):
            yield Finding(
                "trainable-tokens",
                "warning",
                "some token embeddings are trained (trainable_token_indices)",
                "they store what is rare in the data; the audit covers canaries of other tokens only",
            )
        if getattr(config, "target_parameters", None):
            yield Finding(
                "target-parameters",
                "warning",
                "the adapter acts on parameters, not on modules (target_parameters)",
                "check on a probe that adapters off gives the base model back, or use ref='initial'",
            )
    if any(getattr(module, "merged", False) is True for module in model.modules()):
        yield Finding(
            "adapter-merged",
            "error",
            "the adapter is merged into the weights: it does not train, and switching it off gives no reference",
            "call unmerge_adapter() before training",
        )
    if trainable and not any("lora" in name.lower() or "adapter" in name.lower() for name in trainable):
        listed = ", ".join(trainable[:3])
        yield Finding(
            "adapter-parameters",
            "warning",
            f"what trains is not the adapter's own weights ({listed}, ...)",
            "check requires_grad; with adapters off such changes stay",
        )
    if trainable:
        everything = sum(parameter.numel() for parameter in model.parameters())
        share = sum(p.numel() for p in model.parameters() if p.requires_grad) / max(everything, 1)
        yield Finding(
            "modules-trained",
            "info",
            f"{share:.2%} of the parameters train, in {', '.join(_owners(trainable))}",
            "nothing to do: what does not train cannot memorise",
        )
    if not any(any(word in name for word in _EMBEDDINGS) for name in trainable):
        yield Finding(
            "embeddings-frozen",
            "info",
            "embeddings do not train",
            "nothing to do: the canaries use regular tokens only",
        )


def _owners(trainable: list[str]) -> list[str]:
    """Return the names of the modules whose parameters train, without layer numbers and adapter parts."""
    owners = set()
    for name in trainable:
        before = name.split(".lora_")[0].split(".modules_to_save")[0]
        parts = [part for part in before.split(".") if part not in ("weight", "bias", "default")]
        owners.add(parts[-1])
    return sorted(owners)


def _quantised(model: Any) -> Iterator[Finding]:
    config = getattr(model, "config", None)
    quantised = (
        getattr(model, "is_quantized", False)
        or getattr(model, "is_loaded_in_4bit", False)
        or getattr(model, "is_loaded_in_8bit", False)
        or getattr(config, "quantization_config", None) is not None
    )
    if quantised:
        yield Finding(
            "quantised-base",
            "warning",
            "the base model is quantised",
            "the reference must be the same quantised weights: adapters off is, a full-precision checkpoint is not",
        )
