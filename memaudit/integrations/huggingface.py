"""MemorizationAuditCallback: an audit inside the Hugging Face Trainer, and inside TRL's trainers on top of it."""

from __future__ import annotations

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
from memaudit.schedule import Schedule
from memaudit.session import MANIFEST_NAME, AuditResult, AuditSession

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments


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
        if not self.skip_preflight:
            self.preflight = run_preflight(self.trainer, self.manifest)
            self.preflight.raise_for_errors()
        processing = self.trainer.processing_class
        session = AuditSession(
            self.trainer,
            getattr(processing, "tokenizer", processing),
            self.manifest,
            output_dir=self.output_dir,
            options=self._options,
            **self._choices,
        )
        if self.preflight is not None:
            session.preflight = self.preflight.to_dict()
        session.real_records = (getattr(self.trainer, "train_dataset", None), self.held_out)
        if session.strategy.rank == 0:
            self.manifest.save(self.output_dir / MANIFEST_NAME)
        self._lifecycle = Lifecycle(
            session,
            self.schedule,
            # The trainer's own logger, so that TensorBoard, Weights & Biases, MLflow and trackio get the figures.
            log=lambda result: self.trainer.log(result.metrics()),
            stop=lambda: setattr(self._control, "should_training_stop", True),
        )
        self._lifecycle.begin(state.global_step, state.epoch)

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
            self._lifecycle.after_epoch(round(state.epoch), state.global_step, state.epoch)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Audit the final model, unless its last step was audited just now, and write the report."""
        self._control = control
        if self._lifecycle is not None:
            self.report = self._lifecycle.end(state.global_step, state.epoch)
