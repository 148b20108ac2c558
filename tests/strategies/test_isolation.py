"""An audit leaves everything about training as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from memaudit.strategies.isolation import isolated
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_gpt2, tiny_llama


def disturb() -> None:
    random.random()
    np.random.rand()
    torch.rand(2)


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


@pytest.mark.parametrize("raises", [False, True])
def test_random_states_are_as_before_also_after_an_exception(raises: bool) -> None:
    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    want = draw()
    seed()
    try:
        with isolated(nn.Dropout()):
            disturb()
            if raises:
                raise KeyError("in the middle")
    except KeyError:
        assert raises
    assert draw() == want


def test_the_check_of_random_states_would_notice_a_change() -> None:
    torch.manual_seed(1)
    want = torch.rand(1)
    torch.manual_seed(1)
    disturb()
    assert torch.rand(1) != want


@pytest.mark.parametrize("raises", [False, True])
def test_flags_of_each_submodule_are_as_before(raises: bool) -> None:
    model = tiny_llama(96, 2, 32)
    model.train()
    model.model.layers[0].eval()  # frozen on purpose
    model.gradient_checkpointing_enable()
    model.config.use_cache = True
    flags = {name: module.training for name, module in model.named_modules()}
    checkpointing = [getattr(module, "gradient_checkpointing", None) for module in model.modules()]
    assert any(checkpointing)
    try:
        with isolated(model):
            assert not any(module.training for module in model.modules())
            assert not any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
            assert model.config.use_cache is False
            if raises:
                raise KeyError("in the middle")
    except KeyError:
        assert raises
    assert {name: module.training for name, module in model.named_modules()} == flags
    assert [getattr(module, "gradient_checkpointing", None) for module in model.modules()] == checkpointing
    assert model.config.use_cache is True


def test_inference_mode_is_left_and_gradients_are_off() -> None:
    model = nn.Linear(2, 2)
    with torch.inference_mode():
        with isolated(model):
            assert not torch.is_inference_mode_enabled() and not torch.is_grad_enabled()
            out = model(torch.ones(1, 2))
            assert not out.is_inference()
        assert torch.is_inference_mode_enabled()
    with isolated(model, gradients=True):
        assert torch.is_grad_enabled()


def test_a_step_after_an_audit_inside_inference_mode_works() -> None:
    model = tiny_gpt2(96, 1, 32)
    strategy = resolve(model)
    with torch.inference_mode(), strategy.scoring() as forward:
        forward(torch.tensor([[3, 4]]), torch.ones(1, 2, dtype=torch.long), torch.tensor([0]))
    model(input_ids=torch.tensor([[3, 4]])).logits.sum().backward()


def test_autocast_stays_and_its_cache_does_not_cut_training() -> None:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with isolated(model):
            assert torch.is_autocast_enabled("cpu")
            assert model(torch.ones(1, 4)).dtype == torch.bfloat16
        model(torch.ones(1, 4)).sum().backward()
    assert model.weight.grad is not None


def test_what_runs_after_runs_also_after_an_exception() -> None:
    ran = []
    with pytest.raises(KeyError), isolated(nn.Identity(), after=lambda: ran.append(1)):
        raise KeyError("x")
    assert ran == [1]


def test_dropout_is_off_while_scoring_and_generating_moves_no_random_state() -> None:
    model = tiny_gpt2(96, 2, 32, dropout=0.5).train()
    strategy = resolve(model)
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.manual_seed(3)
    want = torch.rand(1)
    torch.manual_seed(3)
    with strategy.scoring() as forward:
        first, second = (forward(ids, torch.ones_like(ids), torch.tensor([1, 2])) for _ in range(2))
    strategy.generate([[5, 6]], max_new_tokens=3, do_sample=True)
    assert torch.equal(first, second)
    assert torch.rand(1) == want and model.training
