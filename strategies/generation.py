"""Generation in batches on shards: left-padded, seeded, and without the checkpoint's own generation settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memaudit.errors import ConfigurationError, StrategyError
from memaudit.strategies.decoding import GiveUp, cut, decode_batch
from memaudit.strategies.forward import cache_is_shareable
from memaudit.strategies.prefill import PAD, can_prefill, prefilled


@contextmanager
def neutral_settings(model: nn.Module) -> Iterator[None]:
    """Take the checkpoint's generation settings away: transformers fills gaps in the caller's from them."""
    from transformers import GenerationConfig

    kept = [
        (m, m.__dict__["generation_config"]) for m in model.modules() if "generation_config" in m.__dict__
    ]
    try:
        for module, _ in kept:
            module.__dict__["generation_config"] = GenerationConfig()
        yield
    finally:
        for module, settings in kept:
            module.__dict__["generation_config"] = settings


def end_tokens(model: nn.Module) -> list[int]:
    """Return the ids that end a text, from the checkpoint's generation settings or its config."""
    for source in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        ends = getattr(source, "eos_token_id", None)
        if ends is not None:
            return [int(e) for e in ends] if isinstance(ends, (list, tuple)) else [int(ends)]
    return []


def settings_of(keywords: dict[str, Any], ends: Sequence[int]) -> tuple[Any, dict[str, Any]]:
    """Split the caller's keywords into a GenerationConfig and what goes to ``generate`` itself.

    Repetition penalties, banned n-grams and truncation are off unless the caller names them.
    """
    from transformers import GenerationConfig

    rest = dict(keywords)
    given = rest.pop("generation_config", None)
    if given is not None:
        return given, rest
    known = GenerationConfig().to_dict()
    settings: dict[str, Any] = {"do_sample": False, "num_beams": 1, "use_cache": True, "pad_token_id": PAD}
    if ends:
        settings["eos_token_id"] = list(ends)
    if rest.get("do_sample"):
        settings.update(temperature=1.0, top_k=0, top_p=1.0)
    settings.update({name: rest.pop(name) for name in list(rest) if name in known or name == "eos_token_id"})
    if settings.get("max_new_tokens") is None and settings.get("max_length") is None:
        raise ConfigurationError("generate needs max_new_tokens=; none was given")
    return GenerationConfig(**settings), rest


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids and attention mask, int64 [batch, length], padded on the left.

    Example:
        >>> ids, mask = left_padded([[5], [6, 7]], torch.device("cpu"))
        >>> ids.tolist(), mask.tolist()
        ([[0, 5], [6, 7]], [[0, 1], [1, 1]])
    """
    longest = max(len(prompt) for prompt in prompts)
    ids = [[PAD] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def generate_batches(
    model: nn.Module,
    prompts: Sequence[Sequence[int]],
    keywords: dict[str, Any],
    *,
    batches: int,
    batch_size: int,
    device: torch.device,
    synced: bool,
    give_up: GiveUp | None = None,
) -> list[list[int]]:
    """Generate from each prompt; batches beyond this rank's prompts are dummies that keep ranks in step.

    Args:
        model: the model inside every wrapper.
        prompts: token ids without padding, none of them empty.
        keywords: those of transformers' generate.
        batches: calls of generate, the same on every rank where ``synced``.
        batch_size: prompts of a call at most.
        device: where the ids must lie.
        synced: whether ranks go on until the last of them is done.
        give_up: whether the prompt at a position, with its new ids so far, need not go on; asked every few ids.

    Returns:
        For each prompt the new ids, cut before the first end token or where it was given up.
    """
    if not callable(getattr(model, "generate", None)):
        raise StrategyError(f"{type(model).__name__} has no generate(); only its forward can be audited")
    if any(len(prompt) == 0 for prompt in prompts):
        raise ConfigurationError("a prompt without tokens was given; generation needs at least one token")
    settings, rest = settings_of(keywords, end_tokens(model))
    ends = settings.eos_token_id
    stops = [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [int(ends)]
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i]), i))
    found: dict[int, list[int]] = {}
    base = getattr(model, "get_base_model", None)  # the module whose forward generate calls
    inner = base() if callable(base) else model
    # generate repeats rows for beams and samples, but not their keys and values.
    repeats = (settings.num_beams or 1) > 1 or (settings.num_return_sequences or 1) > 1
    ahead = settings.use_cache is not False and not repeats and "past_key_values" not in rest
    ahead = ahead and "cache" not in rest and not settings.cache_implementation
    leave = ahead and not synced and cache_is_shareable(model)
    ahead = ahead and can_prefill(model)
    if give_up is not None and (repeats or settings.max_new_tokens is None):
        raise ConfigurationError("give_up= needs max_new_tokens= and one text a prompt, without beams")
    with neutral_settings(model), torch.no_grad():
        for index in range(batches):
            chosen = order[index * batch_size : (index + 1) * batch_size]
            rows = [prompts[i] for i in chosen] or [[PAD]]
            ids, mask = left_padded(rows, device)
            cache = prefilled(inner, rows, device, in_step=synced) if ahead else {}
            if give_up is not None:
                batch = decode_batch(
                    model,
                    ids,
                    mask,
                    rows=chosen,
                    settings=settings,
                    stops=stops,
                    give_up=give_up,
                    leave=leave,
                    keywords={**cache, **rest},
                )
                found.update(zip(chosen, batch, strict=True))
                continue
            output = model.generate(  # type: ignore[operator]
                input_ids=ids,
                attention_mask=mask,
                generation_config=settings,
                synced_gpus=synced,
                **cache,
                **rest,
            )
            sequences = output if isinstance(output, torch.Tensor) else output.sequences
            for i, new in zip(chosen, sequences[:, ids.shape[1] :].tolist(), strict=False):
                found[i] = cut(new, stops)
    return [found[i] for i in range(len(prompts))]
