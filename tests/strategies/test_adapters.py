"""Adapters off is the reference, and is refused where it would not be the model training started from."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from memaudit.errors import ReferenceModeError
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_llama

IDS = torch.tensor([[5, 6, 7, 8]])
MASK = torch.ones_like(IDS)
ROWS = torch.arange(4)


def lora(model: nn.Module | None = None, **options: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    settings = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, **options}
    return get_peft_model(model if model is not None else tiny_llama(96, 2, 32), LoraConfig(**settings))


def plain(model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits[0]


def reference(strategy: Any) -> torch.Tensor:
    with strategy.reference() as forward:
        return forward(IDS, MASK, ROWS)


def test_a_model_without_adapters_has_no_reference() -> None:
    assert resolve(tiny_llama(96, 1, 32)).reference() is None


def test_adapters_off_is_the_base_and_on_again_afterwards() -> None:
    base = tiny_llama(96, 2, 32)
    want = plain(copy.deepcopy(base))
    model = lora(base)
    strategy = resolve(model)
    torch.testing.assert_close(reference(strategy), want, atol=1e-6, rtol=0)
    with strategy.scoring() as forward:
        on = forward(IDS, MASK, ROWS)
    assert (on - want).abs().max() > 0.01
    torch.testing.assert_close(on, plain(model), atol=1e-6, rtol=0)


def test_a_saved_module_is_off_too() -> None:
    base = tiny_llama(96, 2, 32)
    want = plain(copy.deepcopy(base))
    model = lora(base, modules_to_save=["lm_head"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modules_to_save" in name:
                parameter.mul_(2.0)
    strategy = resolve(model)
    torch.testing.assert_close(reference(strategy), want, atol=1e-6, rtol=0)
    torch.testing.assert_close(plain(model), _scored(strategy), atol=1e-6, rtol=0)


def _scored(strategy: Any) -> torch.Tensor:
    with strategy.scoring() as forward:
        return forward(IDS, MASK, ROWS)


def test_requires_grad_is_as_before_also_for_frozen_adapter_weights() -> None:
    model = lora()
    frozen = next(p for name, p in model.named_parameters() if "lora_A" in name)
    frozen.requires_grad_(False)
    flags = [p.requires_grad for p in model.parameters()]
    strategy = resolve(model)
    reference(strategy)
    assert [p.requires_grad for p in model.parameters()] == flags
    with pytest.raises(KeyError), strategy.reference():
        raise KeyError("in the middle")
    assert [p.requires_grad for p in model.parameters()] == flags
    assert not any(getattr(m, "disable_adapters", False) is True for m in model.modules())


@pytest.mark.parametrize("bias", ["all", "lora_only"])
def test_trained_bias_is_refused(bias: str) -> None:
    base = tiny_llama(96, 2, 32, attention_bias=True)
    with pytest.raises(ReferenceModeError, match="bias"):
        resolve(lora(base, bias=bias)).reference()


def test_merged_adapters_are_refused() -> None:
    model = lora()
    model.merge_adapter()
    with pytest.raises(ReferenceModeError, match="merged"):
        resolve(model).reference()
    model.unmerge_adapter()
    assert resolve(model).reference() is not None


def test_trained_base_weights_are_refused_by_name() -> None:
    model = lora()
    model.get_input_embeddings().weight.requires_grad_(True)
    with pytest.raises(ReferenceModeError, match="embed_tokens"):
        resolve(model).reference()


def test_several_adapters_need_a_named_reference() -> None:
    from peft import LoraConfig

    base = tiny_llama(96, 2, 32)
    want_base = plain(copy.deepcopy(base))
    model = lora(base)
    want_first = plain(model)
    settings = LoraConfig(r=2, target_modules=["k_proj"], init_lora_weights=False)
    model.add_adapter("second", settings)
    model.set_adapter("second")
    with pytest.raises(ReferenceModeError, match=r"default.*second"):
        resolve(model).reference()
    torch.testing.assert_close(
        reference(resolve(model, reference_adapter="default")), want_first, atol=1e-6, rtol=0
    )
    assert model.active_adapter == "second"
    torch.testing.assert_close(
        reference(resolve(model, reference_adapter="base")), want_base, atol=1e-6, rtol=0
    )
    with pytest.raises(ReferenceModeError, match="no adapter is called"):
        resolve(model, reference_adapter="third").reference()


def test_an_adapter_is_found_inside_another_module() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lm = lora()

    holder = Holder()
    assert resolve(holder).reference() is not None


def test_dora_and_virtual_tokens_have_a_reference() -> None:
    import peft

    base = tiny_llama(96, 2, 32)
    want = plain(copy.deepcopy(base))
    dora = lora(copy.deepcopy(base), use_dora=True)
    torch.testing.assert_close(reference(resolve(dora)), want, atol=1e-6, rtol=0)
    settings = peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM")
    prompts = peft.get_peft_model(copy.deepcopy(base), settings)
    torch.testing.assert_close(reference(resolve(prompts)), want, atol=1e-6, rtol=0)
