"""AuditSession: one audit's life, from the reference before the first step to the report after the last."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from memaudit import timeline
from memaudit.attacks import canary_scores
from memaudit.attacks.canary import canary_attacks
from memaudit.engine import AuditEngine, ScoreResult
from memaudit.errors import AuditError, ConfigurationError, ManifestError, MemauditError
from memaudit.extraction import ExtractionOutcome, extract_all
from memaudit.fingerprint import model_fingerprint
from memaudit.gradient_scores import GRADNORM, gradient_norms, gradnorm_scores
from memaudit.injection import Rendered, render_all
from memaudit.manifest import Manifest
from memaudit.options import AuditOptions
from memaudit.probes import Probe
from memaudit.references import Reference, choose_mode, take_adapter, take_checkpoint, take_initial
from memaudit.report.membership import membership
from memaudit.report.schema.membership import Membership
from memaudit.schedule import stop_rule
from memaudit.signals import TokenSignals
from memaudit.store import SignalStore
from memaudit.strategies.base import Strategy
from memaudit.strategies.resolve import resolve

if TYPE_CHECKING:
    from memaudit.preflight import PreflightResult

logger = logging.getLogger(__name__)

T = TypeVar("T")

REPORT_NAME = "memaudit-report.json"
MANIFEST_NAME = "memaudit-manifest.json"
SIGNALS_NAME = "memaudit-signals"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditResult:
    """What one audit found, the same on every rank.

    ``scores`` maps attack to canary id to score (NaN where the signals were no numbers), ``figures`` are
    those that are logged and kept in the timeline, ``weights`` names the model's state.
    """

    step: int | None
    epoch: float | None
    headline_attack: str
    scores: dict[str, dict[str, float]] = field(repr=False)
    membership: Membership = field(repr=False)
    extraction: ExtractionOutcome = field(repr=False)
    target: ScoreResult = field(repr=False)
    reference: Reference = field(repr=False)
    seconds: float
    share_of_training_time: float | None
    weights: str
    figures: dict[str, Any]

    def metrics(self) -> dict[str, float]:
        """Return the figures that are numbers, under the names that loggers get: ``memaudit/...``."""
        return {
            f"memaudit/{name}": float(value)
            for name, value in self.figures.items()
            if isinstance(value, (int, float)) and name not in ("step", "epoch")
        }


class AuditSession:
    """Audits one model through its training, whatever trains it.

    Args:
        model_or_accelerator: a bare module in any wrapper, an Accelerator, a Hugging Face Trainer, a Lightning
            Trainer, or a strategy.
        tokenizer: the one that the manifest was made for.
        manifest: a Manifest, or the path of one.
        output_dir: folder of the report, the timeline and the signals; every rank sees the same one.
        model: the module inside, where it cannot be found.
        options: fields of :class:`memaudit.options.AuditOptions` by name.

    Every rank makes the same calls. Training state is as before after each of them, also when they raise.

    Raises:
        ManifestError: the manifest is damaged, or was made for another tokenizer.
        StrategyError: no strategy fits the model.
        ConfigurationError: an option has no meaning, or a canary is longer than the model's context.

    Example:
        A raw loop: ``session = AuditSession(accelerator, tokenizer, "memaudit-manifest.json")``,
        ``session.reference()`` before the first step, ``session.audit(step)`` where wanted,
        ``session.report()`` at the end.
    """

    def __init__(
        self,
        model_or_accelerator: Any,
        tokenizer: Any,
        manifest: Manifest | str | os.PathLike[str],
        *,
        output_dir: str | os.PathLike[str] = ".",
        model: Any = None,
        options: AuditOptions | None = None,
        **choices: Any,
    ) -> None:
        if tokenizer is None:
            raise ConfigurationError("no tokenizer was given; pass the one that the canaries were drawn for")
        self.options = _options(options, choices)
        self.manifest = manifest if isinstance(manifest, Manifest) else Manifest.load(manifest)
        self.tokenizer = tokenizer
        self.output_dir = Path(output_dir)
        require_same_tokenizer(self.manifest, tokenizer)
        self.strategy: Strategy = (
            model_or_accelerator
            if isinstance(model_or_accelerator, Strategy)
            else resolve(model_or_accelerator, model=model)
        )
        self.rendered: dict[str, Rendered] = render_all(self.manifest, tokenizer)
        self._require_context()
        self.engine = AuditEngine(
            strategy=self.strategy,
            store=SignalStore(self.output_dir / SIGNALS_NAME),
            max_batch_size=self.options.max_batch_size,
            max_batch_tokens=self.options.max_batch_tokens,
            decodings=self.options.decodings,
            failure_timeout=self.options.failure_timeout,
        )
        self.preflight: dict[str, Any] | None = None
        self.real_records: tuple[Any, Any] = (None, None)
        self.training: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.last: AuditResult | None = None
        self.last_step_seen = 0
        self._reference: Reference | None = None
        self._reference_norms: dict[str, float] | None = None
        self._should_stop = stop_rule(self.options.stop_when)
        self._began = time.monotonic()
        self._audit_seconds = 0.0

    @staticmethod
    def check_options(options: AuditOptions | None, choices: Mapping[str, Any]) -> AuditOptions:
        """Return the options that ``choices`` give, or say which of them has no meaning.

        Raises:
            ConfigurationError: an unknown name, or a value out of range.
        """
        return _options(options, dict(choices))

    def adopt_preflight(self, found: PreflightResult | None) -> Manifest:
        """Keep what the pre-flight found, and score the secrets after the tokens that training puts before them.

        Call it before ``reference``, on every rank.

        Args:
            found: this rank's pre-flight; None where there was none, and records train as they render.

        Returns:
            The manifest that now says so, on every rank: keep that one for audits after training.
        """
        self.preflight = found.to_dict() if found is not None else None
        prefixes = self.strategy.gather([found.observed_prefix if found is not None else None])
        seen = {prefix for prefix in prefixes if prefix is not None}
        if len(seen) == 1:
            self.manifest = self.manifest.model_copy(update={"observed_prefix": seen.pop()})
            self.rendered = render_all(self.manifest, self.tokenizer)
            self._require_context()
        return self.manifest

    @property
    def probes(self) -> list[Probe]:
        """One probe per canary: its record as training saw it, the secret as the target span."""
        return [Probe(name, one.ids, one.span) for name, one in self.rendered.items()]

    def reference(self, step: int = 0) -> Reference:
        """Take the reference scores, once; call it before the first training step.

        Args:
            step: optimizer steps done so far; above 0 only what an earlier part of the run kept can serve.

        Raises:
            ReferenceModeError: the mode asked for is not to be had, or would be taken too late.
        """
        if self._reference is None:
            began = time.monotonic()
            mode, note = choose_mode(self.options.ref, self.engine)
            if mode == "none":
                self._reference = Reference(mode="none", identity="none", note=note)
            elif mode == "adapter":
                self._reference = take_adapter(self.engine, self.probes, note)
            elif mode == "initial":
                self._reference = take_initial(
                    self.engine,
                    self.probes,
                    note,
                    step=step,
                    folder=self.output_dir,
                    manifest_hash=self.manifest.content_hash(),
                )
                if GRADNORM in self.options.attacks and step == 0:
                    self._reference_norms = gradient_norms(self.strategy, self.probes)
            else:
                self._reference = take_checkpoint(self.engine, self.probes, self.options.ref, note)
            self._audit_seconds += time.monotonic() - began
        return self._reference

    def audit(self, step: int | None, *, epoch: float | None = None, generate: bool = False) -> AuditResult:
        """Score every canary with the model as it is, and append the headline to the timeline.

        Args:
            step: optimizer steps done so far; None for trained weights whose step nobody knows, which have no
                place in the timeline.
            epoch: epochs done so far, for the timeline.
            generate: look for near-verbatim matches too; verbatim ones need no generation.

        Returns:
            The findings, the same on every rank.

        Raises:
            AuditError: scoring failed on some rank; the message names the rank and the record.
        """
        reference = self.reference(1 if step is None else step)
        began = time.monotonic()
        weights = self.weights()
        target = self.engine.score(self.probes, fingerprint=weights)
        scores, headline = self._scores(target, reference)
        if GRADNORM in self.options.attacks:
            scores[GRADNORM] = gradnorm_scores(
                gradient_norms(self.strategy, self.probes), self._reference_norms
            )
        verdict = membership(
            self.manifest,
            scores[headline],
            headline_attack=headline,
            target_fpr=self.options.target_fpr,
            profile=self.options.profile or self.manifest.profile,
            seed=self.options.seeds[0],
        )
        extraction = self._extract(target.signals, generate=generate)
        self._check_reference(step, target, reference)
        seconds = time.monotonic() - began
        self._audit_seconds += seconds
        figures = self._figures(step, epoch, verdict, extraction, target, seconds)
        result = AuditResult(
            step=step,
            epoch=epoch,
            headline_attack=headline,
            scores=scores,
            membership=verdict,
            extraction=extraction,
            target=target,
            reference=reference,
            seconds=seconds,
            share_of_training_time=figures["share_of_training_time"],
            weights=weights,
            figures=figures,
        )
        self.last = result
        if self.strategy.rank == 0 and step is not None:
            timeline.append(self.output_dir / timeline.TIMELINE_NAME, figures)
        return result

    def report(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Write the report of the last audit, with the near-verbatim part; every rank calls.

        Args:
            path: where; ``memaudit-report.json`` in the output folder where it is not given.

        Returns:
            The report, on every rank.

        Raises:
            AuditError: there was no audit, or the model has changed since the last one.
        """
        from memaudit.assemble import assemble_report, write_outputs

        if self.last is None:
            raise AuditError("there is nothing to report: call audit(step) first")
        if self.moved():
            text = (
                f"the model has changed since the audit at step {self.last.step}; call audit(step) once more, "
                "then report()"
            )
            if self.options.on_error == "raise":
                raise AuditError(text)
            self.warnings.append(f"near-verbatim matches and real records are left out: {text}")
        elif not self.options.skip_generation and self.last.extraction.counts.not_run:
            began = time.monotonic()
            extraction = self._extract(self.last.target.signals, generate=True)
            self._audit_seconds += time.monotonic() - began
            self.last = replace(self.last, extraction=extraction)
        document = assemble_report(self, self.last, audit_seconds=self._audit_seconds)
        target = Path(path) if path is not None else self.output_dir / REPORT_NAME
        if self.strategy.rank == 0:
            document = write_outputs(self, document, target)
        self.strategy.barrier()
        return document

    def weights(self) -> str:
        """Name the model's weights: the engine's fingerprint where it has one, else what their bits say."""
        return self.engine.fingerprint or model_fingerprint(self.strategy)

    def moved(self) -> bool:
        """Whether the model has changed since the last audit; every rank calls."""
        return self.last is not None and self.weights() != self.last.weights

    def use_reference(self, reference: Reference) -> None:
        """Take reference scores that were made elsewhere, instead of making them at the first audit."""
        self._reference = reference

    def should_stop(self, result: AuditResult) -> bool:
        """Whether ``stop_when`` holds for this audit; the same on every rank."""
        return self._should_stop(result.figures)

    def guarded(self, action: Callable[[], T], what: str) -> T | None:
        """Run ``action`` under the error policy: raise, or warn and let training go on.

        Errors that memaudit expects follow ``on_error``; every other exception is a bug and is raised.
        """
        try:
            return action()
        except MemauditError as error:
            if self.options.on_error == "raise":
                raise
            message = f"{what} failed: {error}"
            logger.warning("memaudit: %s", message)
            self.warnings.append(message)
            return None

    def _scores(self, target: ScoreResult, reference: Reference) -> tuple[dict[str, dict[str, float]], str]:
        """Score every attack that the signals allow; a canary without numbers scores NaN under each."""
        has_reference = reference.signals is not None
        headline = "ref_minkpp" if has_reference else "minkpp"
        wanted = [headline, *(name for name in self.options.attacks if name not in (headline, GRADNORM))]
        usable = set(canary_attacks(reference=True))
        without_reference = set(canary_attacks(reference=False))
        unknown = [name for name in wanted if name not in usable]
        if unknown:
            raise ConfigurationError(
                f"attacks {unknown} do not run on canaries; use some of {sorted(usable)}"
            )
        names = [name for name in wanted if has_reference or name in without_reference]
        bad = set(target.nonfinite)
        if reference.signals is not None:
            bad |= {name for name, signals in reference.signals.items() if not signals.is_finite}
        good = {name: signals for name, signals in target.signals.items() if name not in bad}
        texts = {canary.id: canary.secret for canary in self.manifest.canaries if canary.id in good}
        kept = None if reference.signals is None else {name: reference.signals[name] for name in good}
        scores = canary_scores(names, good, kept, texts) if good else {name: {} for name in names}
        for by_id in scores.values():
            by_id.update(dict.fromkeys(bad, math.nan))
        return scores, headline

    def _extract(self, signals: Mapping[str, TokenSignals], *, generate: bool) -> ExtractionOutcome:
        return extract_all(
            self.rendered,
            signals,
            strategy=self.strategy,
            fractions=self.options.prefix_fractions,
            decodings=self.options.decodings,
            generate_open=generate and not self.options.skip_generation,
            decode=lambda ids: self.tokenizer.decode(ids, clean_up_tokenization_spaces=False),
            max_batch_size=self.options.max_batch_size,
            max_batch_tokens=self.options.max_batch_tokens,
            failure_timeout=self.options.failure_timeout,
        )

    def _figures(
        self,
        step: int | None,
        epoch: float | None,
        verdict: Membership,
        extraction: ExtractionOutcome,
        target: ScoreResult,
        seconds: float,
    ) -> dict[str, Any]:
        """The headline figures of one audit, as the timeline and the loggers get them."""
        members = [c.id for c in self.manifest.members if c.id in extraction.by_id]
        verbatim = sum(extraction.by_id[name].verbatim for name in members)
        training = time.monotonic() - self._began - self._audit_seconds
        return {
            "step": step,
            "epoch": epoch,
            "tpr_at_1pct_fpr": verdict.tpr_at_1pct_fpr,
            "tpr_at_target_fpr": verdict.tpr_at_target_fpr,
            "ci_low": verdict.ci_low,
            "ci_high": verdict.ci_high,
            "auc": verdict.auc,
            "n_detected": verdict.n_detected,
            "n_members": verdict.n_members,
            "regurgitation_rate": verbatim / len(members) if members else None,
            "seconds": seconds,
            # Before the first step there is no training to compare with.
            "share_of_training_time": self._audit_seconds / training if step and training > 0 else None,
            "forwards": max(target.forwards),
            "scored": target.needed,
            "reused": target.reused,
        }

    def _check_reference(self, step: int | None, target: ScoreResult, reference: Reference) -> None:
        """A reference that equals the target once training has moved measures nothing: say so."""
        if reference.signals is None or reference.mode == "none":
            return
        if step is not None and step <= self.last_step_seen:
            return
        self.last_step_seen = self.last_step_seen if step is None else step
        same = all(
            (target.signals[name].logprob == reference.signals[name].logprob).all() for name in target.signals
        )
        if same and step != 0:
            when = "" if step is None else f"at step {step} "
            text = (
                f"{when}the reference's scores equal the target's in every bit: adapters were not switched "
                "off, or training has not changed the model"
            )
            logger.warning("memaudit: %s", text)
            self.warnings.append(text)

    def _require_context(self) -> None:
        """Cut records as training does; a secret that it would cut, or that has no position, is an error."""
        config = getattr(self.strategy.model, "config", None)
        positions = getattr(config, "max_position_embeddings", None)
        limits = [n for n in (self.options.max_length, positions) if isinstance(n, int)]
        if not limits:
            return
        limit = min(limits)
        long = [name for name, one in self.rendered.items() if one.span[1] > limit]
        if long:
            most = max(self.rendered[name].span[1] for name in long)
            raise ConfigurationError(
                f"the secrets of {len(long)} canary record(s), first {long[0]}, end after up to {most} tokens and the "
                f"limit is {limit}; draw shorter secrets (secret_len) or raise max_length"
            )
        self.rendered = {name: replace(one, ids=one.ids[:limit]) for name, one in self.rendered.items()}


def require_same_tokenizer(manifest: Manifest, tokenizer: Any) -> None:
    """Refuse a tokenizer that is not the one the secrets were drawn for.

    Raises:
        ManifestError: its vocabulary or its way of encoding differs.
    """
    from memaudit.canaries import tokenizer_identity

    given = tokenizer_identity(tokenizer)
    if given.fingerprint != manifest.tokenizer.fingerprint:
        raise ManifestError(
            f"the manifest was made for the tokenizer {manifest.tokenizer.name} ({manifest.tokenizer.vocab_size} "
            f"tokens), and {given.name} ({given.vocab_size} tokens) was given; pass the same one, or draw canaries anew"
        )


def _options(options: AuditOptions | None, choices: dict[str, Any]) -> AuditOptions:
    for name in ("attacks", "prefix_fractions", "decodings", "seeds"):
        if name in choices and not isinstance(choices[name], tuple):
            value = choices[name]
            choices[name] = tuple(value) if isinstance(value, (list, set, frozenset)) else (value,)
    try:
        return replace(options, **choices) if options is not None else AuditOptions(**choices)
    except TypeError as error:
        known = ", ".join(AuditOptions.__dataclass_fields__)
        unknown = sorted(set(choices) - set(AuditOptions.__dataclass_fields__))
        raise ConfigurationError(f"unknown audit option {unknown}; options are {known}") from error
