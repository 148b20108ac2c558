"""The vLLM backend against a stand-in of vLLM's types, beside the transformers backend."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from memaudit import attack
from memaudit.errors import ConfigurationError, MissingExtraError
from memaudit.posthoc.membership.vllm_backend import VllmBackend
from tests.attacks.vllm_standin import LLM, LoRARequest, install
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

TEXTS = sample_text(8, seed=1)
POOL = sample_text(3, seed=2)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    tokenizer = tiny_tokenizer(add_bos=True)
    target, reference = (tiny_llama(512, positions=256, seed=seed).eval() for seed in (0, 7))
    models = {"target": (target, tokenizer), "ref": (reference, tokenizer)}
    install(monkeypatch, models)
    return models


def test_scores_are_those_of_the_transformers_backend(engines: dict[str, Any]) -> None:
    attacks = "loss,zlib,mink,lower,ref,ratio,wbc,ez,pac,recall(n_shots=2)"
    options: dict[str, Any] = {"attacks": attacks, "nonmembers": POOL}
    served = attack("target", TEXTS, reference="ref", backend="vllm", **options)
    model, tokenizer = engines["target"]
    plain = attack(model, TEXTS, reference=engines["ref"][0], tokenizer=tokenizer, **options)
    assert served.settings["backend"] == "vllm" and served.settings["max_length"] == 256
    for name, column in plain.scores.items():
        assert served.scores[name] == pytest.approx(column, abs=1e-4), name
    assert served.cost.forwarded == plain.cost.forwarded


def test_attacks_on_the_whole_distribution_need_all_log_probabilities(engines: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="attack minkpp needs the whole next-token distribution"):
        attack("target", TEXTS, attacks="minkpp", backend="vllm")
    full = attack("target", TEXTS, attacks="minkpp,surp,gapk", backend="vllm", full_distribution=True)
    model, tokenizer = engines["target"]
    plain = attack(model, TEXTS, attacks="minkpp,surp,gapk", tokenizer=tokenizer)
    for name, column in plain.scores.items():
        assert full.scores[name] == pytest.approx(column, abs=1e-4), name
    by_default = attack("target", TEXTS, backend="vllm")
    assert set(by_default.scores) == {"loss", "zlib", "mink"}


def test_samples_have_seeds_of_their_own(engines: dict[str, Any]) -> None:
    attacks = "samia(n=2,max_new_tokens=6,top_k=0)"
    one, two = (attack("target", TEXTS[:3], attacks=attacks, backend="vllm") for _ in range(2))
    assert one.scores == two.scores
    backend = VllmBackend(LLM("target"))
    from memaudit.attacks import Generation

    (samples,) = backend.generate([Generation(prompt_ids=(1, 5, 6), seeds=(1, 2, 1), max_new_tokens=8)])
    assert samples[0] == samples[2] != samples[1] and len(samples[0]) == 8


def test_what_vllm_cannot_do_is_said(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    with pytest.raises(ConfigurationError, match="gradients"):
        attack("target", TEXTS, attacks="gradnorm", backend="vllm")
    with pytest.raises(ConfigurationError, match="loads models itself"):
        attack(engines["target"][0], TEXTS, attacks="loss", backend="vllm")
    with pytest.raises(ConfigurationError, match="vllm cannot start"):
        attack("target", TEXTS, attacks="loss", backend="vllm", no_such_option=1)
    adapted = attack("target", TEXTS[:2], attacks="loss", backend="vllm", adapter="/adapters/a")
    assert adapted.settings["adapter"] is True and "LoRA" in caplog.text
    assert LoRARequest("adapter", 1, "/adapters/a").lora_path == "/adapters/a"
    monkeypatch.delitem(sys.modules, "vllm")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"memaudit\[vllm\]"):
        attack("target", TEXTS, attacks="loss", backend="vllm")
