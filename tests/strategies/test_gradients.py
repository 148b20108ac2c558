"""Squared gradient norms equal those of an ordinary backward, and leave gradients as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memaudit.errors import ConfigurationError, StrategyError
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_gpt2, tiny_llama

RECORDS = [([5, 6, 7, 8, 9, 10], (2, 6)), ([20, 21, 22], (1, 2)), ([30, 31, 32, 33], (1, 4))]
IDS = [ids for ids, _ in RECORDS]
SPANS = [span for _, span in RECORDS]


def by_backward(model: nn.Module, ids: list[int], span: tuple[int, int]) -> float:
    model.eval()
    grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    logits = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    (-sum(logits[t - 1, ids[t]] for t in range(*span)) / (span[1] - span[0])).backward()
    total = sum(float((p.grad.double() ** 2).sum()) for p in model.parameters() if p.grad is not None)
    for parameter, gradient in zip(model.parameters(), grads, strict=True):
        parameter.grad = gradient
    return total


@pytest.mark.parametrize("name", ["llama", "tied", "gpt2"])
def test_norms_equal_a_backward_and_gradients_stay(name: str) -> None:
    model = {
        "llama": lambda: tiny_llama(96, 2, 32),
        "tied": lambda: tiny_llama(96, 2, 32, tied=True),
        "gpt2": lambda: tiny_gpt2(96, 2, 32),
    }[name]()
    model.train()
    model(input_ids=torch.tensor([[3, 4]])).logits.sum().backward()
    before = [(p.grad, p.grad.clone()) for p in model.parameters()]
    got = resolve(model).gradient_norms(IDS, SPANS)
    for parameter, (gradient, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient and torch.equal(gradient, value)
    assert model.training
    want = [by_backward(model, ids, span) for ids, span in RECORDS]
    assert got == pytest.approx(want, rel=1e-5)


def test_only_trained_parameters_count() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False)
    model = get_peft_model(tiny_llama(96, 2, 32), config)
    got = resolve(model).gradient_norms(IDS, SPANS)
    assert got == pytest.approx([by_backward(model, ids, span) for ids, span in RECORDS], rel=1e-5)


def test_hooks_that_accumulate_or_reduce_see_nothing() -> None:
    model = tiny_llama(96, 1, 32)
    seen = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    resolve(model).gradient_norms(IDS, SPANS)
    assert seen == []
    assert all(not p._backward_hooks for p in model.parameters())


def test_what_cannot_be_answered_is_refused() -> None:
    model = tiny_llama(96, 1, 32).requires_grad_(False)
    with pytest.raises(StrategyError, match="no parameter is trained"):
        resolve(model).gradient_norms(IDS, SPANS)
    model.requires_grad_(True)
    with pytest.raises(ConfigurationError, match="spans"):
        resolve(model).gradient_norms(IDS, SPANS[:1])
    with pytest.raises(StrategyError, match="span"):
        resolve(model).gradient_norms([[5, 6]], [(0, 1)])
