"""MemorizationAuditCallback in the real Trainer of transformers, on a tiny model."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

from memaudit import MemorizationAuditCallback, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.errors import AuditError, ConfigurationError, PreflightError, ReferenceModeError
from memaudit.injection import alpaca_text
from memaudit.manifest import Manifest
from memaudit.report.build import load_report, verify_report
from tests.helpers import tiny_gpt2, tiny_llama

VOCAB = 320
BATCHES = 7
"""Batches of an epoch: not a multiple of the three that make a step under accumulation."""

Planted = tuple[Any, Manifest, list[list[int]]]


@pytest.fixture(scope="module")
def planted() -> Planted:
    """A tokenizer, a manifest of 8 candidates and 20 controls, and the training records as ids."""
    rows = instruction_rows(8, seed=0)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=VOCAB)
    canaries = generate_canaries(
        tokenizer, n=8, n_controls=20, family="random", repetitions=(1, 4), seed=0, secret_len=25
    )
    rows, manifest = inject(rows, canaries, fmt="alpaca", seed=0, tokenizer=tokenizer)
    rows += instruction_rows(40, seed=1)[: -len(rows) % BATCHES]
    return tokenizer, manifest, [tokenizer(alpaca_text(row))["input_ids"] for row in rows]


class Calls(TrainerCallback):  # type: ignore[misc]
    """Calls a function after each optimizer step with the step's number."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.function(state.global_step)


def trainer_of(
    planted: Planted,
    folder: Path,
    *,
    model: Any = None,
    data: Any = None,
    eval_data: Any = None,
    **arguments: Any,
) -> Trainer:
    """Return a Trainer whose epoch has BATCHES batches."""
    tokenizer, _, records = planted
    settings: dict[str, Any] = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": len(records) // BATCHES,
        "learning_rate": 3e-3,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **arguments,
    }
    return Trainer(
        model=model if model is not None else tiny_gpt2(VOCAB, 1, 32, positions=256),
        args=TrainingArguments(str(folder), **settings),
        train_dataset=data if data is not None else [{"input_ids": ids} for ids in records],
        eval_dataset=eval_data,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )


def fit(
    planted: Planted,
    folder: Path,
    *,
    audit: dict[str, Any] | None = None,
    before: list[TrainerCallback] | None = None,
    after: list[TrainerCallback] | None = None,
    resume: Path | None = None,
    **rest: Any,
) -> tuple[MemorizationAuditCallback, Trainer]:
    """Train with an audit; ``before`` and ``after`` are callbacks around it."""
    trainer = trainer_of(planted, folder, **rest)
    made = callback_of(trainer, planted, **(audit or {}))
    for one in [*(before or []), made, *(after or [])]:
        trainer.add_callback(one)
    trainer.train(resume_from_checkpoint=str(resume) if resume is not None else None)
    return made, trainer


def callback_of(trainer: Trainer, planted: Planted, **choices: Any) -> MemorizationAuditCallback:
    """Return the callback, by default without the parts that take long."""
    return MemorizationAuditCallback(
        trainer=trainer, manifest=planted[1], **{"skip_generation": True, "real_sample": 0, **choices}
    )


def steps(audit: MemorizationAuditCallback) -> list[int]:
    """Return the steps audited in this run."""
    return [result.step for result in audit.results]


def timeline(folder: Path) -> list[int]:
    """Return the steps of the timeline file's lines, as they stand there."""
    lines = (folder / "memaudit-timeline.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Return a copy of the model's weights."""
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two models are equal in every bit."""
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def assert_scores_are_of(audit: MemorizationAuditCallback, model: Any) -> None:
    """The last audit's scores are those of ``model`` by its own forward, one record at a time."""
    session = audit._lifecycle.session  # type: ignore[union-attr]
    assert session.last is not None
    model.eval()
    for name, record in list(session.rendered.items())[:6]:
        with torch.no_grad():
            logs = model(torch.tensor([record.ids])).logits[0].double().log_softmax(-1)
        mine = [float(logs[t - 1, record.ids[t]]) for t in range(*record.span)]
        np.testing.assert_allclose(session.last.target.signals[name].logprob, mine, atol=1e-5)


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"every": 2}, [2, 4, 6, 8, 9]),
        ({"every": 3}, [3, 6, 9]),
        ({"every": "epoch"}, [3, 6, 9]),
        ({"every": "end"}, [9]),
        ({"every": 5, "at_start": True}, [0, 5, 9]),
    ],
)
def test_audits_fall_on_optimizer_steps_and_each_once(
    planted: Planted, tmp_path: Path, choices: dict[str, Any], expected: list[int]
) -> None:
    """Seven batches and three to a step: three optimizer steps an epoch, the last of a single batch."""
    audit, trainer = fit(planted, tmp_path, audit=choices, num_train_epochs=3, gradient_accumulation_steps=3)
    assert trainer.state.global_step == 9
    assert steps(audit) == expected == timeline(tmp_path)
    assert audit.report.step == 9 and [line["step"] for line in audit.report.timeline] == expected
    assert_scores_are_of(audit, trainer.model)


def test_each_pass_over_a_stream_is_an_epoch(planted: Planted, tmp_path: Path) -> None:
    """Of a stream the Trainer knows no length, and its epochs are fractions: 0.33, 1.33, 2.33."""

    class Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            yield from ({"input_ids": ids} for ids in planted[2])

    audit, _ = fit(
        planted, tmp_path, audit={"every": "epoch"}, data=Stream(), max_steps=3 * BATCHES, num_train_epochs=1
    )
    assert steps(audit) == [BATCHES, 2 * BATCHES, 3 * BATCHES]


def test_default_options_on_a_full_fine_tune(planted: Planted, tmp_path: Path) -> None:
    """ref="auto" is the initial scores, the report is whole and verifies, and no secret is in it."""
    audit, trainer = fit(
        planted,
        tmp_path,
        audit={"skip_generation": False, "real_sample": 8},
        num_train_epochs=12,
        learning_rate=1e-2,
        model=tiny_llama(VOCAB, 2, 48, positions=256),
    )
    report = load_report(tmp_path / "memaudit-report.json")
    assert verify_report(tmp_path / "memaudit-report.json").intact and report == audit.report
    assert report.reference.mode == "step0" and "no adapters" in (report.reference.note or "")
    assert report.membership.auc is not None and report.membership.auc > 0.9
    assert report.step == 12 * BATCHES and report.distributed["strategy"] == "single"
    assert report.provenance.resolved_config["training"]["learning_rate"] == 1e-2
    assert report.provenance.resolved_config["training"]["num_train_epochs"] == 12
    assert_scores_are_of(audit, trainer.model)
    text = "".join(path.read_text() for path in tmp_path.glob("memaudit-[rti]*.json*"))
    assert not any(canary.secret.strip() in text for canary in planted[1].canaries)
    assert Manifest.load(tmp_path / "memaudit-manifest.json").content_hash() == planted[1].content_hash()


def with_a_part_in_eval() -> Any:
    """A GPT-2 with dropout, one part of which is frozen in eval mode whatever the Trainer says."""
    model = tiny_gpt2(VOCAB, 2, 32, positions=256)
    part = model.transformer.h[0].mlp.eval()
    part.train = lambda mode=True: part  # the Trainer calls model.train() before each step
    return model


@pytest.mark.parametrize(
    "arguments", [{}, {"gradient_checkpointing": True}, {"bf16": True, "gradient_accumulation_steps": 2}]
)
def test_training_ends_in_the_same_bits_with_and_without_audits(
    planted: Planted, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    def ends_in(audited: bool, between: Callable[[int], Any] | None = None) -> dict[str, torch.Tensor]:
        trainer = trainer_of(planted, tmp_path, model=with_a_part_in_eval(), num_train_epochs=1, **arguments)
        seen: list[Any] = []

        def flags(step: int) -> None:
            model = trainer.model
            checkpointing = [getattr(m, "gradient_checkpointing", None) for m in model.modules()]
            seen.append(([m.training for m in model.modules()], checkpointing, model.config.use_cache))

        trainer.add_callback(Calls(flags))
        if audited:
            choices = {"every": 1, "at_start": True, "skip_generation": False, "real_sample": 4}
            trainer.add_callback(callback_of(trainer, planted, **choices))
        if between is not None:
            trainer.add_callback(Calls(between))
        trainer.add_callback(Calls(flags))
        trainer.train()
        assert len(seen) > 6 and all(one == seen[0] for one in seen)
        assert not seen[0][0][list(trainer.model.modules()).index(trainer.model.transformer.h[0].mlp)]
        return weights(trainer)

    without = ends_in(False)
    assert same_bits(without, ends_in(True))
    # The control: a callback that does not give the random state back is noticed.
    assert not same_bits(without, ends_in(False, lambda step: torch.rand(1)))


class Dies(Exception):
    """What stands for the end of a job in the middle of training."""


def die_at(step: int) -> Calls:
    """Return a callback that ends training after a step."""

    def function(done: int) -> None:
        if done == step:
            raise Dies

    return Calls(function)


def test_a_resumed_run_goes_on_as_if_nothing_had_happened(planted: Planted, tmp_path: Path) -> None:
    options: dict[str, Any] = {"audit": {"every": 2}, "save_strategy": "steps", "save_steps": 4}
    whole, trainer = fit(planted, tmp_path / "whole", **options)
    parts = tmp_path / "parts"
    with pytest.raises(Dies):
        fit(planted, parts, after=[die_at(7)], **options)
    assert timeline(parts) == [2, 4, 6]
    kept = (parts / "memaudit-initial.json").read_bytes()
    resumed, again = fit(planted, parts, resume=parts / "checkpoint-4", **options)
    assert steps(resumed) == [6, 8, 10, 12, 14] and resumed.report.step == 14
    # Step 6 was audited before the end and after the resumption: one line, of the run that went on.
    assert timeline(parts) == [2, 4, 6, 8, 10, 12, 14]
    assert [line["step"] for line in resumed.report.timeline] == timeline(parts)
    assert same_bits(weights(trainer), weights(again))
    assert (parts / "memaudit-initial.json").read_bytes() == kept
    reference, first = resumed.results[0].reference, whole.results[0].reference
    assert reference.mode == "initial" and reference.cost is None
    assert "before this run was resumed" in resumed.report.reference.note
    assert reference.signals is not None and first.signals is not None
    for name, signals in first.signals.items():
        np.testing.assert_array_equal(signals.logprob, reference.signals[name].logprob)
    for mine, theirs in zip(resumed.results, whole.results[2:], strict=True):
        assert mine.scores == theirs.scores

    # A first audit after training has begun has no reference, and says so before the next step.
    with pytest.raises(
        ReferenceModeError, match=r"at step 4, after training has begun.*no scores from step 0"
    ):
        fit(planted, tmp_path / "late", resume=parts / "checkpoint-4", audit={"every": 2})
    weaker, _ = fit(
        planted, tmp_path / "none", resume=parts / "checkpoint-4", audit={"every": 2, "ref": "none"}
    )
    assert weaker.results[0].step == 6 and weaker.results[0].headline_attack == "minkpp"
    for mine, theirs in zip(weaker.results, whole.results[2:], strict=True):
        assert mine.scores["minkpp"] == theirs.scores["minkpp"]


def test_a_new_run_in_an_old_folder_begins_its_own_timeline(planted: Planted, tmp_path: Path) -> None:
    fit(planted, tmp_path, audit={"every": 2}, num_train_epochs=1)
    assert timeline(tmp_path) == [2, 4, 6, 7]
    audit, _ = fit(planted, tmp_path, audit={"every": 3}, num_train_epochs=1)
    assert timeline(tmp_path) == [3, 6, 7] == [line["step"] for line in audit.report.timeline]


def test_stop_when_stops_training(planted: Planted, tmp_path: Path) -> None:
    audit, trainer = fit(planted, tmp_path, audit={"every": 2, "stop_when": "auc >= 0"})
    assert trainer.state.global_step == 2 and steps(audit) == [2] and audit.report.step == 2
    audit, trainer = fit(planted, tmp_path, audit={"every": 2, "stop_when": "auc > 1"}, num_train_epochs=1)
    assert trainer.state.global_step == BATCHES
    seen: list[int] = []

    def rule(figures: Any) -> bool:
        seen.append(figures["step"])
        return figures["step"] >= 4

    audit, trainer = fit(planted, tmp_path, audit={"every": 1, "stop_when": rule})
    assert trainer.state.global_step == 4 and seen == [1, 2, 3, 4]


def failing_at(trainer: Trainer, failing: set[int]) -> None:
    """Make the model's forward raise where it scores after one of these steps; in training it works."""

    def hook(module: Any, args: Any) -> None:
        if not module.training and trainer.state.global_step in failing:
            raise RuntimeError("a cosmic ray")

    trainer.model.register_forward_pre_hook(hook)


def test_on_error_warn_lets_training_end_and_the_report_says_what_failed(
    planted: Planted, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(failing: set[int], **choices: Any) -> tuple[MemorizationAuditCallback, Trainer]:
        # A folder of its own: with the same weights the signals of another run would be used, and nothing forwarded.
        folder = tmp_path / "-".join(map(str, failing))
        trainer = trainer_of(planted, folder)
        failing_at(trainer, failing)
        audit = callback_of(trainer, planted, every=4, **choices)
        trainer.add_callback(audit)
        trainer.train()
        return audit, trainer

    good, untouched = run(set())
    audit, trainer = run({8}, on_error="warn")
    assert steps(good) == [4, 8, 12, 14] and steps(audit) == [4, 12, 14]
    assert "the audit at step 8 failed" in caplog.text and "a cosmic ray" in caplog.text
    assert any("step 8 failed" in text and "cosmic ray" in text for text in audit.report.audit_warnings)
    assert same_bits(weights(untouched), weights(trainer))
    assert audit.results[-1].scores == good.results[-1].scores

    # Where the final audit fails, the report is of the last one that did not, and says so.
    audit, _ = run({14}, on_error="warn", skip_generation=False, real_sample=8)
    assert audit.report.step == 12 and steps(audit) == [4, 8, 12]
    assert any("step 14 failed" in text for text in audit.report.audit_warnings)
    assert any("changed since the audit at step 12" in text for text in audit.report.audit_warnings)
    assert audit.report.real_records.reason == "model_changed"
    assert verify_report(tmp_path / "14" / "memaudit-report.json").intact

    # Where none succeeds, training ends all the same, and the log says that there is no report.
    audit, trainer = run({4, 8, 12, 14}, on_error="warn")
    assert trainer.state.global_step == 14 and audit.report is None
    assert "no audit succeeded" in caplog.text


def test_on_error_raise_raises_after_training_state_is_restored(planted: Planted, tmp_path: Path) -> None:
    trainer = trainer_of(planted, tmp_path, model=with_a_part_in_eval(), gradient_checkpointing=True)
    failing_at(trainer, {4})
    before: list[Any] = []

    def state() -> list[Any]:
        model = trainer.model
        return [
            random.getstate(),
            np.random.get_state()[1].tolist(),  # type: ignore[union-attr]
            torch.get_rng_state().tolist(),
            [module.training for module in model.modules()],
            [getattr(module, "gradient_checkpointing", None) for module in model.modules()],
            model.config.use_cache,
            torch.is_grad_enabled(),
        ]

    trainer.add_callback(Calls(lambda step: before.append(state())))
    audit = callback_of(trainer, planted, every=4)
    trainer.add_callback(audit)
    with pytest.raises(AuditError, match="a cosmic ray"):
        trainer.train()
    assert trainer.state.global_step == 4 and state() == before[-1]
    # The next training step works, and changes the model.
    kept = weights(trainer)
    batch = next(iter(trainer.get_train_dataloader()))
    loss = trainer.training_step(trainer.model_wrapped, batch)
    assert trainer.optimizer is not None and torch.isfinite(loss)
    trainer.optimizer.step()
    assert not same_bits(kept, weights(trainer))


def test_figures_reach_tensorboard_and_the_history_and_take_nothing_from_them(
    planted: Planted, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings: dict[str, Any] = {
        "report_to": "tensorboard",
        "logging_strategy": "steps",
        "logging_steps": 2,
        "num_train_epochs": 1,
    }
    audit, trainer = fit(planted, tmp_path / "audited", audit={"every": 2, "at_start": True}, **settings)
    assert steps(audit) == [0, 2, 4, 6, 7]
    figures = [result.figures for result in audit.results]
    history = [line for line in trainer.state.log_history if "memaudit/auc" in line]
    assert [line["step"] for line in history] == [0, 2, 4, 6, 7]
    assert [line["memaudit/auc"] for line in history] == [one["auc"] for one in figures]

    files = list(tmp_path.glob("audited/**/events.out.tfevents.*"))
    assert len(files) == 1, (
        "the final audit must be in the run's own file, before TensorBoard's writer is closed"
    )
    events = EventAccumulator(str(files[0])).Reload()
    scalars = events.Scalars("train/memaudit/auc")
    assert [one.step for one in scalars] == [0, 2, 4, 6, 7]
    np.testing.assert_allclose([one.value for one in scalars], [one["auc"] for one in figures], rtol=1e-6)
    assert "train/memaudit/regurgitation_rate" in events.Tags()["scalars"]

    # The training's own lines are those of a run without audits, also at the steps that were audited.
    plain = trainer_of(planted, tmp_path / "plain", **settings)
    plain.train()

    def losses(lines: list[dict[str, Any]]) -> list[Any]:
        return [(line["step"], line["loss"], line["grad_norm"]) for line in lines if "loss" in line]

    assert losses(trainer.state.log_history) == losses(plain.state.log_history)
    assert [step for step, *_ in losses(trainer.state.log_history)] == [2, 4, 6]


def test_the_best_model_is_what_the_report_is_about(planted: Planted, tmp_path: Path) -> None:
    """load_best_model_at_end puts older weights in place after the last step, which was audited already."""
    trainer = trainer_of(
        planted,
        tmp_path,
        eval_data=[{"input_ids": ids} for ids in planted[2][:8]],
        num_train_epochs=3,
        save_strategy="epoch",
        eval_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=True,  # so that the first epoch's model is the best
    )
    audit = callback_of(trainer, planted, every="epoch", skip_generation=False)
    trainer.add_callback(audit)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith(f"checkpoint-{BATCHES}")
    assert audit.results[-1].weights == audit.results[0].weights != audit.results[2].weights
    assert audit.report.membership.auc == audit.results[0].membership.auc
    assert_scores_are_of(audit, trainer.model)


def test_unused_columns_are_dropped_for_training_and_do_no_harm(planted: Planted, tmp_path: Path) -> None:
    from datasets import Dataset

    records = planted[2]
    data = Dataset.from_list(
        [{"text": f"row {n}", "record_id": n, "input_ids": ids} for n, ids in enumerate(records)]
    )
    audit, trainer = fit(planted, tmp_path / "columns", data=data, audit={"real_sample": 8})
    assert trainer.args.remove_unused_columns
    plain, other = fit(planted, tmp_path / "plain", audit={"real_sample": 8})
    assert same_bits(weights(trainer), weights(other))
    assert audit.results[-1].scores == plain.results[-1].scores
    assert audit.preflight.ok and audit.preflight.counts.found == len(planted[1].members)


def test_a_second_train_is_audited_anew(planted: Planted, tmp_path: Path) -> None:
    trainer = trainer_of(planted, tmp_path, num_train_epochs=1)
    audit = callback_of(trainer, planted, every=4)
    trainer.add_callback(audit)
    trainer.train()
    first = audit.report
    trainer.train()
    assert steps(audit) == [4, 7] and audit.report.step == 7
    assert audit.report.reference.identity != first.reference.identity
    assert sum(type(one).__name__ == "_EndOfTraining" for one in trainer.callback_handler.callbacks) == 1


def test_wrong_inputs_are_told_before_training(planted: Planted, tmp_path: Path) -> None:
    trainer = trainer_of(planted, tmp_path)
    for choices, text in [
        ({"target_frp": 0.01}, "unknown audit option"),
        ({"every": "sometimes"}, "every='sometimes'"),
        ({"every": 0}, "every=0"),
        ({"on_error": "ignore"}, "on_error"),
        ({"stop_when": "auc above 1"}, "stop_when"),
    ]:
        with pytest.raises(ConfigurationError, match=text) as caught:
            callback_of(trainer, planted, **choices)
        assert "\n" not in str(caught.value)
    trainer.processing_class = None
    with pytest.raises(ConfigurationError, match="processing_class=tokenizer") as caught:
        callback_of(trainer, planted)
    assert "\n" not in str(caught.value)


def test_a_failed_pre_flight_ends_training_before_its_first_step(planted: Planted, tmp_path: Path) -> None:
    """The rows hold no canary: an audit would measure nothing."""
    tokenizer, manifest, _ = planted
    rows = [{"input_ids": tokenizer(alpaca_text(row))["input_ids"]} for row in instruction_rows(14, seed=5)]
    trainer = trainer_of(planted, tmp_path, data=rows, num_train_epochs=1)
    kept = weights(trainer)
    trainer.add_callback(callback_of(trainer, planted, on_error="warn"))
    with pytest.raises(PreflightError) as caught:
        trainer.train()
    assert trainer.state.global_step == 0 and same_bits(kept, weights(trainer))
    assert not any(canary.secret.strip() in str(caught.value) for canary in manifest.canaries)
    audit, trainer = fit(planted, tmp_path, data=rows, num_train_epochs=1, audit={"skip_preflight": True})
    assert audit.preflight is None and audit.report.step == trainer.state.global_step > 0
