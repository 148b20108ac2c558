"""ModelForward gives the logits of the model's own forward, at the wanted rows alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from memaudit.errors import StrategyError
from memaudit.strategies.forward import ModelForward
from tests.helpers import tiny_gpt2, tiny_llama

VOCAB = 96


def transformers_model(name: str) -> nn.Module:
    """Return a tiny model of an architecture whose forward does more than project, or has its own cache."""
    import transformers

    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    special: dict[str, dict[str, Any]] = {
        "Gemma2": {"head_dim": 8, "final_logit_softcapping": 0.2, "sliding_window": 4},
        "Cohere": {"logit_scale": 0.25},
        "Granite": {"logits_scaling": 3.0},
        "Mistral": {"sliding_window": 4},
        "Qwen2": {"tie_word_embeddings": True},
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**{**common, **special[name]})
        model: nn.Module = getattr(transformers, f"{name}ForCausalLM")(config)
    return model.eval()


def models() -> dict[str, nn.Module]:
    return {
        "llama": tiny_llama(VOCAB, 2, 32).eval(),
        "llama tied": tiny_llama(VOCAB, 2, 32, tied=True).eval(),
        "gpt2": tiny_gpt2(VOCAB, 2, 32, positions=64).eval(),
        **{name: transformers_model(name) for name in ("Gemma2", "Cohere", "Granite", "Mistral", "Qwen2")},
    }


MODELS = models()
LENGTHS = (11, 6, 8)


def padded(pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, VOCAB, (3, max(LENGTHS)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        mask[row, :length] = 1
        ids[row, length:] = pad
    return ids, mask


def wanted_rows() -> list[tuple[int, int]]:
    return [(0, 3), (0, 9), (1, 0), (1, 4), (2, 6)]


def one_by_one(model: nn.Module, ids: torch.Tensor, rows: list[tuple[int, int]]) -> torch.Tensor:
    """Return the logits of each row by itself, without padding or selection: the independent path."""
    with torch.no_grad():
        return torch.stack(
            [model(input_ids=ids[r : r + 1, : LENGTHS[r]]).logits[0, position] for r, position in rows]
        )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pad", [0, 95])
def test_rows_of_a_padded_batch_equal_single_forwards(name: str, pad: int) -> None:
    model = MODELS[name]
    ids, mask = padded(pad)
    rows = wanted_rows()
    flat = torch.tensor([r * ids.shape[1] + position for r, position in rows])
    forward = ModelForward(model, model)
    with torch.no_grad():
        got = forward(ids, mask, flat)
    assert got.shape == (len(rows), VOCAB)
    torch.testing.assert_close(got, one_by_one(model, ids, rows), atol=2e-6, rtol=0)
    assert forward.head == "rows"


def test_the_head_sees_the_wanted_rows_alone() -> None:
    model = MODELS["llama"]
    ids, mask = padded()
    shapes = []
    handle = model.lm_head.register_forward_hook(lambda module, args, output: shapes.append(output.shape))
    try:
        with torch.no_grad():
            ModelForward(model, model)(ids, mask, torch.tensor([4, 20]))
    finally:
        handle.remove()
    assert shapes == [(1, 2, VOCAB)]
    assert not model.lm_head._forward_pre_hooks  # nothing of ours is left


@pytest.mark.parametrize("name", MODELS)
def test_a_shared_prefix_gives_the_logits_of_the_whole_text(name: str) -> None:
    model = MODELS[name]
    generator = torch.Generator().manual_seed(4)
    prefix = torch.randint(1, VOCAB, (1, 6), generator=generator)
    tails = torch.randint(1, VOCAB, (3, 5), generator=generator)
    mask = torch.tensor([[1] * 5, [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]])
    forward = ModelForward(model, model)
    assert forward.supports_cache
    with torch.no_grad():
        cache = forward.prefix(prefix)
        whole = model(input_ids=torch.cat([prefix.expand(3, -1), tails], dim=1)).logits[:, 6:]
        for _ in range(2):  # the cache is as it was after its first use
            got = forward(tails, mask, torch.arange(15), cache).reshape(3, 5, VOCAB)
            torch.testing.assert_close(got[mask.bool()], whole[mask.bool()], atol=3e-6, rtol=0)
            assert cache.get_seq_length() == 6
            one = forward(tails[:1], mask[:1], torch.arange(5), cache)
            torch.testing.assert_close(one, whole[0], atol=3e-6, rtol=0)


def test_an_adapter_on_the_head_is_part_of_the_logits() -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = get_peft_model(tiny_llama(VOCAB, 2, 32), config).eval()
    ids, mask = padded()
    rows = wanted_rows()
    flat = torch.tensor([r * ids.shape[1] + position for r, position in rows])
    with torch.no_grad():
        got = ModelForward(model, model)(ids, mask, flat)
        without = one_by_one(model.get_base_model(), ids, rows)
        with model.disable_adapter():
            base = one_by_one(model, ids, rows)
    torch.testing.assert_close(got, without, atol=2e-6, rtol=0)
    assert (got - base).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig"])
def test_virtual_tokens_are_stepped_over(kind: str) -> None:
    import peft

    config = getattr(peft, kind)(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny_llama(VOCAB, 2, 32), config).eval()
    ids, mask = padded()
    flat = torch.tensor([r * ids.shape[1] + position for r, position in wanted_rows()])
    forward = ModelForward(model, model)
    with torch.no_grad():
        got = forward(ids, mask, flat)
        # Virtual tokens come first, so that the text's positions are the last ones.
        whole = model(input_ids=ids, attention_mask=mask).logits[:, -ids.shape[1] :]
    torch.testing.assert_close(got, whole.reshape(-1, VOCAB)[flat], atol=2e-6, rtol=0)
    assert not forward.supports_cache
    with pytest.raises(StrategyError, match="no cache that rows can share"):
        forward.prefix(ids[:1])


def test_models_with_a_recurrent_state_share_no_cache() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4))
    forward = ModelForward(model.eval(), model)
    assert not forward.supports_cache
    ids, mask = padded()
    with torch.no_grad():
        got = forward(ids[:1], mask[:1], torch.tensor([5]))
        want = model(input_ids=ids[:1]).logits[0, 5]
    torch.testing.assert_close(got[0], want)


class Plain(nn.Module):
    """A module that returns logits, in one of the ways modules do, and names no head."""

    def __init__(self, returns: str) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)
        self.returns = returns

    def forward(self, tokens: torch.Tensor) -> Any:
        logits = self.table(tokens)
        return {"tensor": logits, "tuple": (logits, None), "dict": {"logits": logits}, "none": None}[
            self.returns
        ]


@pytest.mark.parametrize("returns", ["tensor", "tuple", "dict"])
def test_a_plain_module_gives_rows_of_its_logits(returns: str) -> None:
    model = Plain(returns)
    ids, mask = padded()
    forward = ModelForward(model, model)
    assert forward.head == "full-logits" and not forward.supports_cache
    got = forward(ids, mask, torch.tensor([3, 12]))
    torch.testing.assert_close(got, model.table(ids).reshape(-1, VOCAB)[[3, 12]])


def test_a_forward_without_logits_is_an_error_that_says_so() -> None:
    ids, mask = padded()
    with pytest.raises(StrategyError, match="returned no logits"):
        model = Plain("none")
        ModelForward(model, model)(ids, mask, torch.tensor([0]))


class Liger(nn.Module):
    """As Liger patches a model: no logits unless they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_llama(VOCAB, 1, 32)
        self.config = self.inner.config

    def get_output_embeddings(self) -> nn.Module:
        return self.inner.lm_head

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, skip_logits: bool = True) -> Any:
        if skip_logits:
            self.inner.model(input_ids=input_ids)
            return {"logits": None}
        return self.inner(input_ids=input_ids, attention_mask=attention_mask)


def test_a_fused_loss_is_asked_for_its_logits() -> None:
    model = Liger().eval()
    ids, mask = padded()
    with torch.no_grad():
        got = ModelForward(model, model)(ids, mask, torch.tensor([2]))
        torch.testing.assert_close(got[0], model.inner(input_ids=ids, attention_mask=mask).logits[0, 2])


def test_a_head_that_is_passed_by_is_noticed() -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = tiny_llama(VOCAB, 1, 32)

        def get_output_embeddings(self) -> nn.Module:
            return self.inner.lm_head

        def forward(self, input_ids: torch.Tensor) -> Any:
            return self.inner.model(input_ids=input_ids).last_hidden_state @ self.inner.lm_head.weight.T

    model = Fused().eval()
    ids, mask = padded()
    with pytest.raises(StrategyError, match="called its output head 0 times"):
        ModelForward(model, model)(ids, mask, torch.tensor([2]))


def test_a_cache_is_not_changed_by_a_batch_that_grows_it() -> None:
    model = MODELS["llama"]
    forward = ModelForward(model, model)
    with torch.no_grad():
        cache = forward.prefix(torch.tensor([[5, 6, 7]]))
        before = [(copy.deepcopy(layer.keys), copy.deepcopy(layer.values)) for layer in cache.layers]
        forward(torch.tensor([[8, 9], [3, 4]]), torch.ones(2, 2, dtype=torch.long), torch.arange(4), cache)
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)
