"""Checks of adapters, on real PEFT models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memaudit.preflight.peft_checks import check_model
from tests.helpers import tiny_llama

peft = pytest.importorskip("peft")


def wrapped(**options: Any) -> Any:
    config = peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM", **options})
    return peft.get_peft_model(tiny_llama(512, layers=1, hidden=16), config)


def found(model: Any) -> dict[str, str]:
    return {one.code: one.severity for one in check_model(model)}


def test_a_plain_lora_passes() -> None:
    assert found(wrapped()) == {"embeddings-frozen": "info", "modules-trained": "info"}
    message = next(one.message for one in check_model(wrapped()) if one.code == "modules-trained")
    assert message.endswith("of the parameters train, in q_proj")


def test_a_full_fine_tune_passes() -> None:
    assert found(tiny_llama(512, layers=1, hidden=16)) == {}
    assert found(None) == {}


@pytest.mark.parametrize(
    ("options", "code", "severity"),
    [
        ({"bias": "all"}, "adapter-bias", "warning"),
        ({"bias": "lora_only"}, "adapter-bias", "warning"),
        ({"use_dora": True}, "adapter-dora", "info"),
        ({"modules_to_save": ["embed_tokens"]}, "modules-to-save", "warning"),
        ({"modules_to_save": ["lm_head"]}, "modules-to-save", "warning"),
        ({"modules_to_save": ["norm"]}, "modules-to-save", "info"),
        ({"trainable_token_indices": [1, 2]}, "trainable-tokens", "warning"),
    ],
)
def test_options_of_lora(options: dict[str, Any], code: str, severity: str) -> None:
    assert found(wrapped(**options))[code] == severity
    assert code not in found(wrapped())


def test_embeddings_that_train_are_not_called_frozen() -> None:
    assert "embeddings-frozen" not in found(wrapped(modules_to_save=["embed_tokens"]))


def test_a_merged_adapter() -> None:
    model = wrapped()
    model.merge_adapter()
    assert found(model)["adapter-merged"] == "error"
    model.unmerge_adapter()
    assert "adapter-merged" not in found(model)


def test_several_adapters() -> None:
    model = wrapped()
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["v_proj"]))
    assert found(model)["several-adapters"] == "warning"


def test_an_adapter_loaded_for_inference(tmp_path: Any) -> None:
    wrapped().save_pretrained(tmp_path)
    base = tiny_llama(512, layers=1, hidden=16)
    frozen = peft.PeftModel.from_pretrained(base, str(tmp_path))
    codes = found(frozen)
    assert codes["adapter-frozen"] == "error" and codes["nothing-trains"] == "error"
    again = peft.PeftModel.from_pretrained(
        tiny_llama(512, layers=1, hidden=16), str(tmp_path), is_trainable=True
    )
    assert "adapter-frozen" not in found(again)


def test_a_frozen_model() -> None:
    model = tiny_llama(512, layers=1, hidden=16).requires_grad_(False)
    assert found(model) == {"nothing-trains": "error"}


def test_prompt_tuning_changes_the_sequence() -> None:
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(tiny_llama(512, layers=1, hidden=16), config)
    assert found(model)["adapter-kind"] == "warning"


def test_a_quantised_base() -> None:
    model = tiny_llama(512, layers=1, hidden=16)
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    assert found(model)["quantised-base"] == "warning"
    adapted = wrapped()
    adapted.base_model.model.is_loaded_in_4bit = True
    assert found(adapted)["quantised-base"] == "warning"


def test_base_weights_that_train_beside_the_adapter() -> None:
    model = wrapped()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    assert found(model)["adapter-parameters"] == "warning"


def test_the_peft_model_is_found_inside_a_wrapper() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

    assert "adapter-bias" in found(Wrapper(Wrapper(wrapped(bias="all"))))
