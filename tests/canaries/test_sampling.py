"""Sampling from a model: inside the band, reproducible, cheap, and without a trace on model or random states."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from memaudit import generate_canaries
from memaudit.canaries import LEAD
from memaudit.sampling import ModelSampler
from tests.helpers import tiny_gpt2, tiny_llama, tiny_tokenizer, tiny_tokenizers

BAND = (40.0, 500.0)


def perplexity(model: torch.nn.Module, prompt: list[int], secret: tuple[int, ...]) -> float:
    """Score one secret by the model's own loss: an independent path."""
    ids = torch.tensor([[*prompt, *secret]])
    labels = ids.clone()
    labels[:, : len(prompt)] = -100
    model.eval()
    with torch.no_grad():
        return math.exp(float(model(input_ids=ids, labels=labels).loss))


@pytest.mark.parametrize("name", list(tiny_tokenizers()))
def test_secrets_lie_inside_the_band(name: str) -> None:
    tokenizer = tiny_tokenizers()[name]
    model = tiny_llama(len(tokenizer), initializer_range=0.2)
    made = generate_canaries(tokenizer, n=10, n_controls=10, model=model, ppl_band=BAND)
    prompt = tokenizer(LEAD)["input_ids"]
    for canary in made:
        assert canary.generator == "model_scored_high_ppl", made.notes
        expected = perplexity(model, prompt, canary.secret_ids)
        assert canary.metadata["perplexity"] == pytest.approx(expected, rel=1e-4)
        assert BAND[0] <= expected <= BAND[1]
        assert len(canary.secret_ids) == 32


def test_at_least_ten_times_fewer_forwards_than_one_at_a_time() -> None:
    tokenizer = tiny_tokenizer()
    sampler = ModelSampler(tiny_llama(len(tokenizer)))
    made = generate_canaries(tokenizer, model=sampler)
    accepted = sum(canary.generator == "model_scored_high_ppl" for canary in made)
    assert accepted == 132
    # One at a time: a forward a token and one to score, for each candidate; 132 canaries of 32 tokens were
    # 4,356 forwards in the published tool.
    assert sampler.forwards * 10 <= 33 * accepted
    assert sampler.forwards < 4356 / 10


def test_forwards_are_counted_right() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_llama(len(tokenizer))
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    model.register_forward_hook(count)
    sampler = ModelSampler(model)
    generate_canaries(tokenizer, n=8, n_controls=8, model=sampler)
    assert sampler.forwards == calls > 0


def test_reproducible_and_without_a_trace() -> None:
    tokenizer = tiny_tokenizer("bytelevel")
    model = tiny_gpt2(len(tokenizer), dropout=0.3)
    model.train()
    model.transformer.h[0].eval()  # frozen on purpose: it must stay as it is
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    first = generate_canaries(tokenizer, n=6, n_controls=6, model=model, seed=3)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(999)
    second = generate_canaries(tokenizer, n=6, n_controls=6, model=model, seed=3)
    assert first == second
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    model.eval()
    assert generate_canaries(tokenizer, n=6, n_controls=6, model=model, seed=3) == first
    assert all(parameter.grad is None for parameter in model.parameters())


def test_kept_log_probabilities_are_those_of_a_forward() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_llama(len(tokenizer), initializer_range=0.3)
    prompt = tokenizer(LEAD)["input_ids"]
    drawn = ModelSampler(model, max_batch_size=3).sample(
        7, 12, prompt=prompt, allowed=range(20, 400), temperatures=[0.5, 1.0, 1.5, 2.0, 1.0, 1.0, 3.0], seed=1
    )
    assert len(drawn) == 7
    for one in drawn:
        assert all(20 <= token < 400 for token in one.ids)
        expected = perplexity(model, prompt, one.ids)
        assert math.exp(-sum(one.logprobs) / 12) == pytest.approx(expected, rel=1e-4)


def test_a_model_without_a_cache_is_sampled_too() -> None:
    class Plain(torch.nn.Module):
        """Takes ids and gives logits, as a hand-written model does."""

        def __init__(self, vocab: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = torch.nn.Embedding(vocab, 16)
            self.head = torch.nn.Linear(16, vocab)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embedding(ids).cumsum(1))

    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng():
        model = Plain(len(tokenizer))
    sampler = ModelSampler(model)
    made = generate_canaries(tokenizer, n=4, n_controls=4, model=sampler, ppl_band=(2, 1e6))
    assert {canary.generator for canary in made} == {"model_scored_high_ppl"}
    prompt = tokenizer(LEAD)["input_ids"]
    ids = made.canaries[0].secret_ids
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *ids]]))[0].log_softmax(-1)
    mean = sum(float(logits[len(prompt) - 1 + place, token]) for place, token in enumerate(ids)) / len(ids)
    assert made.canaries[0].metadata["perplexity"] == pytest.approx(math.exp(-mean), rel=1e-4)


def test_a_band_that_the_model_cannot_meet_is_recorded() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_llama(len(tokenizer))  # nearly uniform: no text has a perplexity under 100
    made = generate_canaries(tokenizer, n=4, n_controls=4, model=model, ppl_band=(2.0, 3.0))
    assert {canary.generator for canary in made} == {"model_sampled_outside_band"}
    assert any("8 of 8 secrets lie outside the perplexity band" in note for note in made.notes)


def test_a_vocabulary_padded_beyond_the_tokenizer() -> None:
    tokenizer = tiny_tokenizer()
    made = generate_canaries(
        tokenizer, n=4, n_controls=4, model=tiny_llama(len(tokenizer) + 64), ppl_band=(2, 1e6)
    )
    assert max(max(canary.secret_ids) for canary in made) < len(tokenizer)


def test_a_lora_model_samples_as_it_scores() -> None:
    peft = pytest.importorskip("peft")
    tokenizer = tiny_tokenizer()
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        model = peft.get_peft_model(tiny_llama(len(tokenizer)), config)
    made = generate_canaries(tokenizer, n=4, n_controls=4, model=model)
    prompt = tokenizer(LEAD)["input_ids"]
    canary = made.canaries[0]
    assert canary.metadata["perplexity"] == pytest.approx(
        perplexity(model, prompt, canary.secret_ids), rel=1e-4
    )


def test_sampling_through_a_strategy_gives_the_same_perplexities() -> None:
    from memaudit.strategies.resolve import resolve

    tokenizer = tiny_tokenizer()
    model = tiny_llama(len(tokenizer), initializer_range=0.2)
    state = torch.random.get_rng_state()
    made = generate_canaries(tokenizer, n=4, n_controls=4, model=resolve(model))
    assert torch.equal(state, torch.random.get_rng_state())
    prompt = tokenizer(LEAD)["input_ids"]
    for canary in made:
        assert canary.generator == "model_scored_high_ppl"
        expected = perplexity(model, prompt, canary.secret_ids)
        assert canary.metadata["perplexity"] == pytest.approx(expected, rel=1e-4)
