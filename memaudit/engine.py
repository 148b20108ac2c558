"""AuditEngine: probes in, signals out, through a strategy's forwards, by a plan fixed before the first one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from memaudit.errors import AuditError, MemauditError, ReferenceModeError
from memaudit.failure import FailureWatch
from memaudit.probes import Batch, Plan, Probe, plan
from memaudit.progress import progress
from memaudit.signals import FLOAT_FIELDS, INT_FIELDS, Decoding, TokenSignals
from memaudit.store import SignalStore
from memaudit.strategies.base import Forward, Strategy
from memaudit.token_statistics import token_statistics

logger = logging.getLogger(__name__)

Which = Literal["target", "reference"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreResult:
    """The signals of every probe asked for, on every rank, and what they cost.

    ``forwards`` counts those of each record rank, dummies included; ``needed`` the probes that went through
    the model, ``reused`` those that the store had, ``shared`` those that equal another one asked for.
    ``nonfinite`` names the probes whose signals hold a NaN or an infinity. ``prefix_tokens_saved`` counts the
    tokens of prefixes and common beginnings that were not forwarded again.
    """

    signals: dict[str, TokenSignals] = field(repr=False)
    forwards: tuple[int, ...]
    tokens: tuple[int, ...]
    requested: int
    needed: int
    reused: int
    shared: int
    nonfinite: tuple[str, ...] = ()
    prefix_tokens_saved: int = 0


@dataclass(kw_only=True, slots=True)
class AuditEngine:
    """Scores probes on the shards of one model.

    Args:
        strategy: how the model is spread; :func:`memaudit.strategies.resolve` finds it.
        store: where signals are kept and looked up; None keeps nothing.
        fingerprint: names the model's state in the store; without it nothing is looked up.
        max_batch_size, max_batch_tokens, max_batch_targets: limits of :func:`memaudit.probes.plan`.
        decodings: schemes whose log-probabilities are wanted beside the plain ones; of the target alone, since
            nothing is asked about sampling from a reference.
        failure_timeout: seconds that a rank waits, after another one has failed, before it ends itself.
        fixed_batches: whether batches must not depend on the number of ranks nor on what is stored already,
            so that scores are the same to the last bit; with few probes some ranks then have none.
        share_from: tokens from which on it pays to forward what texts begin with alike once, and let them
            share its keys and values; None never does. Without effect where ``fixed_batches`` is set.

    Every rank makes the same calls with the same probes. Scores do not depend on their order.
    """

    strategy: Strategy
    store: SignalStore | None = None
    fingerprint: str | None = None
    max_batch_size: int = 32
    max_batch_tokens: int = 8192
    max_batch_targets: int = 2048
    decodings: Sequence[Decoding] = ()
    failure_timeout: float = 60.0
    fixed_batches: bool = False
    share_from: int | None = 512

    def score(
        self, probes: Iterable[Probe], which: Which = "target", *, fingerprint: str | None = None
    ) -> ScoreResult:
        """Score every probe with the model as it is, or with its adapters off.

        Args:
            probes: what to score; equal ones are forwarded once.
            which: ``target`` for the model as it is, ``reference`` for adapters off.
            fingerprint: overrides the engine's name of the model's state in the store.

        Returns:
            The same result on every rank.

        Raises:
            ReferenceModeError: a reference was asked of a model without adapters.
            AuditError: a record failed on some rank; raised on every rank after all planned forwards.
        """
        wanted = list(probes)
        name = fingerprint or self.fingerprint
        known = self._known(wanted, name, self._decodings(which))
        full = plan(wanted, ranks=1)
        missing = [probe for probe in wanted if probe.key not in known]
        work = plan(
            wanted if self.fixed_batches else missing,
            ranks=self.strategy.record_world,
            lockstep=self.strategy.lockstep,
            max_batch_size=self.max_batch_size,
            max_batch_tokens=self.max_batch_tokens,
            max_batch_targets=self.max_batch_targets,
            fixed_batches=self.fixed_batches,
            known=frozenset(known) if self.fixed_batches else frozenset(),
            share_from=self._share_from(),
        )
        fresh = self._run(work, which, name) if missing else {}
        by_key = {**known, **fresh}
        signals = {probe.id: by_key[probe.key] for probe in wanted}
        return ScoreResult(
            signals=signals,
            forwards=work.forwards if missing else (0,) * self.strategy.record_world,
            tokens=work.tokens if missing else (0,) * self.strategy.record_world,
            requested=full.requested,
            needed=work.distinct,
            reused=full.distinct - work.distinct,
            shared=full.requested - full.distinct,
            prefix_tokens_saved=work.prefix_tokens_saved if missing else 0,
            nonfinite=tuple(sorted(key for key, value in signals.items() if not value.is_finite)),
        )

    def _share_from(self) -> int | None:
        """Return from how many tokens on a common beginning is forwarded once; every rank comes to the same."""
        if self.share_from is None or self.fixed_batches:
            return None
        return self.share_from if self.strategy.facts().details.get("supports_cache") else None

    def _decodings(self, which: Which) -> Sequence[Decoding]:
        return self.decodings if which == "target" else ()

    def _known(
        self, probes: list[Probe], fingerprint: str | None, decodings: Sequence[Decoding]
    ) -> dict[str, TokenSignals]:
        """Look the probes up in the store; only what every rank sees counts, so that all plan alike."""
        if self.store is None or fingerprint is None:
            return {}
        names = tuple(scheme.name for scheme in decodings)
        found = self.store.get_many({probe.key for probe in probes}, fingerprint)
        found = {k: v for k, v in found.items() if all(name in v.decodings for name in names)}
        everyone = self.strategy.gather([frozenset(found)])
        common = frozenset.intersection(*everyone)
        return {key: value for key, value in found.items() if key in common}

    def _run(self, work: Plan, which: Which, fingerprint: str | None) -> dict[str, TokenSignals]:
        """Forward this rank's batches, gather every rank's signals, and raise together what failed."""
        mine: dict[str, TokenSignals] = {}
        failures: list[tuple[int, str, str]] = []
        rank = self.strategy.rank
        batches = work.batches[self.strategy.record_rank]
        decodings = self._decodings(which)
        with (
            FailureWatch(
                rank=rank, world_size=self.strategy.world_size, timeout=self.failure_timeout
            ) as watch,
            self._enter(which) as forward,
            progress(f"memaudit: scoring ({which})", len(batches), enabled=rank == 0) as advance,
        ):
            cached: tuple[tuple[int, ...], Any] = ((), None)
            for batch in batches:
                try:
                    cached, scored = self._forward(forward, batch, cached, decodings)
                    mine.update(scored)
                    if scored and self.store is not None and fingerprint is not None:
                        self.store.put_many(fingerprint, scored)
                except Exception as error:  # the other ranks rely on this one's planned forwards
                    first = batch.probes[0].id if batch.probes else "(a dummy)"
                    detail = str(error) if isinstance(error, MemauditError) else type(error).__name__
                    logger.debug("scoring failed", exc_info=True)
                    failures.append((rank, first, f"{type(error).__name__}: {_short(error)}"))
                    watch.post(f"record {first}: {detail}")
                watch.tick()
                advance(1)
            everyone = self.strategy.gather([(mine, failures)])
        failed = [failure for _, some in everyone for failure in some]
        if failed:
            bad_rank, record, cause = failed[0]
            raise AuditError(
                f"scoring failed on rank {bad_rank} at record {record} ({cause}); {len(failed)} batch(es) failed "
                "in all; every rank has stopped this audit and training state is as before"
            )
        merged: dict[str, TokenSignals] = {}
        for rows, _ in everyone:
            for key, value in rows.items():
                merged.setdefault(key, value)
        absent = set(work.ids_by_key) - set(merged)
        if absent:
            raise AuditError(f"{len(absent)} of {work.distinct} probes were planned and never scored: a bug")
        return merged

    def _enter(self, which: Which) -> AbstractContextManager[Forward]:
        if which == "target":
            return self.strategy.scoring()
        context = self.strategy.reference()
        if context is None:
            raise ReferenceModeError(
                f"the model under strategy {self.strategy.name} has no adapters to switch off; "
                "use ref='initial', a checkpoint path, or ref='none'"
            )
        return context

    def _forward(
        self,
        forward: Forward,
        batch: Batch,
        cached: tuple[tuple[int, ...], Any],
        decodings: Sequence[Decoding],
    ) -> tuple[tuple[tuple[int, ...], Any], dict[str, TokenSignals]]:
        """Run one batch: its prefix where it has one, the forward, the reduction of its logits."""
        device = forward.device
        cache = None
        if batch.cached_prefix:
            if cached[0] != batch.cached_prefix:
                ids = torch.tensor([batch.cached_prefix], dtype=torch.long, device=device)
                cached = (batch.cached_prefix, forward.prefix(ids))
            cache = cached[1]
        rows_of = batch.probes or (Probe("(dummy)", (0, 0), (1, 2)),)
        length = max(len(batch.ids_of(probe)) for probe in rows_of)
        input_ids = torch.zeros((len(rows_of), length), dtype=torch.long)
        mask = torch.zeros_like(input_ids)
        rows: list[int] = []
        targets: list[int] = []
        for index, probe in enumerate(rows_of):
            ids_of_row = batch.ids_of(probe)
            input_ids[index, : len(ids_of_row)] = torch.tensor(ids_of_row)
            mask[index, : len(ids_of_row)] = 1
            rows.extend(index * length + position for position in batch.rows_of(probe))
            targets.extend(probe.token_ids[probe.span[0] : probe.span[1]])
        logits = forward(input_ids.to(device), mask.to(device), torch.tensor(rows, device=device), cache)
        if not batch.probes:
            return cached, {}
        reduced = token_statistics(logits, torch.tensor(targets), decodings=decodings)
        return cached, _split(batch.probes, reduced)


def _split(probes: Sequence[Probe], reduced: dict[str, torch.Tensor]) -> dict[str, TokenSignals]:
    """Cut the reduced rows of a batch into the probes' signals, by probe key."""
    arrays = {name: values.numpy() for name, values in reduced.items()}
    result: dict[str, TokenSignals] = {}
    start = 0
    for probe in probes:
        part = slice(start, start + probe.n_targets)
        start += probe.n_targets
        result[probe.key] = TokenSignals.from_lists(
            **{name: arrays[name][part] for name in FLOAT_FIELDS + INT_FIELDS},
            decodings={
                name.removeprefix("decoding:"): values[part]
                for name, values in arrays.items()
                if name.startswith("decoding:")
            },
        )
    return result


def _short(error: Exception) -> str:
    """First line of a message, cut: enough to act on; records are named by id, never by text."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
