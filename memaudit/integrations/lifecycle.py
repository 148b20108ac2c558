"""Lifecycle: when a session audits during a training run; the same for every framework's callback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from memaudit import timeline
from memaudit.schedule import Schedule
from memaudit.session import AuditResult, AuditSession

logger = logging.getLogger(__name__)


class Lifecycle:
    """Calls a session where its schedule says so, once per optimizer step, under its error policy.

    Args:
        session: audits the model.
        schedule: at which steps and epochs.
        log: gets each audit's result, for the framework's own logger.
        stop: asks the framework to stop training; called where ``stop_when`` holds.
        audited_step: the optimizer step of an audit before a resume, which is not repeated.

    Attributes:
        results: every audit of this run.
        report: the report, once training has ended.
    """

    def __init__(
        self,
        session: AuditSession,
        schedule: Schedule,
        *,
        log: Callable[[AuditResult], None],
        stop: Callable[[], None],
        audited_step: int | None = None,
    ) -> None:
        self.session = session
        self.schedule = schedule
        self.results: list[AuditResult] = []
        self.report: Any = None
        self.audited_step = audited_step
        self._log = log
        self._stop = stop

    def begin(self, step: int, epoch: float | None = None) -> None:
        """Take the reference, and audit before the first step where that is asked for.

        The timeline goes on where a resumed run goes on: lines of later steps, or of another run in the same
        folder, are left out of it.
        """
        if self.session.strategy.rank == 0:
            timeline.rewind(self.session.output_dir / timeline.TIMELINE_NAME, step)
        self.session.guarded(lambda: self.session.reference(step), "the reference")
        if self.schedule.at_start and step == 0:
            self.audit(step, epoch)

    def after_step(self, step: int, epoch: float | None = None) -> AuditResult | None:
        """Audit where the optimizer step just done is due."""
        return self.audit(step, epoch) if self.schedule.due_after_step(step) else None

    def after_epoch(self, number: int, step: int, epoch: float | None = None) -> AuditResult | None:
        """Audit where the epoch just done, counted from 1, is due."""
        return self.audit(step, epoch) if self.schedule.due_after_epoch(number) else None

    def end(self, step: int, epoch: float | None = None) -> Any:
        """Audit the final model, unless these weights were audited just now, and write the report."""
        last = self.session.last
        # The step alone does not tell: load_best_model_at_end puts other weights in place after the last step.
        if last is None or last.step != step or last.weights != self.session.weights():
            self.audit(step, epoch, again=True)
        if self.session.last is not None:
            self.report = self.session.guarded(self.session.report, "the report")
        else:
            logger.warning(
                "memaudit: no audit succeeded, so there is no report: %s", "; ".join(self.session.warnings)
            )
        return self.report

    def audit(self, step: int, epoch: float | None = None, *, again: bool = False) -> AuditResult | None:
        """Audit now, unless this step was audited already; None where it was, or where it failed."""
        if step == self.audited_step and not again:
            return None
        result = self.session.guarded(
            lambda: self.session.audit(step, epoch=epoch), f"the audit at step {step}"
        )
        if result is None:
            return None
        self.audited_step = step
        self.results.append(result)
        self._log(result)
        if self.session.should_stop(result):
            logger.warning("memaudit: stop_when holds at step %d; training stops", step)
            self._stop()
        return result
