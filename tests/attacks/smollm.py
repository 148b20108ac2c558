"""SmolLM2-135M with a LoRA adapter that was never trained, and real texts: for the slow tests."""

from __future__ import annotations

import json
from typing import Any

import torch

from tests.conftest import shared_path

ATTACKS = "loss,zlib,mink,minkpp,lower,gapk,surp,ref,ratio,ref_minkpp,wbc,ez,pac(n=1),recall(n_shots=2)"


def real_texts(n: int, words: int, skip: int = 0) -> list[str]:
    """The first words of real texts of both sources, in order of the file."""
    lines = shared_path("data/records.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    texts = list(dict.fromkeys(text for text in texts if text.strip()))
    return [" ".join(text.split()[:words]) for text in texts[skip : skip + n]]


def adapted() -> tuple[Any, Any]:
    """Model and tokenizer; the adapter's weights are random and the same in every process."""
    from peft import LoraConfig, get_peft_model

    from memaudit.demo.smollm2 import load_smollm2

    model, tokenizer = load_smollm2()
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return get_peft_model(model, config).eval(), tokenizer


class AdaptersOff:
    """The same model called with its adapters off."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, **inputs: Any) -> Any:
        with self._model.disable_adapter():
            return self._model(**inputs)
