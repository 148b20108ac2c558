"""Generation in batches gives what each prompt gives alone, without the checkpoint's own settings."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memaudit.errors import ConfigurationError, StrategyError
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_gpt2, tiny_llama

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21], [30, 31, 32, 33]]


def greedy(model: nn.Module, prompt: list[int], count: int, end: int | None = None) -> list[int]:
    """Decode by plain forwards."""
    model.eval()
    ids, new = list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            token = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
            if token == end:
                break
            ids.append(token)
            new.append(token)
    return new


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_batches_equal_single_prompts_with_learned_positions_too(name: str, batch_size: int) -> None:
    model = tiny_llama(96, 2, 32) if name == "llama" else tiny_gpt2(96, 2, 32)
    found = resolve(model).generate(PROMPTS, max_new_tokens=8, batch_size=batch_size)
    assert found == [greedy(model, prompt, 8) for prompt in PROMPTS]


def test_new_ids_end_before_the_end_token() -> None:
    model = tiny_llama(96, 2, 32)
    full = [greedy(model, prompt, 8) for prompt in PROMPTS]
    end = full[0][4]
    model.generation_config.eos_token_id = end
    want = [greedy(model, prompt, 8, end) for prompt in PROMPTS]
    assert want[0] == full[0][: full[0].index(end)]
    assert resolve(model).generate(PROMPTS, max_new_tokens=8) == want


def test_the_checkpoints_settings_count_only_where_they_are_given() -> None:
    model = tiny_llama(96, 2, 32)
    settings = model.generation_config
    settings.repetition_penalty = 5.0
    settings.no_repeat_ngram_size = 1
    settings.max_new_tokens = 8
    settings.pad_token_id = 0
    plain = [greedy(model, prompt, 8) for prompt in PROMPTS]
    assert any(len(set(new)) < len(new) for new in plain), "the prompts must repeat a token to tell"
    strategy = resolve(model)
    assert strategy.generate(PROMPTS, max_new_tokens=8) == plain
    assert model.generation_config is settings and settings.repetition_penalty == 5.0
    with_settings = strategy.generate(PROMPTS, generation_config=settings)
    assert all(len(set(new)) == len(new) for new in with_settings)


def test_sampling_depends_on_the_seed_alone() -> None:
    model = tiny_llama(96, 2, 32)
    strategy = resolve(model)

    def sample(seed: int) -> list[list[int]]:
        torch.rand(1)  # the global state must not matter
        return strategy.generate(PROMPTS, max_new_tokens=8, do_sample=True, seed=seed)

    assert sample(1) == sample(1) != sample(2)


def test_sampling_is_from_the_whole_vocabulary() -> None:
    """transformers' default truncates to the 50 best tokens, which would bias extraction rates."""
    model = tiny_llama(96, 2, 32)
    found = resolve(model).generate([[5]] * 400, max_new_tokens=1, do_sample=True, batch_size=400)
    assert len({new[0] for new in found if new}) > 60


def test_no_prompts_give_nothing_and_empty_ones_are_refused() -> None:
    strategy = resolve(tiny_llama(96, 2, 32))
    assert strategy.generate([], max_new_tokens=3) == []
    with pytest.raises(ConfigurationError, match="without tokens"):
        strategy.generate([[5], []], max_new_tokens=3)
    with pytest.raises(ConfigurationError, match="max_new_tokens"):
        strategy.generate([[5]])
    with pytest.raises(ConfigurationError, match="batch_size"):
        strategy.generate([[5]], max_new_tokens=3, batch_size=0)


def test_a_module_that_cannot_generate_says_so() -> None:
    with pytest.raises(StrategyError, match="no generate"):
        resolve(nn.Embedding(4, 4)).generate([[1]], max_new_tokens=1)


def test_adapters_generate_with_their_weights() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(tiny_llama(96, 2, 32), config)
    found = resolve(model).generate(PROMPTS, max_new_tokens=6)
    assert found == [greedy(model, prompt, 6) for prompt in PROMPTS]


def test_generation_config_on_the_model_is_back_after_an_error() -> None:
    model = tiny_llama(96, 2, 32)
    settings = model.generation_config

    def broken(*args: object, **kwargs: object) -> None:
        raise KeyError("stopping criteria")

    with pytest.raises(KeyError):
        resolve(model).generate([[5]], max_new_tokens=2, stopping_criteria=[broken])
    assert model.generation_config is settings
