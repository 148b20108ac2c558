"""LightningMemorizationAudit: an audit inside Lightning's Trainer, on whatever strategy it trains with."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torchmetrics import Metric
from torchmetrics.aggregation import MaxMetric, RunningMean

from memaudit.errors import AuditError, ConfigurationError, MissingExtraError
from memaudit.files import sha256_bytes
from memaudit.integrations.lifecycle import Lifecycle
from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.preflight import run_preflight
from memaudit.schedule import Schedule
from memaudit.session import MANIFEST_NAME, AuditResult, AuditSession

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError as error:
        try:  # the same library under its older name
            from pytorch_lightning import Callback, LightningModule, Trainer
        except ImportError:
            raise MissingExtraError("lightning", "lightning", "LightningMemorizationAudit") from error

logger = logging.getLogger(__name__)

PEAKS = ("tpr_at_1pct_fpr", "auc", "regurgitation_rate")
"""Figures whose largest value of the run is logged too, as ``memaudit/NAME_max``."""

STATE_VERSION = 1


class LightningMemorizationAudit(Callback):  # type: ignore[misc,unused-ignore]
    """Audits membership and regurgitation of the planted canaries during ``fit``, on the shards.

    The figures go to every logger at the step of the audit, and through ``pl_module.log`` into
    ``trainer.callback_metrics``, where EarlyStopping and ModelCheckpoint can monitor them.

    Args:
        manifest: what ``inject()`` returned, or its path.
        tokenizer: the one that the canaries were drawn for, or the folder or name to load it from.
        every_n_epochs: audit after each multiple of this many epochs; 0 for never.
        every_n_steps: audit after each multiple of this many optimizer steps; 0 for never.
        at_start: audit before the first step too, as a check on the canaries themselves.
        at_end: audit the final model and write the report when training ends, before Lightning puts the
            weights away.
        ref: reference mode: "auto", "adapter", "initial", "none" or the path of a base checkpoint.
        output_dir: where report, timeline and signals go; the trainer's ``default_root_dir`` where not given.
        skip_preflight: do not look whether the canaries survive the trainer's data pipeline. A failed
            pre-flight ends training before it starts, since the audit would measure nothing.
        held_out: records that were not trained on, for the set-level test on real records.
        train_records: the records that were trained on, for the part on real records; a LightningModule or
            its data loader does not show them as text.
        options: the other choices, as :class:`memaudit.options.AuditOptions`; in YAML a mapping.
        choices: or single fields of it by name, such as ``target_fpr``, ``on_error``, ``stop_when``.

    Attributes:
        preflight: what the pre-flight found, once training has begun.
        report: the report, once training has ended.
        results: every audit of this run.
        history: the figures of every audit, those before a resume included.

    Raises:
        ConfigurationError: an option has no meaning.
        MissingExtraError: Lightning is not installed.

    Example:
        ``Trainer(callbacks=[LightningMemorizationAudit(manifest, tokenizer, every_n_epochs=1)])``
    """

    def __init__(
        self,
        # A Manifest, or its path. LightningCLI reads these annotations: were the model class named, it would read
        # the file into its configuration, and write the secrets into the config.yaml beside the checkpoints.
        manifest: str | os.PathLike[str] | Any,
        tokenizer: Any,
        *,
        every_n_epochs: int = 0,
        every_n_steps: int = 0,
        at_start: bool = False,
        at_end: bool = True,
        ref: str = "auto",
        output_dir: str | os.PathLike[str] | None = None,
        skip_preflight: bool = False,
        held_out: Sequence[Any] | None = None,
        train_records: Sequence[Any] | None = None,
        options: AuditOptions | None = None,
        **choices: Any,
    ) -> None:
        super().__init__()
        self.manifest = manifest if isinstance(manifest, Manifest) else Manifest.load(manifest)
        self.tokenizer = _tokenizer(tokenizer)
        self.schedule = Schedule(every_steps=every_n_steps, every_epochs=every_n_epochs, at_start=at_start)
        self.at_end = at_end
        self.output_dir = output_dir
        self.skip_preflight = skip_preflight
        self.held_out = held_out
        self.preflight: Any = None
        self.train_records = train_records
        self.report: Any = None
        self.history: list[dict[str, Any]] = []
        self._options = options
        self._choices = choices if options is not None and ref == "auto" else {"ref": ref, **choices}
        self._lifecycle: Lifecycle | None = None
        self._last: dict[str, Metric] = {}
        self._peaks = {name: MaxMetric(nan_strategy="ignore", sync_on_compute=False) for name in PEAKS}
        self._audited_step: int | None = None
        self._step_seen = 0
        self._ended = False
        # A typo in an option is told here, not after hours of training.
        self._max_length = AuditSession.check_options(options, self._choices).max_length

    @property
    def results(self) -> list[AuditResult]:
        """Every audit since this ``fit`` began."""
        return [] if self._lifecycle is None else self._lifecycle.results

    @property
    def state_key(self) -> str:
        """The key of this callback's part of a checkpoint."""
        return type(self).__qualname__

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: the figures so far, their peaks, and the step audited last."""
        return {
            "version": STATE_VERSION,
            "design_sha256": _design(self.manifest),
            "audited_step": self._audited_step,
            "history": [dict(figures) for figures in self.history],
            "peaks": {
                name: float(peak.compute()) for name, peak in self._peaks.items() if peak.update_called
            },
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint.

        Raises:
            ConfigurationError: the checkpoint was written with another manifest, or by a newer memaudit.
        """
        if state_dict.get("version", 0) > STATE_VERSION:
            raise ConfigurationError(
                f"the checkpoint's audit state has version {state_dict['version']}, this memaudit reads up to "
                f"{STATE_VERSION}; upgrade memaudit"
            )
        if state_dict["design_sha256"] != _design(self.manifest):
            raise ConfigurationError(
                "the checkpoint was trained with another manifest; give the one that its run began with "
                f"({MANIFEST_NAME} in its output folder)"
            )
        self._audited_step = state_dict["audited_step"]
        self.history = [dict(figures) for figures in state_dict["history"]]
        for name, value in state_dict["peaks"].items():
            self._peaks[name].update(value)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Run the pre-flight, take the reference, and audit at step 0 where asked: the model is wrapped by now."""
        if not self.skip_preflight:
            self.preflight = run_preflight(
                trainer, self.manifest, tokenizer=self.tokenizer, model=pl_module, max_length=self._max_length
            )
            self.preflight.raise_for_errors()
        folder = Path(self.output_dir if self.output_dir is not None else trainer.default_root_dir)
        self._ended = False
        self._step_seen = trainer.global_step
        session = AuditSession(
            trainer,
            self.tokenizer,
            self.manifest,
            output_dir=folder,
            options=self._options,
            **self._choices,
        )
        self.manifest = session.adopt_preflight(self.preflight)
        session.real_records = (self.train_records, self.held_out)
        if session.strategy.rank == 0:
            self.manifest.save(folder / MANIFEST_NAME)
        self._lifecycle = Lifecycle(
            session,
            self.schedule,
            log=lambda result: self._log(trainer, pl_module, result),
            stop=lambda: setattr(trainer, "should_stop", True),
            audited_step=self._audited_step,
        )
        with torch.inference_mode(False):
            self._lifecycle.begin(trainer.global_step, _epochs(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Audit after the optimizer steps that the schedule names; gradient accumulation does not count."""
        if self._lifecycle is None or trainer.sanity_checking or trainer.global_step == self._step_seen:
            return
        self._step_seen = trainer.global_step
        with torch.inference_mode(False):
            self._lifecycle.after_step(trainer.global_step, _epochs(trainer, batch_idx + 1))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Audit after the epochs that the schedule names; checkpoints of this hook are written later."""
        if self._lifecycle is None or trainer.sanity_checking:
            return
        number = trainer.current_epoch + 1
        with torch.inference_mode(False):
            self._lifecycle.after_epoch(number, trainer.global_step, float(number))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Audit the final model and write the report; after this hook Lightning puts sharded weights away."""
        if self._lifecycle is not None and self.at_end:
            with torch.inference_mode(False):
                self.report = self._lifecycle.end(trainer.global_step, _epochs(trainer))
        self._ended = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so where training ended without a final audit: it is too late for one here."""
        if self._lifecycle is not None and self.at_end and not self._ended:
            logger.warning(
                "memaudit: training ended without on_train_end, so the final model was not audited; audit its "
                "checkpoint with `memaudit audit`"
            )

    def audit(self, trainer: Trainer) -> AuditResult | None:
        """Audit now, from a hook of your own between on_train_start and on_train_end; every rank must call it.

        Raises:
            AuditError: training has not begun or has ended. In on_fit_end sharded weights are being put away,
                and a forward there would see parts of the wrong shape.
        """
        if self._lifecycle is None or self._ended:
            when = "has not begun" if self._lifecycle is None else "has ended, as in on_fit_end and teardown"
            raise AuditError(
                f"an audit was asked for when training {when}: sharded weights are not in place for a forward; "
                "audit from on_train_start to on_train_end, or run `memaudit audit` on a checkpoint"
            )
        with torch.inference_mode(False):
            return self._lifecycle.audit(trainer.global_step, _epochs(trainer))

    def _log(self, trainer: Trainer, pl_module: LightningModule, result: AuditResult) -> None:
        """Give the figures to the loggers at this step, and to callback_metrics through the module's own log."""
        self._audited_step = result.step
        self.history.append(dict(result.figures))
        metrics = result.metrics()
        for name, peak in self._peaks.items():
            value = result.figures.get(name)
            if value is not None:
                peak.update(float(value))
                metrics[f"memaudit/{name}_max"] = float(peak.compute())
        for one in trainer.loggers:
            one.log_metrics(metrics, step=result.step)
        if pl_module._current_fx_name in (None, "on_train_end", "on_fit_start"):
            return  # Lightning's log is closed there; the loggers have the figures
        for name, value in metrics.items():
            metric = self._last.setdefault(name, RunningMean(window=1, sync_on_compute=False))
            metric.update(value)
            pl_module.log(
                name, metric, on_step=False, on_epoch=True, logger=False, metric_attribute=name, batch_size=1
            )


def _design(manifest: Manifest) -> str:
    """Return a SHA-256 over what was planted; what the pre-flight adds to a manifest does not change it."""
    planted = [(c.id, c.secret_hash, c.role, c.included, c.repetitions) for c in manifest.canaries]
    return sha256_bytes(json.dumps(planted).encode())


def _epochs(trainer: Trainer, batches: int = 0) -> float:
    """Return the epochs done so far, as a fraction where the number of batches is known."""
    total = trainer.num_training_batches
    part = batches / total if isinstance(total, int) and total > 0 else 0.0
    return trainer.current_epoch + part


def _tokenizer(given: Any) -> Any:
    """Return a tokenizer; a folder or name, as YAML gives it, is loaded."""
    if given is None:
        raise ConfigurationError("no tokenizer was given; pass the one that the canaries were drawn for")
    if not isinstance(given, (str, os.PathLike)):
        return given
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.fspath(given))
