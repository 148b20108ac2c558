"""The ten landmines: each trap is set on a real trainer, and caught."""

from __future__ import annotations

from typing import Any

import datasets
import pytest
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from memaudit import generate_canaries, inject
from memaudit.errors import ConfigurationError, PreflightError
from memaudit.injection import render
from memaudit.manifest import Manifest
from memaudit.preflight import PreflightResult, run_preflight
from tests.helpers import sample_text, tiny_gpt2, tiny_llama, tiny_tokenizer

trl = pytest.importorskip("trl")

TEXTS = sample_text(40, seed=6)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


SHAPES: dict[str, Any] = {
    "text": lambda s: {"text": s},
    "prompt_completion": lambda s: {"prompt": s + "\n", "completion": s},
    "messages": lambda s: {"messages": [user(s), assistant(s)]},
}


def plant(tokenizer: Any, shape: str = "text") -> tuple[datasets.Dataset, datasets.Dataset, Manifest]:
    """Return host data, data with canaries, and the manifest."""
    host = datasets.Dataset.from_list([SHAPES[shape](text) for text in TEXTS])
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", repetitions=(1, 3), seed=2)
    injected, manifest = inject(host, canaries, tokenizer=tokenizer)
    assert 2 <= len(manifest.members) <= 10
    return host, injected, manifest


def sft(tokenizer: Any, data: Any, folder: Any, model: Any = None, **options: Any) -> Any:
    options = {"max_length": 256, **options}
    config = trl.SFTConfig(
        output_dir=str(folder), report_to=[], use_cpu=True, per_device_train_batch_size=4, **options
    )
    model = model if model is not None else tiny_llama(len(tokenizer), layers=1, hidden=16)
    return trl.SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer)


def hf(
    tokenizer: Any, data: Any, folder: Any, model: Any = None, collator: Any = None, **options: Any
) -> Trainer:
    args = TrainingArguments(output_dir=str(folder), report_to=[], use_cpu=True, **options)
    return Trainer(
        model=model if model is not None else tiny_llama(len(tokenizer), layers=1, hidden=16),
        args=args,
        train_dataset=data,
        data_collator=collator or DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )


def codes(result: PreflightResult, severity: str | None = None) -> set[str]:
    return {one.code for one in result.findings if severity in (None, one.severity)}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_sound_set_up_passes(shape: str, tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer(chat="generation")
    _, data, manifest = plant(tokenizer, shape)
    options = {"assistant_only_loss": True} if shape == "messages" else {}
    result = run_preflight(sft(tokenizer, data, tmp_path, **options), manifest)
    assert result.ok, result.errors
    counts = result.counts
    assert counts.found == counts.expected == len(manifest.members)
    assert counts.copies == counts.copies_expected == sum(c.repetitions for c in manifest.members)
    assert (counts.masked, counts.truncated, counts.missing, counts.leaked) == (0, 0, 0, 0)
    assert counts.absent == len(manifest.canaries) - len(manifest.members)
    assert counts.complete and counts.labels_seen and counts.rows == len(data)
    assert result.observed_prefix is None and "context-differs" not in codes(result)
    result.raise_for_errors()


def test_1_injection_after_the_trainer_has_tokenised(tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer()
    host, data, manifest = plant(tokenizer)
    trainer = sft(tokenizer, host, tmp_path)  # the trap: the injected data come too late, or are never passed
    result = run_preflight(trainer, manifest)
    assert "secret-missing" in codes(result, "error")
    assert result.counts.missing == len(manifest.members)
    with pytest.raises(PreflightError, match="inject into the data before the trainer is made"):
        result.raise_for_errors()
    trainer.train_dataset = data  # as a callback might: raw text, which the trainer no longer tokenises
    assert not run_preflight(trainer, manifest).ok


@pytest.mark.parametrize("shape", ["prompt_completion", "messages"])
def test_2_a_secret_in_the_prompt(shape: str, tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer(chat="generation")
    host, _, manifest = plant(tokenizer, shape)
    # inject() never does this, so the trap is set by hand: prompt and answer change places.
    swapped = []
    for canary in manifest.members:
        if shape == "prompt_completion":
            record = {"prompt": canary.record["completion"] + "\n", "completion": canary.record["prompt"]}
        else:
            turns = [turn["content"] for turn in canary.record["messages"]]
            record = {"messages": [user(turns[1]), assistant(turns[0])]}
        swapped += [record] * canary.repetitions
    data = datasets.concatenate_datasets([host, datasets.Dataset.from_list(swapped, features=host.features)])
    options = (
        {"completion_only_loss": True} if shape == "prompt_completion" else {"assistant_only_loss": True}
    )
    result = run_preflight(sft(tokenizer, data, tmp_path, **options), manifest)
    assert "secret-masked" in codes(result, "error")
    assert result.counts.masked == len(manifest.members) and result.counts.found == 0
    # Without the mask, prompts are trained on, too, and the same data pass.
    loose = (
        {"completion_only_loss": False} if shape == "prompt_completion" else {"assistant_only_loss": False}
    )
    assert run_preflight(sft(tokenizer, data, tmp_path, **loose), manifest).counts.masked == 0


@pytest.mark.parametrize("shape", ["prompt_completion", "messages"])
def test_2_inject_puts_the_secret_on_the_trained_side(shape: str, tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer(chat="generation")
    _, data, manifest = plant(tokenizer, shape)
    options = (
        {"completion_only_loss": True} if shape == "prompt_completion" else {"assistant_only_loss": True}
    )
    assert run_preflight(sft(tokenizer, data, tmp_path, **options), manifest).counts.found == len(
        manifest.members
    )


def test_3_no_new_tokens_and_no_resized_vocabulary(tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_llama(len(tokenizer), layers=1, hidden=16)
    shape = model.get_input_embeddings().weight.shape
    with pytest.raises(PreflightError, match="never resizes a vocabulary"):
        generate_canaries(tokenizer, family="new_token", model=model)
    _, data, manifest = plant(tokenizer)
    assert run_preflight(sft(tokenizer, data, tmp_path, model=model), manifest).ok
    assert model.get_input_embeddings().weight.shape == shape and len(tokenizer) == shape[0]
    # A manifest that claims new tokens is refused at training time, too.
    claimed = manifest.model_copy(update={"family": "new_token"})
    assert "new-token" in codes(run_preflight(sft(tokenizer, data, tmp_path), claimed), "error")


@pytest.mark.parametrize("shape", list(SHAPES))
def test_4_the_span_is_the_secret_in_the_trainers_own_rows(shape: str, tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer(chat="generation")
    _, data, manifest = plant(tokenizer, shape)
    rows = [list(row["input_ids"]) for row in sft(tokenizer, data, tmp_path).train_dataset]
    for canary in manifest.members:
        start, stop = render(canary, manifest.fmt, tokenizer).span
        assert stop - start == len(canary.secret_ids) < stop
        assert sum(tuple(row[start:stop]) == canary.secret_ids for row in rows) == canary.repetitions


def test_5_the_pre_flight_runs_no_forward(tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer()
    _, data, manifest = plant(tokenizer)
    trainer = sft(tokenizer, data, tmp_path)

    def refuse(*_: Any) -> None:
        raise AssertionError("a forward on one rank alone hangs sharded training")

    trainer.model.register_forward_pre_hook(refuse)
    assert run_preflight(trainer, manifest).ok


@pytest.mark.parametrize(
    ("trap", "code", "severity"),
    [("bias", "adapter-bias", "warning"), ("merged", "adapter-merged", "error"), ("none", "", "")],
)
def test_6_adapters_that_cannot_be_switched_off(trap: str, code: str, severity: str, tmp_path: Any) -> None:
    peft = pytest.importorskip("peft")
    tokenizer = tiny_tokenizer()
    _, data, manifest = plant(tokenizer)
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], bias="all" if trap == "bias" else "none", task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(tiny_llama(len(tokenizer), layers=1, hidden=16), config)
    if trap == "merged":
        model.merge_adapter()
    result = run_preflight(sft(tokenizer, data, tmp_path, model=model), manifest)
    if code:
        assert code in codes(result, severity)
    else:
        assert result.ok and not {"adapter-bias", "adapter-merged"} & codes(result)


def test_7_packing_that_wraps(tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer()
    _, data, manifest = plant(tokenizer)
    result = run_preflight(
        sft(tokenizer, data, tmp_path, packing=True, packing_strategy="wrapped", max_length=48), manifest
    )
    assert "packing-wraps" in codes(result, "warning")
    assert result.counts.copies < result.counts.copies_expected
    assert {"fewer-copies", "secret-truncated"} & codes(result)
    whole = run_preflight(sft(tokenizer, data, tmp_path, packing=True, max_length=64), manifest)
    assert whole.ok and whole.counts.copies == whole.counts.copies_expected
    assert "context-differs" not in codes(whole)


def test_7_a_secret_that_opens_a_packed_row_has_a_token_that_nothing_predicts() -> None:
    tokenizer = tiny_tokenizer()
    _, _, manifest = plant(tokenizer)
    rows = [{"input_ids": [*c.secret_ids, 5, 6], "labels": [*c.secret_ids, 5, 6]} for c in manifest.members]
    result = run_preflight(rows, manifest, tokenizer=tokenizer)
    assert "secret-partly-masked" in codes(result) and result.counts.found == 0


def test_8_modes_weights_and_random_states_stay(tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer()
    _, data, manifest = plant(tokenizer)
    model = tiny_gpt2(len(tokenizer), layers=1, hidden=16)
    model.train()
    model.transformer.wte.eval()
    trainer = hf(tokenizer, data.map(lambda row: tokenizer(row["text"])), tmp_path, model=model)
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    assert run_preflight(trainer, manifest).ok
    assert torch.equal(state, torch.random.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    order = [batch["input_ids"].tolist() for batch in trainer.get_train_dataloader()]
    torch.random.set_rng_state(state)
    assert order == [batch["input_ids"].tolist() for batch in trainer.get_train_dataloader()]


def test_9_the_tokenizer_is_the_processing_class(tmp_path: Any) -> None:
    tokenizer = tiny_tokenizer()
    _, data, manifest = plant(tokenizer)
    trainer = hf(tokenizer, data.map(lambda row: tokenizer(row["text"])), tmp_path)
    assert not hasattr(trainer, "tokenizer") or trainer.tokenizer is trainer.processing_class
    assert "no-tokenizer" not in codes(run_preflight(trainer, manifest))
    trainer.processing_class = None
    result = run_preflight(trainer, manifest)
    assert "no-tokenizer" in codes(result, "warning") and result.counts.found == len(manifest.members)
    from memaudit.integrations.huggingface import MemorizationAuditCallback

    with pytest.raises(ConfigurationError, match="processing_class"):
        MemorizationAuditCallback(trainer=trainer, manifest=manifest)
    trainer.processing_class = tiny_tokenizer("wordpiece")
    assert "other-tokenizer" in codes(run_preflight(trainer, manifest), "error")


def test_10_two_verdicts_always(tmp_path: Any) -> None:
    from memaudit.integrations.huggingface import MemorizationAuditCallback

    tokenizer = tiny_tokenizer()
    _, data, manifest = plant(tokenizer)
    trainer = sft(tokenizer, data, tmp_path, max_steps=2, save_strategy="no", logging_strategy="no")
    callback = MemorizationAuditCallback(trainer=trainer, manifest=manifest, real_sample=0)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.preflight.ok and callback.preflight.counts.found == len(manifest.members)
    report = callback.report.model_dump() if hasattr(callback.report, "model_dump") else callback.report
    assert report["membership"]["n_members"] == len(manifest.members)
    assert report["regurgitation"]["overall"] is not None
    assert report["preflight"]["scan"]["found"] == len(manifest.members)


def test_the_callback_stops_training_on_an_error(tmp_path: Any) -> None:
    from memaudit.integrations.huggingface import MemorizationAuditCallback

    tokenizer = tiny_tokenizer()
    host, _, manifest = plant(tokenizer)
    trainer = sft(tokenizer, host, tmp_path, max_steps=2, save_strategy="no")
    trainer.add_callback(MemorizationAuditCallback(trainer=trainer, manifest=manifest))
    with pytest.raises(PreflightError, match="secret-missing"):
        trainer.train()
    assert trainer.state.global_step == 0
