"""MemorizationAuditCallback in TRL's real SFTTrainer: adapters, completion-only loss, references."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from memaudit import MemorizationAuditCallback, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.errors import ConfigurationError, PreflightError, ReferenceModeError
from memaudit.injection import render_all
from memaudit.manifest import Manifest
from tests.helpers import tiny_llama

VOCAB = 320

Planted = tuple[Any, Manifest, Dataset]


def pairs(n: int, seed: int) -> list[dict[str, str]]:
    """Return rows of prompt and completion."""
    return [
        {"prompt": row["instruction"] + "\n", "completion": row["output"]}
        for row in instruction_rows(n, seed)
    ]


@pytest.fixture(scope="module")
def planted() -> Planted:
    """A tokenizer, a manifest of 8 candidates and 20 controls, and rows with the members in their completions."""
    rows = pairs(12, seed=0)
    tokenizer = byte_tokenizer([row["prompt"] + row["completion"] for row in rows], vocab_size=VOCAB)
    canaries = generate_canaries(
        tokenizer, n=8, n_controls=20, family="random", repetitions=(1, 4), seed=0, secret_len=25
    )
    data, manifest = inject(Dataset.from_list(rows), canaries, fmt="auto", seed=0, tokenizer=tokenizer)
    return tokenizer, manifest, data


def a_model() -> Any:
    """Return the model that every run here starts from."""
    return tiny_llama(VOCAB, 2, 32, positions=256, attention_dropout=0.1)


def lora(**options: Any) -> LoraConfig:
    """Return LoRA on every linear layer."""
    settings = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "target_modules": "all-linear", **options}
    return LoraConfig(task_type="CAUSAL_LM", **settings)


def trainer_of(planted: Planted, folder: Path, *, model: Any = None, **options: Any) -> SFTTrainer:
    """Return an SFTTrainer that trains on the completions alone."""
    tokenizer, _, data = planted
    trainer_options = {
        name: options.pop(name) for name in ("peft_config", "train_dataset") if name in options
    }
    settings: dict[str, Any] = {
        "num_train_epochs": 1,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-2,
        "max_length": 256,
        "completion_only_loss": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **options,
    }
    return SFTTrainer(
        model=model if model is not None else a_model(),
        args=SFTConfig(str(folder), **settings),
        processing_class=tokenizer,
        **{"train_dataset": data, **trainer_options},
    )


def audited(trainer: SFTTrainer, planted: Planted, **choices: Any) -> MemorizationAuditCallback:
    """Add an audit and train."""
    options = {"skip_generation": True, "real_sample": 0, "max_length": 256, **choices}
    audit = MemorizationAuditCallback(trainer=trainer, manifest=planted[1], **options)
    trainer.add_callback(audit)
    trainer.train()
    return audit


def logprobs(model: Any, ids: tuple[int, ...], span: tuple[int, int]) -> list[float]:
    """Return the secret's log-probabilities by the model's own forward, one record alone."""
    model.eval()
    with torch.no_grad():
        logs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return [float(logs[t - 1, ids[t]]) for t in range(*span)]


def assert_scores(audit: MemorizationAuditCallback, target: Any, reference: Any) -> None:
    """Target and reference of the last audit are those of two plain models."""
    session = audit._lifecycle.session  # type: ignore[union-attr]
    assert session.last is not None
    kept = session.last.reference.signals
    assert kept is not None
    for name, record in list(session.rendered.items())[:5]:
        mine = logprobs(target, record.ids, record.span)
        np.testing.assert_allclose(session.last.target.signals[name].logprob, mine, atol=1e-5)
        theirs = logprobs(reference, record.ids, record.span)
        np.testing.assert_allclose(kept[name].logprob, theirs, atol=1e-5)
        assert np.abs(np.subtract(mine, theirs)).max() > 1e-3


def states(model: Any) -> dict[str, torch.Tensor]:
    """Return a copy of the weights."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two models are equal in every bit."""
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_lora_is_compared_with_its_adapters_off(planted: Planted, tmp_path: Path) -> None:
    base = a_model()
    trainer = trainer_of(planted, tmp_path, model=copy.deepcopy(base), peft_config=lora(), num_train_epochs=8)
    audit = audited(trainer, planted, every="epoch", real_sample=6, skip_generation=False)
    report = audit.report
    assert report.reference.mode == "disable_adapter" and report.adapter["r"] == 8
    assert report.step == trainer.state.global_step and len(audit.results) == 8
    assert audit.preflight.ok and audit.preflight.counts.found == len(planted[1].members)
    assert report.provenance.resolved_config["training"]["completion_only_loss"] is True
    assert_scores(audit, trainer.model, base)
    assert report.membership.auc > 0.9


def test_a_full_fine_tune_needs_no_option(planted: Planted, tmp_path: Path) -> None:
    """ref="auto" without adapters: the model's own scores before its first step, and no refusal."""
    base = a_model()
    trainer = trainer_of(planted, tmp_path, model=copy.deepcopy(base), num_train_epochs=2)
    audit = audited(trainer, planted)
    assert audit.report.reference.mode == "step0"
    assert_scores(audit, trainer.model, base)


def test_lora_with_trained_biases_falls_to_the_initial_scores_with_the_reason(
    planted: Planted, tmp_path: Path
) -> None:
    """With bias="all" the base's biases are trained: adapters off is not the base model any more."""

    def biased() -> Any:
        return tiny_llama(VOCAB, 2, 32, positions=256, attention_bias=True)

    base = biased()
    trainer = trainer_of(planted, tmp_path, model=biased(), peft_config=lora(bias="all"), num_train_epochs=2)
    audit = audited(trainer, planted, ref="auto")
    assert audit.report.reference.mode == "step0"
    assert "bias" in audit.report.reference.note
    assert_scores(audit, trainer.model, base)
    trainer = trainer_of(planted, tmp_path / "asked", model=biased(), peft_config=lora(bias="all"))
    before = states(trainer.model)
    with pytest.raises(ReferenceModeError, match="bias"):
        audited(trainer, planted, ref="adapter")
    assert trainer.state.global_step == 0 and same_bits(before, states(trainer.model))


def test_adapter_reference_of_a_model_without_adapters_is_refused(planted: Planted, tmp_path: Path) -> None:
    trainer = trainer_of(planted, tmp_path)
    with pytest.raises(ReferenceModeError, match="ref='adapter', but the model has no adapters"):
        audited(trainer, planted, ref="adapter")
    assert trainer.state.global_step == 0


def test_a_secret_that_the_loss_leaves_out_ends_training_before_its_first_step(
    planted: Planted, tmp_path: Path
) -> None:
    """Members planted in the prompt by hand, under a loss on the completion: nothing would be memorised."""
    manifest = planted[1]
    rows = pairs(12, seed=0)
    for canary in manifest.members:
        rows += [{"prompt": f"Repeat: {canary.secret}\n", "completion": "Yes."}] * canary.repetitions
    by_hand = Dataset.from_list(rows)
    trainer = trainer_of(planted, tmp_path, train_dataset=by_hand)
    before = states(trainer.model)
    with pytest.raises(PreflightError, match="mask") as caught:
        audited(trainer, planted, on_error="warn")
    assert trainer.state.global_step == 0 and same_bits(before, states(trainer.model))
    assert "\n" not in str(caught.value)
    assert not any(canary.secret.strip() in str(caught.value) for canary in manifest.canaries)
    assert not (tmp_path / "memaudit-report.json").exists()
    # The same rows with a loss on everything hold the secrets where they are trained on.
    whole = trainer_of(planted, tmp_path / "all", train_dataset=by_hand, completion_only_loss=False)
    audit = audited(whole, planted)
    assert audit.preflight.counts.masked == 0 and audit.preflight.counts.found == len(manifest.members)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_and_its_own_log_are_the_same_with_and_without_audits(
    planted: Planted, tmp_path: Path, checkpointing: bool
) -> None:
    """In bits, with LoRA dropout; and TRL's running means go into the training's lines, not into the audit's."""

    class Draws(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            torch.rand(1)

    def run(
        name: str, audits: bool, *callbacks: TrainerCallback
    ) -> tuple[dict[str, torch.Tensor], list[Any]]:
        torch.manual_seed(0)  # LoRA's matrices
        trainer = trainer_of(
            planted,
            tmp_path / name,
            peft_config=lora(),
            logging_strategy="steps",
            logging_steps=2,
            gradient_checkpointing=checkpointing,
        )
        for one in callbacks:
            trainer.add_callback(one)
        if audits:
            audit = audited(trainer, planted, every=1, at_start=True)
            assert [one.step for one in audit.results] == list(range(trainer.state.global_step + 1))
            own = [line for line in trainer.state.log_history if "memaudit/auc" in line]
            assert len(own) == len(audit.results)
            names = {key for line in own for key in line if not key.startswith("memaudit/")}
            assert names == {"epoch", "step"}
        else:
            trainer.train()
        kept = ("step", "loss", "grad_norm", "mean_token_accuracy", "entropy", "num_tokens")
        lines = [{k: line.get(k) for k in kept} for line in trainer.state.log_history if "loss" in line]
        assert lines and all(line["mean_token_accuracy"] is not None for line in lines)
        return states(trainer.model), lines

    without, lines = run("without", False)
    with_audits, seen = run("with", True)
    assert same_bits(without, with_audits) and json.dumps(lines) == json.dumps(seen)
    drawn, _ = run("drawn", False, Draws())
    assert not same_bits(without, drawn)


def test_a_resumed_lora_run_has_the_same_reference(planted: Planted, tmp_path: Path) -> None:
    """Adapters off are the reference at any time: a first audit after a resumption is not too late."""

    def make(folder: Path) -> SFTTrainer:
        torch.manual_seed(0)
        return trainer_of(
            planted, folder, peft_config=lora(), num_train_epochs=2, save_strategy="steps", save_steps=3
        )

    whole = audited(make(tmp_path / "whole"), planted, every=3)
    trainer = make(tmp_path / "whole")
    options = {"skip_generation": True, "real_sample": 0, "max_length": 256}
    late = MemorizationAuditCallback(
        trainer=trainer, manifest=planted[1], every=3, output_dir=tmp_path / "late", **options
    )
    trainer.add_callback(late)
    trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert [one.step for one in whole.results][1:] == [one.step for one in late.results]
    assert late.report.reference.mode == "disable_adapter"
    for mine, theirs in zip(late.results, whole.results[1:], strict=True):
        assert mine.scores == theirs.scores


def test_records_are_scored_at_the_length_that_the_trainer_cuts_them_to(
    planted: Planted, tmp_path: Path
) -> None:
    """No max_length is given to the audit: SFTConfig's is taken, for canaries and for real records."""
    tokenizer, manifest, data = planted
    rendered = render_all(manifest, tokenizer)
    limit = max(one.span[1] for one in rendered.values())
    # A long row of no secret, whose end training never sees.
    rows = Dataset.from_list([*data, {"prompt": "A long one. ", "completion": "word " * limit}])
    trainer = trainer_of(planted, tmp_path / "cut", max_length=limit, train_dataset=rows)
    audit = audited(trainer, planted, max_length=None, real_sample=len(rows))
    assert max(len(row["input_ids"]) for row in trainer.train_dataset) == limit
    session = audit._lifecycle.session  # type: ignore[union-attr]
    assert session.options.max_length == limit
    assert max(len(one.ids) for one in session.rendered.values()) <= limit
    plain = [row for row in rows if not any(one.secret in row["completion"] for one in manifest.members)]
    assert audit.report.real_records.n_train_sampled == len(plain) < len(rows)
    for name, record in list(session.rendered.items())[:3]:
        mine = logprobs(trainer.model, record.ids, record.span)
        np.testing.assert_allclose(session.last.target.signals[name].logprob, mine, atol=1e-5)
    # What the user gives counts more.
    trainer = trainer_of(planted, tmp_path / "given", max_length=limit)
    audit = audited(trainer, planted, max_length=limit + 1)
    assert audit._lifecycle.session.options.max_length == limit + 1  # type: ignore[union-attr]
    # Cut through the secrets, the pre-flight says so; without it the session does.
    short = min(rendered[canary.id].span[1] for canary in manifest.members) - 1
    with pytest.raises(PreflightError, match="max_length"):
        audited(trainer_of(planted, tmp_path / "short", max_length=short), planted, max_length=None)
    with pytest.raises(ConfigurationError, match=f"the limit is {short}; draw shorter secrets"):
        trainer = trainer_of(planted, tmp_path / "unseen", max_length=short)
        audited(trainer, planted, max_length=None, skip_preflight=True)
