"""AuditLoop: an audit inside a training loop of one's own, with the callbacks' schedule, reference and error policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memaudit.errors import AuditError
from memaudit.integrations.lifecycle import Lifecycle
from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.preflight import run_preflight
from memaudit.schedule import Schedule
from memaudit.session import MANIFEST_NAME, AuditResult, AuditSession


class AuditLoop:
    """Audits membership and regurgitation of the planted canaries from a loop that you write, on the shards.

    Every rank makes the same calls: ``begin`` before the first step, ``after_step`` and ``after_epoch`` where they
    end, ``end`` after the last one. The figures go to the trackers of an Accelerator, where it has any.

    Args:
        accelerator: an Accelerator that has prepared the model, or the module in whatever wrapper it trains in.
        tokenizer: the one that the canaries were drawn for.
        manifest: what ``inject()`` returned, or its path.
        model: the module, where the Accelerator has prepared several.
        every: "end", "epoch", or a number of optimizer steps. The end of training is always audited.
        at_start: audit before the first step too, as a check on the canaries themselves.
        output_dir: where report, timeline and signals go; every rank sees the same one.
        loader: what training reads (a DataLoader, a dataset, batches), for the pre-flight; it is not moved. None
            looks at nothing: then nobody has checked that the canaries reach the model.
        train_records: the records that were trained on, for the part on real records.
        held_out: records that were not trained on, for the set-level test on real records.
        options: the other choices, as :class:`memaudit.options.AuditOptions`.
        choices: or single fields of it by name, such as ``ref``, ``target_fpr``, ``on_error``, ``stop_when``.

    Attributes:
        preflight: what the pre-flight found, once training has begun.
        report: the report, once training has ended.
        should_stop: whether ``stop_when`` has held: leave your loop then, on every rank.

    Raises:
        ConfigurationError: an option has no meaning.
        ManifestError: the manifest is damaged, or was made for another tokenizer.
        StrategyError: no strategy fits the model.

    Example:
        ``audit = AuditLoop(accelerator, tokenizer, manifest, every=100)``, ``audit.begin()``,
        ``audit.after_step(step)`` after each ``optimizer.step()``, and ``audit.end(step)``.
    """

    def __init__(
        self,
        accelerator: Any,
        tokenizer: Any,
        manifest: Manifest | str | os.PathLike[str],
        *,
        model: Any = None,
        every: str | int = "end",
        at_start: bool = False,
        output_dir: str | os.PathLike[str] = ".",
        loader: Any = None,
        train_records: Sequence[Any] | None = None,
        held_out: Sequence[Any] | None = None,
        options: AuditOptions | None = None,
        **choices: Any,
    ) -> None:
        schedule = Schedule.parse(every, at_start=at_start)
        self.session = AuditSession(
            accelerator, tokenizer, manifest, model=model, output_dir=output_dir, options=options, **choices
        )
        self.session.real_records = (train_records, held_out)
        self.preflight: Any = None
        self.report: Any = None
        self.should_stop = False
        self._accelerator = accelerator
        self._loader = loader
        self._lifecycle = Lifecycle(self.session, schedule, log=self._log, stop=self._stop)
        self._begun = False

    @property
    def results(self) -> list[AuditResult]:
        """Every audit of this run."""
        return self._lifecycle.results

    def begin(self, step: int = 0, epoch: float | None = None) -> None:
        """Run the pre-flight, take the reference, and audit before the first step where that is asked for.

        Args:
            step: optimizer steps done so far: above 0 where a run is resumed.
            epoch: epochs done so far, for the timeline.

        Raises:
            PreflightError: the canaries do not reach the model, so that the audit would measure nothing.
            ReferenceModeError: the reference is not to be had, or would be taken too late.
        """
        session = self.session
        if self._loader is not None:
            self.preflight = run_preflight(
                self._loader,
                session.manifest,
                tokenizer=session.tokenizer,
                model=session.strategy.model,
                max_length=session.options.max_length,
            )
            self.preflight.raise_for_errors()
        manifest = session.adopt_preflight(self.preflight)
        if session.strategy.rank == 0:
            manifest.save(Path(session.output_dir) / MANIFEST_NAME)
        self._begun = True
        self._lifecycle.begin(step, epoch)

    def after_step(self, step: int, epoch: float | None = None) -> AuditResult | None:
        """Audit where optimizer step ``step`` (counted from 1) is due; call it once per step, on every rank.

        Returns:
            What was found; None where no audit was due, or where it failed under ``on_error="warn"``.
        """
        self._require_begun("after_step")
        return self._lifecycle.after_step(step, epoch)

    def after_epoch(self, number: int, step: int) -> AuditResult | None:
        """Audit where epoch ``number`` (counted from 1) is due, after ``step`` optimizer steps; on every rank."""
        self._require_begun("after_epoch")
        return self._lifecycle.after_epoch(number, step, float(number))

    def end(self, step: int, epoch: float | None = None) -> Any:
        """Audit the final model, unless its weights were audited just now, and write the report; on every rank.

        Returns:
            The report, on every rank; None where every audit failed under ``on_error="warn"``.
        """
        self._require_begun("end")
        self.report = self._lifecycle.end(step, epoch)
        return self.report

    def _require_begun(self, what: str) -> None:
        if not self._begun:
            raise AuditError(
                f"{what}() was called before begin(): the reference would be taken after training has begun; call "
                "begin() before the first step"
            )

    def _stop(self) -> None:
        self.should_stop = True

    def _log(self, result: AuditResult) -> None:
        """Give the figures to the Accelerator's trackers; without any, accelerate does nothing."""
        if getattr(self._accelerator, "trackers", None):
            self._accelerator.log(result.metrics(), step=result.step)
