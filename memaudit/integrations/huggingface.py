"""MemorizationAuditCallback: an audit inside the Hugging Face Trainer, and inside TRL's trainers on top of it."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from memaudit.errors import ConfigurationError
from memaudit.integrations.lifecycle import Lifecycle
from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.preflight import run_preflight
from memaudit.preflight.trainer_checks import max_length_of
from memaudit.schedule import Schedule
from memaudit.session import MANIFEST_NAME, AuditResult, AuditSession

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

TRAINING_ARGUMENTS = (
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "optim",
    "weight_decay",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "bf16",
    "fp16",
    "max_grad_norm",
    "seed",
    "max_length",
    "packing",
    "completion_only_loss",
    "assistant_only_loss",
)
"""What the report says about the training, where the trainer's arguments have it."""


class MemorizationAuditCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Audits membership and regurgitation of the planted canaries during training, on the shards.

    Args:
        trainer: the Trainer or SFTTrainer that the callback is added to.
        manifest: what ``inject()`` returned, or its path.
        ref: reference mode: "auto", "adapter", "initial", "none" or the path of a base checkpoint.
        every: "end", "epoch", or a number of optimizer steps. The end of training is always audited.
        at_start: audit before the first step too, as a check on the canaries themselves.
        output_dir: where report, timeline and signals go; the trainer's output folder where not given.
        skip_preflight: do not look whether the canaries survive the trainer's data pipeline. A failed
            pre-flight ends training before it starts, since the audit would measure nothing.
        held_out: records that were not trained on, for the set-level test on real records.
        choices: fields of :class:`memaudit.options.AuditOptions` by name, such as ``target_fpr``,
            ``real_sample``, ``skip_generation``, ``seeds``, ``release_context``, ``on_error``, ``stop_when``.
            Without ``max_length`` records are scored at the length that an SFTTrainer cuts them to.

    Attributes:
        preflight: what the pre-flight found, once training has begun.
        report: the report, once training has ended.
        results: every audit of this run.

    Raises:
        ConfigurationError: an option has no meaning, or the trainer has no processing class (tokenizer).

    Example:
        ``trainer.add_callback(MemorizationAuditCallback(trainer=trainer, manifest=manifest, every="epoch"))``
    """

    def __init__(
        self,
        trainer: Trainer,
        manifest: Manifest | str | os.PathLike[str],
        *,
        ref: str = "auto",
        every: str | int = "end",
        at_start: bool = False,
        output_dir: str | os.PathLike[str] | None = None,
        skip_preflight: bool = False,
        held_out: Sequence[Any] | None = None,
        options: AuditOptions | None = None,
        **choices: Any,
    ) -> None:
        self.trainer = trainer
        self.manifest = manifest if isinstance(manifest, Manifest) else Manifest.load(manifest)
        self.schedule = Schedule.parse(every, at_start=at_start)
        self.output_dir = Path(output_dir if output_dir is not None else trainer.args.output_dir or ".")
        self.skip_preflight = skip_preflight
        self.held_out = held_out
        self.preflight: Any = None
        self.report: Any = None
        self._options = options
        self._choices = {"ref": ref, **choices}
        self._lifecycle: Lifecycle | None = None
        self._ended = False
        self._control: TrainerControl | None = None
        if getattr(trainer, "processing_class", None) is None:
            raise ConfigurationError(
                "the trainer has no processing_class; pass processing_class=tokenizer to it, so that the canaries are "
                "scored with the tokenizer that training uses"
            )
        # A typo in an option is told here, not after hours of training.
        AuditSession.check_options(options, self._choices)

    @property
    def results(self) -> list[AuditResult]:
        """Every audit of this run."""
        return [] if self._lifecycle is None else self._lifecycle.results

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Run the pre-flight, take the reference, and audit at step 0 where that is asked for."""
        self._control = control
        choices = self._limited_choices()
        if not self.skip_preflight:
            self.preflight = run_preflight(self.trainer, self.manifest, max_length=choices.get("max_length"))
            self.preflight.raise_for_errors()
        processing = self.trainer.processing_class
        session = AuditSession(
            self.trainer,
            getattr(processing, "tokenizer", processing),
            self.manifest,
            output_dir=self.output_dir,
            options=self._options,
            **choices,
        )
        self.manifest = session.adopt_preflight(self.preflight)
        session.real_records = (getattr(self.trainer, "train_dataset", None), self.held_out)
        session.training = {name: getattr(args, name) for name in TRAINING_ARGUMENTS if hasattr(args, name)}
        if session.strategy.rank == 0:
            self.manifest.save(self.output_dir / MANIFEST_NAME)
        self._lifecycle = Lifecycle(
            session,
            self.schedule,
            log=lambda result: _log(self.trainer, result),
            stop=lambda: setattr(self._control, "should_training_stop", True),
        )
        self._ended = False
        _first_at_the_end(self.trainer, self)
        self._lifecycle.begin(state.global_step, state.epoch)

    def _limited_choices(self) -> dict[str, Any]:
        """Return the choices, with the length that TRL's trainer cuts records to where none was given."""
        given = self._choices.get("max_length", self._options.max_length if self._options else None)
        limit = given if given is not None else max_length_of(self.trainer)
        return {**self._choices, "max_length": limit} if limit is not None else dict(self._choices)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Audit after the optimizer steps that the schedule names; gradient accumulation does not count."""
        self._control = control
        if self._lifecycle is not None:
            self._lifecycle.after_step(state.global_step, state.epoch)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Audit after the epochs that the schedule names."""
        self._control = control
        if self._lifecycle is not None and state.epoch is not None:
            # A stream's epochs are fractions below their number: the Trainer does not know how long it is.
            number = math.ceil(state.epoch - 1e-6)
            self._lifecycle.after_epoch(number, state.global_step, state.epoch)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Audit the final model, unless its weights were audited just now, and write the report."""
        self._control = control
        if self._lifecycle is not None and not self._ended:
            self._ended = True
            self.report = self._lifecycle.end(state.global_step, state.epoch)


class _EndOfTraining(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Runs the final audit before the loggers end: TensorBoard, MLflow and trackio close theirs in on_train_end."""

    def __init__(self, audit: MemorizationAuditCallback) -> None:
        self.audit = audit

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.audit.on_train_end(args, state, control, **kwargs)


def _first_at_the_end(trainer: Trainer, audit: MemorizationAuditCallback) -> None:
    """Put a callback before all others that ends the audit; the audit's own place stays for its other hooks."""
    handler = trainer.callback_handler
    others = [
        one for one in handler.callbacks if not (isinstance(one, _EndOfTraining) and one.audit is audit)
    ]
    # A new list: the handler is walking through the old one now.
    handler.callbacks = [_EndOfTraining(audit), *others]


def _log(trainer: Trainer, result: AuditResult) -> None:
    """Give the figures to the trainer's loggers: TensorBoard, Weights & Biases, MLflow, trackio, log_history.

    The Trainer's own ``log`` is called, since TRL's would hand on and empty its running means at the same time; and
    the flag that asks for the training loss of this step is kept, which every log takes away.
    """
    from transformers import Trainer as Base

    should_log = trainer.control.should_log
    Base.log(trainer, result.metrics())
    trainer.control.should_log = should_log
