"""The default backend: a transformers model on one process, on many ranks, sharded or laid over devices."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from torch import nn

from memaudit.attacks.base import Generation
from memaudit.attacks.tools import context_length
from memaudit.engine import AuditEngine
from memaudit.errors import ConfigurationError, ReferenceModeError
from memaudit.fingerprint import model_fingerprint
from memaudit.posthoc.membership.backend import Answer, Which, reference_model
from memaudit.posthoc.membership.noise import EnoughWords, RowNoise
from memaudit.probes import Probe
from memaudit.store import SignalStore
from memaudit.strategies.base import Strategy

T = TypeVar("T")


class TransformersBackend:
    """Answers through the strategies' forwards, and through the signal store where there is one.

    Args:
        target: the strategy of the judged model.
        tokenizer: its tokenizer.
        reference: the strategy of a reference model; without one, the target with its adapters off serves
            where it has adapters.
        references: the strategies of further reference models, by the names that attacks give.
        store: where signals are kept.
        adapters_off: whether a target with adapters is its own reference.
        max_batch_size, max_batch_tokens, max_batch_targets: limits of one forward.
        fixed_batches: whether batches must not depend on the number of ranks.
    """

    name = "transformers"
    full_distribution = True

    def __init__(
        self,
        target: Strategy,
        tokenizer: Any,
        *,
        reference: Strategy | None = None,
        references: Mapping[str, Strategy] | None = None,
        store: SignalStore | None = None,
        adapters_off: bool = True,
        max_batch_size: int = 32,
        max_batch_tokens: int = 8192,
        max_batch_targets: int = 2048,
        fixed_batches: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._target, self._store = target, store
        self._limits: dict[str, Any] = {
            "max_batch_size": max_batch_size,
            "max_batch_tokens": max_batch_tokens,
            "max_batch_targets": max_batch_targets,
            "fixed_batches": fixed_batches,
        }
        self.rank = target.rank
        config = getattr(target.model, "config", None)
        self.max_length = context_length(config, tokenizer)
        named = {reference_model(name): one for name, one in (references or {}).items()}
        self._references: dict[Which, Strategy] = (
            named if reference is None else {"reference": reference, **named}
        )
        self.references = tuple(references or ())
        for one in self._references.values():
            other = context_length(getattr(one.model, "config", None), tokenizer)
            self.max_length = min(self.max_length, other)
        self.vocabulary = int(getattr(config, "vocab_size", None) or len(tokenizer))
        self._adapters = reference is None and adapters_off and _has_adapters(target)
        self.has_reference = reference is not None or self._adapters
        self._names: dict[Which, str] = {}

    def fingerprint(self, which: Which) -> str:
        """Return the name of a model's state: weights, adapters and their state, configuration, precision."""
        if which not in self._names:
            strategy = self._strategy(which)
            config = getattr(strategy.model, "config", None)
            to_json = getattr(config, "to_json_string", None)
            text = str(to_json()) if to_json is not None else repr(type(strategy.model))
            adapters = "off" if which == "reference" and self._adapters else _active_adapters(strategy.model)
            precision = strategy.facts().precision
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            weights = model_fingerprint(strategy)
            self._names[which] = f"{weights}|config={digest}|adapters={adapters}|precision={precision}"
        return self._names[which]

    def score(self, probes: Sequence[Probe], which: Which) -> Answer:
        """Answer probes through the engine; prefixes go in as plain text where the model shares no cache."""
        strategy = self._strategy(which)
        _check_vocabulary(strategy, probes, which)
        engine = AuditEngine(strategy=strategy, store=self._store, **self._limits)
        shares = bool(strategy.facts().details.get("supports_cache", True))
        sent = {probe.key: probe if shares else _without_prefix(probe) for probe in probes}
        named = {key: Probe(key, one.token_ids, one.span, one.prefix_ids) for key, one in sent.items()}
        mode: Literal["target", "reference"] = (
            "reference" if which == "reference" and self._adapters else "target"
        )
        fingerprint = self.fingerprint(which) if self._store is not None else None
        result = engine.score(named.values(), mode, fingerprint=fingerprint)
        return Answer(
            signals=result.signals,
            needed=result.needed,
            reused=result.reused,
            forwards=result.forwards,
            prefix_tokens_saved=result.prefix_tokens_saved,
        )

    def generate(self, wanted: Sequence[Generation]) -> list[list[tuple[int, ...]]]:
        """Sample in batches of rows of one setting, shared out over the ranks."""
        kept = self._stored_samples(wanted)
        rows = [
            (i, j, one, one.seeds[j])
            for i, one in enumerate(wanted)
            if i not in kept
            for j in range(len(one.seeds))
        ]
        rows.sort(key=lambda row: (_setting(row[2]), -len(row[2].prompt_ids), row[0], row[1]))
        batches: list[list[Any]] = []
        for row in rows:
            full = not batches or len(batches[-1]) >= self._limits["max_batch_size"]
            if full or _setting(batches[-1][0][2]) != _setting(row[2]):
                batches.append([])
            batches[-1].append(row)
        world, mine = self._target.record_world, self._target.record_rank
        made: list[tuple[int, int, tuple[int, ...]]] = []
        for turn in range(0, len(batches), world):
            batch = batches[turn + mine] if turn + mine < len(batches) else []
            # Every rank runs with the first batch's length, so that those in lockstep end together.
            made += self._sample(batch, _setting(batches[turn][0][2]))
        by_place = {(i, j): ids for i, j, ids in self.share(made)}
        result = [
            kept[i] if i in kept else [by_place[i, j] for j in range(len(one.seeds))]
            for i, one in enumerate(wanted)
        ]
        self._keep_samples(wanted, result, kept)
        return result

    def _sample(self, batch: list[Any], setting: tuple[Any, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
        from transformers import LogitsProcessorList, StoppingCriteriaList

        max_new_tokens, temperature, top_k, top_p = setting
        noise = RowNoise([row[3] for row in batch], temperature=temperature, top_k=top_k, top_p=top_p)
        longest = max((len(row[2].prompt_ids) for row in batch), default=1)
        enough = EnoughWords(
            lambda ids: str(self.tokenizer.decode(ids, skip_special_tokens=True)),
            [(row[2].max_words, row[2].spaced) for row in batch],
            longest,
        )
        new = self._target.generate(
            [row[2].prompt_ids for row in batch],
            batch_size=max(1, len(batch)),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            logits_processor=LogitsProcessorList([noise]),
            stopping_criteria=StoppingCriteriaList([enough]),
        )
        return [(row[0], row[1], tuple(ids)) for row, ids in zip(batch, new, strict=True)]

    def _stored_samples(self, wanted: Sequence[Generation]) -> dict[int, list[tuple[int, ...]]]:
        if self._store is None:
            return {}
        keys = [_generation_key(one) for one in wanted]
        found = self._store.get_values("generations", keys, self.fingerprint("target"))
        everyone = self.share([frozenset(found)])
        common = frozenset.intersection(*everyone)
        return {i: [tuple(ids) for ids in found[key]] for i, key in enumerate(keys) if key in common}

    def _keep_samples(
        self,
        wanted: Sequence[Generation],
        result: Sequence[Sequence[tuple[int, ...]]],
        kept: dict[int, list[tuple[int, ...]]],
    ) -> None:
        if self._store is None or self.rank != 0:
            return
        new = [i for i in range(len(wanted)) if i not in kept]
        fresh = {_generation_key(wanted[i]): [list(ids) for ids in result[i]] for i in new}
        self._store.put_values("generations", self.fingerprint("target"), fresh)

    def gradient_norms(self, probes: Sequence[Probe], which: Which) -> list[float] | None:
        """Return squared gradient norms; None for a reference that is the target with its adapters off."""
        if which == "reference" and which not in self._references:
            return None
        strategy = self._strategy(which)
        known: dict[str, float] = {}
        if self._store is not None:
            found = self._store.get_values("gradients", [one.key for one in probes], self.fingerprint(which))
            common = frozenset.intersection(*self.share([frozenset(found)]))
            known = {key: float(value) for key, value in found.items() if key in common}
        missing = {one.key: one for one in probes if one.key not in known}
        if missing:
            plain = [_without_prefix(one) for one in missing.values()]
            with trainable(strategy.model):
                norms = strategy.gradient_norms([one.token_ids for one in plain], [one.span for one in plain])
            fresh = dict(zip(missing, norms, strict=True))
            known.update(fresh)
            if self._store is not None and self.rank == 0:
                self._store.put_values("gradients", self.fingerprint(which), fresh)
        return [known[one.key] for one in probes]

    def share(self, rows: Sequence[T]) -> list[T]:
        """Return every rank's rows on every rank."""
        return self._target.gather(rows)

    def my_part(self, n: int) -> range:
        """Return every ``record_world``-th piece, beginning with this rank's number."""
        return range(self._target.record_rank, n, self._target.record_world)

    def facts(self) -> dict[str, Any]:
        """Say what answers."""
        found = self._target.facts()
        facts: dict[str, Any] = {
            "backend": self.name,
            "model": type(self._target.model).__name__,
            "strategy": found.strategy,
            "world_size": found.world_size,
            "sharded": found.sharded,
            "parameters": found.total_parameters,
            "precision": found.precision,
            "max_length": self.max_length,
            "reference": "none",
        }
        said = {
            which: f"{type(one.model).__name__}, {one.facts().strategy}"
            for which, one in self._references.items()
        }
        if "reference" in said:
            facts["reference"] = said["reference"]
        elif self._adapters:
            facts["reference"] = "the target with its adapters off"
        if self.references:
            facts["references"] = {name: said[reference_model(name)] for name in self.references}
        return facts

    def _strategy(self, which: Which) -> Strategy:
        if which == "target":
            return self._target
        if which in self._references:
            return self._references[which]
        if which != "reference" or not self._adapters:
            raise ReferenceModeError(
                "there is no reference model; name one, or leave out the attacks that need it"
            )
        return self._target


@contextmanager
def trainable(model: nn.Module) -> Iterator[None]:
    """Let every floating-point parameter take gradients where a model was loaded frozen, adapters alone first."""
    parameters = dict(model.named_parameters())
    if any(one.requires_grad for one in parameters.values()):
        yield
        return
    chosen = [one for name, one in parameters.items() if "lora_" in name] or list(parameters.values())
    chosen = [one for one in chosen if one.is_floating_point()]
    for one in chosen:
        one.requires_grad_(True)
    try:
        yield
    finally:
        for one in chosen:
            one.requires_grad_(False)


def _without_prefix(probe: Probe) -> Probe:
    """Return the same question with the prefix as part of the text."""
    if not probe.prefix_ids:
        return probe
    shift = len(probe.prefix_ids)
    span = (probe.span[0] + shift, probe.span[1] + shift)
    return Probe(probe.id, probe.prefix_ids + probe.token_ids, span)


def _check_vocabulary(strategy: Strategy, probes: Sequence[Probe], which: Which) -> None:
    """Refuse token ids that the model has no embedding for: they come from another model's tokenizer."""
    size = getattr(getattr(strategy.model, "config", None), "vocab_size", None)
    if not isinstance(size, int):
        return
    largest = max((max(one.token_ids + one.prefix_ids) for one in probes), default=0)
    if largest >= size:
        raise ConfigurationError(
            f"the {which} model has a vocabulary of {size} ids and the texts hold id {largest}: the tokenizer is "
            "another model's, or the embeddings were resized; give the model's own tokenizer or another reference"
        )


def _has_adapters(strategy: Strategy) -> bool:
    try:
        return strategy.reference() is not None
    except ReferenceModeError:
        return False


def _active_adapters(model: nn.Module) -> str:
    named = getattr(model, "active_adapters", None)
    try:
        named = named() if callable(named) else named
    except ValueError:  # transformers' own method on a model without any
        named = None
    return ",".join(named) if isinstance(named, (list, tuple)) and named else "none"


def _setting(one: Generation) -> tuple[Any, ...]:
    return (one.max_new_tokens, one.temperature, one.top_k, one.top_p)


def _generation_key(one: Generation) -> str:
    return hashlib.sha256(repr(one).encode()).hexdigest()
