"""What a sweep costs, that batches change nothing, and that a second run forwards nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from memaudit import attack
from memaudit.attacks import make, names
from memaudit.attacks.masked_lm import MaskedLM
from memaudit.errors import ConfigurationError
from memaudit.posthoc.membership.models import open_backend
from tests.attacks.plain import Plain
from tests.conftest import shared_path
from tests.helpers import sample_text, tiny_gpt2, tiny_llama, tiny_tokenizer

TEXTS = sample_text(24, seed=1)
LABELS = [1, 0] * 12
TOKEN_ATTACKS = "loss,zlib,mink,mink(ratio=0.1),minkpp,gapk,surp"
REFERENCE_ATTACKS = "ref,ratio,ref_minkpp,wbc,ez"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer(add_bos=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(512, positions=512).eval()


@pytest.fixture(scope="module")
def reference() -> Any:
    return tiny_llama(512, positions=512, seed=7).eval()


class Counted:
    """Rows and calls that reach a model's forward."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.calls, self.rows = 0, 0
        self._handle = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.calls, self.rows = self.calls + 1, self.rows + len(ids)

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *exit: object) -> None:
        self._handle.remove()


@pytest.mark.parametrize("batch", [1, 3, 32])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_scores_equal_a_plain_computation_in_every_batch_size(kind: str, batch: int, tokenizer: Any) -> None:
    make_model = tiny_llama if kind == "llama" else tiny_gpt2
    model, reference = (make_model(512, seed=seed).eval() for seed in (0, 7))
    plain = Plain(model, tokenizer, reference)
    result = attack(
        model,
        TEXTS,
        LABELS,
        attacks="loss,zlib,mink,minkpp,lower,gapk,surp,ref,ratio,ref_minkpp,wbc,ez",
        tokenizer=tokenizer,
        reference=reference,
        max_batch_size=batch,
    )
    for name, method in plain.methods().items():
        found = list(result.scores[name].values())
        assert found == pytest.approx([method(text) for text in TEXTS], abs=1e-4), name


def test_all_token_attacks_cost_the_forwards_of_one(model: Any, tokenizer: Any) -> None:
    with Counted(model) as one:
        alone = attack(model, TEXTS, LABELS, attacks="loss", tokenizer=tokenizer)
    with Counted(model) as all_of_them:
        together = attack(model, TEXTS, LABELS, attacks=TOKEN_ATTACKS, tokenizer=tokenizer)
    assert (all_of_them.calls, all_of_them.rows) == (one.calls, one.rows) and one.rows == len(TEXTS)
    assert together.cost.forwarded == alone.cost.forwarded == len(TEXTS)
    assert together.cost.saved_by_sharing == 6 * len(TEXTS)
    assert together.scores["loss"] == alone.scores["loss"]


def test_the_first_twelve_attacks_cost_the_distinct_variants(
    model: Any, reference: Any, tokenizer: Any
) -> None:
    """loss ... recall of the table: the text under two models, lower, neighbours, swapped words, one prefix."""
    twelve = names()[:12]
    assert twelve[-1] == "recall" and "neighbour" in twelve
    specs = [make("neighbour", n=4, top_k=3) if one == "neighbour" else make(one) for one in twelve]
    masked = MaskedLM.load(
        str(shared_path("golden/mia_tiny/mlm")), str(shared_path("golden/mia_tiny/tokenizer_bos"))
    )
    with Counted(model) as target, Counted(reference) as other:
        result = attack(
            model,
            TEXTS,
            LABELS,
            attacks=specs,
            tokenizer=tokenizer,
            reference=reference,
            masked_lm=masked,
            corpus=TEXTS,
            max_batch_size=8,
        )
    judged = len(result.tokens)
    own = {tuple(tokenizer(TEXTS[int(i)])["input_ids"]) for i in result.tokens}
    lowered = {tuple(tokenizer(TEXTS[int(i)].lower())["input_ids"]) for i in result.tokens}
    most = len(own | lowered) + judged * (5 + 4 + 1 + 1)  # swapped, neighbours, "original", after the prefix
    assert other.rows == len(own)
    prefixes = 1
    assert target.rows <= most + prefixes
    assert target.rows + other.rows == result.cost.forwarded + prefixes
    assert result.cost.requested == result.cost.forwarded + result.cost.saved_by_sharing
    assert all(len(column) == judged for column in result.scores.values())


def test_a_prefix_is_forwarded_once_and_changes_no_score(model: Any, tokenizer: Any) -> None:
    pool = sample_text(6, seed=9)
    options = {"attacks": "recall(n_shots=4),conrecall(n_shots=4)", "tokenizer": tokenizer}
    with Counted(model) as counted:
        result = attack(model, TEXTS, nonmembers=pool[:3], members=pool[3:], max_batch_size=5, **options)
    batches = -(-len(TEXTS) // 5)
    assert counted.calls == 3 * batches + 2
    plain = Plain(model, tokenizer)
    encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    found = result.scores["recall(n_shots=4)"]
    orders = [
        [tokenizer.bos_token_id, *(token for i in order for token in encode(pool[i]))]
        for order in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0])
    ]
    by_order = [[plain.nll(text, prefix) / plain.nll(text) for text in TEXTS] for prefix in orders]
    matching = [one for one in by_order if list(found.values()) == pytest.approx(one, abs=1e-4)]
    assert len(matching) == 1


def test_a_second_run_and_a_new_attack_over_old_signals_forward_nothing(
    model: Any, reference: Any, tokenizer: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer, "reference": reference, "store": tmp_path / "store"}
    attacks = f"{TOKEN_ATTACKS},ref,lower,pac,recall(n_shots=2),samia(n=2,max_new_tokens=12),gradnorm"
    first = attack(model, TEXTS, LABELS, attacks=attacks, **options)
    assert first.cost.reused == 0 and first.cost.forwarded > 0
    with Counted(model) as target, Counted(reference) as other:
        second = attack(model, TEXTS, LABELS, attacks=attacks, **options)
    assert (target.calls, other.calls) == (0, 0)
    assert second.scores == first.scores
    assert second.cost.reused == first.cost.forwarded and second.cost.forwarded == 0
    with Counted(model) as target:
        more = attack(model, TEXTS, LABELS, attacks=f"recall(n_shots=2),{REFERENCE_ATTACKS}", **options)
    assert target.calls == 0 and len(more.scores["ez"]) == len(TEXTS) - 2
    with Counted(model) as target:
        attack(model, [*TEXTS, "one more text"], attacks="loss", **options)
    assert target.rows == 1 + 2  # the shots that were held apart had not been judged before


def test_another_adapter_state_or_weights_share_nothing(tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = get_peft_model(tiny_llama(512), config).eval()
    options: dict[str, Any] = {"tokenizer": tokenizer, "store": tmp_path / "store"}
    own = attack(model, TEXTS, attacks="loss,ref", **options)
    assert own.settings["reference"] == "the target with its adapters off"
    plain = Plain(model, tokenizer)
    with model.disable_adapter():
        base = [plain.loss(text) for text in TEXTS]
    tuned = [plain.loss(text) for text in TEXTS]
    assert list(own.scores["loss"].values()) == pytest.approx(tuned, abs=1e-5)
    assert list(own.scores["ref"].values()) == pytest.approx(np.subtract(tuned, base).tolist(), abs=1e-5)
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if "lora_B" in name).mul_(2.0)
    changed = attack(model, TEXTS, attacks="loss", **options)
    assert changed.cost.reused == 0 and changed.scores["loss"] != own.scores["loss"]
    model.merge_adapter()
    merged = attack(model, TEXTS, attacks="loss", **options)
    assert merged.cost.reused == 0
    assert list(merged.scores["loss"].values()) == pytest.approx(
        list(changed.scores["loss"].values()), abs=1e-4
    )


def test_gradnorm_equals_a_plain_backward(model: Any, reference: Any, tokenizer: Any) -> None:
    result = attack(model, TEXTS[:5], attacks="gradnorm", tokenizer=tokenizer, reference=reference)

    def norm(one: Any, text: str) -> float:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        one.zero_grad()
        one(input_ids=ids, labels=ids).loss.backward()
        total = sum(float(p.grad.double().square().sum()) for p in one.parameters() if p.grad is not None)
        one.zero_grad()
        return total

    expected = [norm(reference, text) - norm(model, text) for text in TEXTS[:5]]
    assert list(result.scores["gradnorm"].values()) == pytest.approx(expected, rel=1e-4)
    assert all(p.grad is None for p in model.parameters())


def test_rmia_equals_its_definition(model: Any, reference: Any, tokenizer: Any) -> None:
    pool = sample_text(10, seed=5)
    result = attack(model, TEXTS, attacks="rmia", tokenizer=tokenizer, reference=reference, nonmembers=pool)
    plain = Plain(model, tokenizer, reference)
    probability = lambda one, text: float(plain.logprobs(one, text).mean().exp())  # noqa: E731
    ratios = [probability(model, text) / probability(reference, text) for text in pool]
    for text, score in zip(TEXTS, result.scores["rmia"].values(), strict=True):
        own = probability(model, text) / probability(reference, text)
        assert score == pytest.approx(np.mean([own / one > 1 for one in ratios]), abs=0.11)


@pytest.mark.parametrize(
    ("attacks", "expected"),
    [
        ("ref", "needs a reference model"),
        ("dcpdd", "needs a reference corpus"),
        ("neighbour", "needs a masked language model"),
        ("recall", "needs nonmembers held apart"),
        ("conrecall(shots='judged')", "labelled so among the judged"),
        ("minkk", "did you mean 'mink"),
    ],
)
def test_what_an_attack_lacks_is_said_before_anything_is_forwarded(
    model: Any, tokenizer: Any, attacks: str, expected: str
) -> None:
    with Counted(model) as counted, pytest.raises(ConfigurationError, match=expected):
        attack(model, TEXTS, attacks=attacks, tokenizer=tokenizer)
    assert counted.calls == 0


def test_models_are_left_as_they_were(tokenizer: Any) -> None:
    model = tiny_gpt2(512, positions=256).train()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state = torch.random.get_rng_state()
    result = attack(
        model, TEXTS[:4], attacks="loss,samia(n=1,max_new_tokens=4),gradnorm", tokenizer=tokenizer
    )
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[name], one) for name, one in model.state_dict().items())
    again = attack(model.eval(), TEXTS[:4], attacks="loss", tokenizer=tokenizer)
    assert again.scores["loss"] == result.scores["loss"]  # dropout was off although the model trains


def test_open_backend_refuses_what_it_cannot_use(model: Any, tokenizer: Any) -> None:
    with pytest.raises(ConfigurationError, match="give one of transformers, vllm"):
        open_backend(model, tokenizer=tokenizer, backend="jax")
    with pytest.raises(ConfigurationError, match="for a model given by its path"):
        open_backend(model, tokenizer=tokenizer, strategy="fsdp2")
    with pytest.raises(ConfigurationError, match="no tokenizer"):
        open_backend(model)


def test_a_reference_or_tokenizer_of_another_vocabulary_is_refused(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match="reference model has a vocabulary of 64 ids"):
        attack(model, TEXTS, attacks="ref", tokenizer=tokenizer, reference=tiny_llama(64).eval())
    folder = tmp_path / "other"
    tiny_llama(512).save_pretrained(folder)
    tiny_tokenizer("wordpiece").save_pretrained(folder)
    with pytest.raises(ConfigurationError, match=r"reference's tokenizer .* differs from the target's"):
        attack(model, TEXTS, attacks="ref", tokenizer=tokenizer, reference=str(folder))
    tokenizer.save_pretrained(folder)
    assert (
        len(attack(model, TEXTS, attacks="ref", tokenizer=tokenizer, reference=str(folder)).scores["ref"])
        == 24
    )


def test_a_text_with_both_labels_is_said(model: Any, tokenizer: Any) -> None:
    result = attack(model, [*TEXTS, TEXTS[0]], [*LABELS, 0], attacks="loss", tokenizer=tokenizer)
    assert any("1 texts are labelled member and non-member alike" in note for note in result.notes)


def test_a_damaged_file_of_the_store_is_scored_again(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"attacks": "loss", "tokenizer": tokenizer, "store": tmp_path / "store"}
    first = attack(model, TEXTS, max_batch_size=8, **options)
    files = sorted((tmp_path / "store").rglob("*.arrow"))
    assert len(files) == 3
    files[1].write_bytes(files[1].read_bytes()[:-100])
    again = attack(model, TEXTS, max_batch_size=8, **options)
    assert (again.cost.forwarded, again.cost.reused) == (8, 16)
    assert again.scores["loss"] == pytest.approx(first.scores["loss"], abs=1e-6)
    assert attack(model, TEXTS, **options).cost.forwarded == 0


def test_models_whose_state_cannot_be_shared_get_prefix_and_text_together(tokenizer: Any) -> None:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=512, hidden_size=32, num_hidden_layers=2, state_size=4)
    model = MambaForCausalLM(config).eval()
    pool = sample_text(1, seed=9)
    result = attack(
        model, TEXTS[:6], attacks="recall(n_shots=1)", tokenizer=tokenizer, nonmembers=pool, max_length=256
    )
    plain = Plain(model, tokenizer)
    prefix = tokenizer(pool[0])["input_ids"]
    expected = [plain.nll(text, prefix) / plain.nll(text) for text in TEXTS[:6]]
    assert list(result.scores["recall(n_shots=1)"].values()) == pytest.approx(expected, abs=1e-4)
    assert result.cost.prefix_tokens_saved == 0


def test_paths_of_checkpoints_and_device_maps(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = str(tmp_path / "model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    options: dict[str, Any] = {"attacks": "loss,recall(n_shots=1)", "nonmembers": TEXTS[:1]}
    expected = attack(model, TEXTS, tokenizer=tokenizer, **options)
    by_path = attack(folder, TEXTS, strategy="single", **options)
    places = dict.fromkeys(["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"], "cpu")
    places |= {"model.layers.0": "disk", "model.layers.1": "cpu"}
    spread = AutoModelForCausalLM.from_pretrained(folder, device_map=places, offload_folder=tmp_path / "disk")
    by_map = attack(spread, TEXTS, **options)  # the tokenizer beside the checkpoint is found by its name
    assert (by_path.settings["strategy"], by_map.settings["strategy"]) == ("single", "device_map")
    for found in (by_path, by_map):
        for name, column in expected.scores.items():
            assert found.scores[name] == pytest.approx(column, abs=1e-5)
    with pytest.raises(ConfigurationError, match="loading options"):
        attack(folder, TEXTS, attacks="loss", no_such_option=1)


def test_a_third_partys_attack_may_ask_for_texts_of_its_own(model: Any, tokenizer: Any) -> None:
    from collections.abc import Mapping
    from dataclasses import dataclass

    from memaudit.attacks import Attack, Needs, Record, Variant, View
    from memaudit.attacks.tools import Tools

    @dataclass(frozen=True, kw_only=True)
    class Upper(Attack):
        name = "upper_of_a_third_party"
        needs = Needs(variants=True)

        def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
            return {"text": record.variant, "upper": tools.variant(record.text.upper())}

        def score(self, view: View) -> float:
            return float(view.signals.logprob.mean() - view.target["upper"].logprob.mean())

    result = attack(model, TEXTS[:5], attacks=[Upper(), "loss"], tokenizer=tokenizer)
    plain = Plain(model, tokenizer)
    expected = [plain.nll(text.upper()) - plain.nll(text) for text in TEXTS[:5]]
    assert list(result.scores["upper_of_a_third_party"].values()) == pytest.approx(expected, abs=1e-4)
    assert result.cost.forwarded == 10 and result.cost.saved_by_sharing == 5


def test_the_stack_by_name(model: Any, tokenizer: Any) -> None:
    result = attack(model, TEXTS, LABELS, attacks="loss,mink,stack", tokenizer=tokenizer)
    assert set(result.scores) == {"loss", "mink", "stack"} and result.stacked is not None
    with pytest.raises(ConfigurationError, match="stack needs"):
        attack(model, TEXTS[:8], LABELS[:8], attacks="loss,mink,stack", tokenizer=tokenizer)
