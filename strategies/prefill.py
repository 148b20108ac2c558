"""Keys and values of prompts before their generation: what prompts begin with alike goes through the model once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from memaudit.beginnings import carriers, common_length
from memaudit.strategies.forward import cache_argument, cache_is_shareable, shared_cache, text_config

PAD = 0  # any valid id does: padded positions are masked, and the tokenizer is never asked

SHARE_FROM = 512
"""Tokens from which on it pays to forward what all prompts begin with once, before what follows it."""


def can_prefill(model: nn.Module) -> bool:
    """Whether the model keeps all keys and values by position, so that rows can take over each other's.

    A sliding window drops early ones, and other caches hold a state that belongs to one row.
    """
    if not cache_is_shareable(model):
        return False
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=text_config(model)).layers)


def prefilled(
    model: nn.Module, prompts: Sequence[Sequence[int]], device: torch.device, *, in_step: bool = False
) -> dict[str, Any]:
    """Forward what stands before each prompt's last token and return the keyword of generate that holds it.

    The prompts are those of one call, to be padded on the left.

    Args:
        model: the module whose ``generate`` is called; :func:`can_prefill` holds for it.
        prompts: token ids, none of them empty.
        device: where the ids must lie.
        in_step: whether ranks with other prompts must run the same number of forwards: it is one then, also
            where all prompts have one token.

    Returns:
        ``{"past_key_values": cache}`` (``"cache"`` in later transformers), or nothing.
    """
    from transformers import DynamicCache

    bodies = [tuple(prompt[:-1]) for prompt in prompts]
    rows, row_of = carriers(bodies)
    longest = max(map(len, bodies))
    if not longest and not in_step:
        return {}
    alike = 0 if in_step else common_length(rows)
    if alike * (len(rows) - 1) < SHARE_FROM:
        alike = 0
    name, names = cache_argument(model)
    cache: Any = DynamicCache(config=text_config(model))
    # Only keys and values are wanted; the vocabulary projection of a row costs as much as some layers.
    fixed = {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in names else {})}
    if alike:
        start = torch.tensor([rows[0][:alike]], device=device)
        model(input_ids=start, attention_mask=torch.ones_like(start), **{name: cache}, **fixed)
        cache = shared_cache(cache, len(rows))
    width = max(1, longest - alike)
    ids = torch.tensor([[*row[alike:], *[PAD] * (alike + width - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (alike + width - len(row)) for row in rows], device=device)
    if not longest:
        mask = torch.ones_like(ids)
    where = torch.arange(alike, alike + width, device=device)[None, :].expand_as(ids)
    positions = {"position_ids": where} if "position_ids" in names else {}
    model(input_ids=ids, attention_mask=mask, **{name: cache}, **positions, **fixed)
    if not longest:
        return {}
    chosen = torch.tensor(row_of, device=device)
    before = torch.tensor([longest - len(body) for body in bodies], device=device)
    # Keys carry their position already: moving them to where left padding wants them changes nothing.
    source = (torch.arange(longest, device=device)[None, :] - before[:, None]).clamp_min(0)
    for layer in cache.layers:
        layer.keys = _moved(layer.keys, chosen, source)
        layer.values = _moved(layer.values, chosen, source)
    return {name: cache}


def _moved(states: torch.Tensor, rows: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Return [n, heads, length, size]: of row ``rows[i]`` the positions ``source[i]``."""
    rows, source = rows.to(states.device), source.to(states.device)  # layers lie where device_map put them
    return states[rows[:, None], :, source].transpose(1, 2).contiguous()
