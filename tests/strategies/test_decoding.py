"""Texts that are given up end there and leave their batch; all others are what each prompt generates alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from memaudit.errors import ConfigurationError
from memaudit.strategies.decoding import EVERY, decode_batch, first_given_up
from memaudit.strategies.generation import left_padded, settings_of
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_gpt2, tiny_llama
from tests.strategies.test_generation import greedy
from tests.strategies.test_prefill import forwards_of

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33], [5, 6, 7, 8, 9, 60], [40], [20, 21]]
AFTER = {1: 3, 2: 9, 5: 1}
"""Prompts that are given up, and from how many new tokens on they may be."""


def model_of(name: str) -> nn.Module:
    if name == "mistral":
        from transformers import MistralConfig, MistralForCausalLM

        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = MistralConfig(
            vocab_size=96, num_key_value_heads=2, sliding_window=6, eos_token_id=None, **sizes
        )
        return MistralForCausalLM(config)
    return tiny_llama(96, 2, 32) if name == "llama" else tiny_gpt2(96, 2, 32)


def give_up(index: int, new: Sequence[int]) -> bool:
    return index in AFTER and len(new) >= AFTER[index]


def wanted(model: nn.Module, count: int, end: int | None = None) -> list[list[int]]:
    """Every prompt's greedy text, cut at the first look at which it is given up; an ended text is not asked for."""
    texts = []
    for index, prompt in enumerate(PROMPTS):
        full = greedy(model, prompt, count, end)
        length = first_given_up(give_up, index, full)
        texts.append(full if length is None else full[:length])
    return texts


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("batch_size", [1, 4, 16])
@pytest.mark.parametrize("count", [3, 8, 14])
def test_given_up_texts_end_and_the_others_are_as_alone(name: str, batch_size: int, count: int) -> None:
    model = model_of(name)
    want = wanted(model, count)
    assert count < EVERY or len(want[1]) == EVERY < len(want[0])
    found = resolve(model).generate(PROMPTS, max_new_tokens=count, batch_size=batch_size, give_up=give_up)
    assert found == want


def test_rows_leave_the_batch() -> None:
    model = tiny_llama(96, 2, 32)
    shapes = forwards_of(model)
    resolve(model).generate(PROMPTS, max_new_tokens=16, give_up=give_up)
    widths = [rows for rows, length in shapes[1:]]
    # 1 and 5 leave after 4 tokens, 2 after 12: the first forward is that of the prompts.
    assert widths == [6] * 4 + [4] * 8 + [3] * 4, shapes
    assert all(length == 1 for _, length in shapes[1:])
    shapes.clear()
    resolve(model).generate(PROMPTS, max_new_tokens=16, give_up=lambda index, new: True)
    assert len(shapes) == 1 + EVERY, "a batch that is given up as a whole ends"


def test_ended_texts_leave_too_and_are_never_given_up() -> None:
    model = tiny_llama(96, 2, 32)
    full = greedy(model, PROMPTS[0], 12)
    end = next(token for i, token in enumerate(full) if i in (2, 3, 5, 6) and token not in full[:i])
    model.generation_config.eos_token_id = end
    asked: list[tuple[int, int]] = []

    def never_after_the_end(index: int, new: Sequence[int]) -> bool:
        assert end not in new
        asked.append((index, len(new)))
        return give_up(index, new)

    shapes = forwards_of(model)
    want = wanted(model, 12, end)
    shapes.clear()
    assert resolve(model).generate(PROMPTS, max_new_tokens=12, give_up=never_after_the_end) == want
    assert len(want[0]) == full.index(end) and (0, 12) not in asked
    assert shapes[-1][0] < len(PROMPTS) - 2


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_ranks_in_step_run_every_forward_of_a_whole_batch(name: str) -> None:
    """Where rows may not leave, they end by a stopping criterion, dummies at once."""
    model = model_of(name)
    end = greedy(model, PROMPTS[2], 6)[5]
    ids, mask = left_padded([*PROMPTS, [1]], torch.device("cpu"))
    for stops in ([], [end]):
        want = wanted(model, 14, stops[0] if stops else None)
        settings, _ = settings_of({"max_new_tokens": 14}, stops)
        rules: dict[str, Any] = {"settings": settings, "stops": stops, "give_up": give_up, "keywords": {}}
        with torch.no_grad():
            kept = decode_batch(model, ids, mask, rows=range(len(PROMPTS)), leave=False, **rules)
            left = decode_batch(model, ids[:-1], mask[:-1], rows=range(len(PROMPTS)), leave=True, **rules)
            assert decode_batch(model, ids[-1:], mask[-1:], rows=[], leave=False, **rules) == []
        assert kept == left == want


def test_adapters_and_beams() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(tiny_llama(96, 2, 32), config)
    found = resolve(model).generate(PROMPTS, max_new_tokens=14, give_up=give_up)
    assert found == wanted(model, 14)
    with pytest.raises(ConfigurationError, match="without beams"):
        resolve(model).generate(PROMPTS, max_new_tokens=3, num_beams=2, give_up=give_up)
    with pytest.raises(ConfigurationError, match="give_up"):
        resolve(model).generate(PROMPTS, max_length=30, give_up=give_up)
