"""Prompts that begin alike are forwarded once, and every prompt generates what it generates alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memaudit.strategies.prefill import can_prefill, prefilled
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_gpt2, tiny_llama
from tests.strategies.test_generation import greedy

RECORD = [5, 6, 7, 8, 9, 10, 11, 12]
PROMPTS = [[*RECORD[:3], 50], [*RECORD[:7], 60], [*RECORD[:3], 50], [40], [30, 31, 32], RECORD]


def forwards_of(model: nn.Module) -> list[tuple[int, ...]]:
    """Return a list that the shapes of the ids of all later forwards are written to."""
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return shapes


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_prompts_that_share_a_record_generate_as_alone(name: str) -> None:
    model = tiny_llama(96, 2, 32) if name == "llama" else tiny_gpt2(96, 2, 32)
    want = [greedy(model, prompt, 6) for prompt in PROMPTS]
    shapes = forwards_of(model)
    assert resolve(model).generate(PROMPTS, max_new_tokens=6) == want
    # Two rows stand for six prompts: what follows the record's first seven tokens, and one of its own.
    assert shapes[0] == (2, 7), shapes
    assert all(shape == (len(PROMPTS), 1) for shape in shapes[1:]) and len(shapes) == 7


def test_an_adapter_is_in_force_while_the_prompts_are_forwarded() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    model = peft.get_peft_model(tiny_llama(96, 2, 32), config)
    want = [greedy(model, prompt, 6) for prompt in PROMPTS]
    with model.disable_adapter():
        assert want != [greedy(model, prompt, 6) for prompt in PROMPTS]
    assert resolve(model).generate(PROMPTS, max_new_tokens=6) == want


def test_prompts_of_one_token_take_a_forward_too_where_ranks_must_stay_in_step() -> None:
    model = tiny_llama(96, 2, 32)
    shapes = forwards_of(model)
    for in_step, forwards in ((True, 1), (False, 0)):
        shapes.clear()
        assert prefilled(model, [[7], [9]], torch.device("cpu"), in_step=in_step) == {}
        assert len(shapes) == forwards
    assert resolve(model).generate([[7], [9]], max_new_tokens=3) == [
        greedy(model, prompt, 3) for prompt in ([7], [9])
    ]


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_what_all_prompts_begin_with_goes_through_the_model_as_one_row(name: str, in_step: bool) -> None:
    model = (tiny_llama(96, 2, 32) if name == "llama" else tiny_gpt2(96, 2, 32)).eval()
    header = list(range(3, 23))
    prompts = [[*header, 30 + i, *range(40, 40 + i % 5), 9] for i in range(30)]
    shapes = forwards_of(model)
    with torch.no_grad():
        (cache,) = prefilled(model, prompts, torch.device("cpu"), in_step=in_step).values()
    assert shapes == ([(30, 25)] if in_step else [(1, 20), (30, 5)])
    with torch.no_grad():
        alone = model(input_ids=torch.tensor([prompts[4][:-1]]), use_cache=True).past_key_values
    for layer, want in zip(cache.layers, alone.layers, strict=True):
        assert layer.keys.shape[2] == 25
        torch.testing.assert_close(layer.keys[4], want.keys[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(layer.values[4], want.values[0], rtol=0, atol=1e-6)
    want_new = [greedy(model, prompt, 4) for prompt in prompts[:6]]
    assert resolve(model).generate(prompts, max_new_tokens=4, batch_size=64)[:6] == want_new


def test_where_rows_are_repeated_the_prompts_go_through_generate_alone() -> None:
    model = tiny_llama(96, 2, 32)
    shapes = forwards_of(model)
    strategy = resolve(model)
    found = strategy.generate(PROMPTS, max_new_tokens=3, num_beams=2)
    assert len(found) == len(PROMPTS) and shapes[0][1] == max(map(len, PROMPTS))


def test_a_sliding_window_is_left_to_generate() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=4,
        eos_token_id=None,
    )
    model = MistralForCausalLM(config)
    assert not can_prefill(model) and can_prefill(tiny_llama(96, 2, 32))
    want = [greedy(model, prompt, 6) for prompt in PROMPTS]
    assert resolve(model).generate(PROMPTS, max_new_tokens=6, batch_size=1) == want


def test_keys_lie_where_left_padding_wants_them() -> None:
    model = tiny_llama(96, 2, 32).eval()
    with torch.no_grad():
        (cache,) = prefilled(model, PROMPTS, torch.device("cpu")).values()
        alone = model(input_ids=torch.tensor([RECORD[:3]]), use_cache=True).past_key_values
    longest = len(RECORD) - 1
    for layer, want in zip(cache.layers, alone.layers, strict=True):
        assert layer.keys.shape[0] == len(PROMPTS) and layer.keys.shape[2] == longest
        torch.testing.assert_close(layer.keys[0][:, longest - 3 :], want.keys[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(layer.values[2][:, longest - 3 :], want.values[0], rtol=0, atol=1e-6)
