"""Strategies around a strategy: one that keeps its generations in the store, one that has no model at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, TypeVar

from torch import Tensor

from memaudit.errors import SignalStoreError
from memaudit.store import SignalStore
from memaudit.strategies.base import DistributedFacts, Forward, Strategy
from memaudit.strategies.decoding import GiveUp, first_given_up

T = TypeVar("T")

GENERATIONS = "generations"


def _key(prompt: Sequence[int]) -> str:
    return hashlib.sha256(str(tuple(prompt)).encode()).hexdigest()


def _serves(kept: Mapping[str, Any], length: int, ends: GiveUp | None, index: int) -> bool:
    """Whether a stored generation is all that is asked for: given up again, ended by itself, or long enough.

    ``ends`` is asked what it was asked when the generation was made, since its caller may note the answers.
    """
    ids = list(kept["ids"])[:length]
    if ends is not None and first_given_up(ends, index, ids) is not None:
        return True
    if len(ids) == length or (not kept.get("given_up") and len(ids) < kept["asked"]):
        return True
    # Made in a batch of shorter texts: it may be whole, though this batch goes on for longer ones.
    return ends is not None and ends(index, ids)


class RememberingStrategy:
    """A strategy whose greedy generations are kept in the signal store, and taken from there when they are.

    Args:
        inner: the strategy that has the model.
        store: where generations go.
        fingerprint: names the model's weights in the store.
    """

    def __init__(self, inner: Strategy, store: SignalStore, fingerprint: str) -> None:
        self._inner, self._store, self._fingerprint = inner, store, fingerprint
        self.name = inner.name
        self.rank, self.world_size = inner.rank, inner.world_size
        self.record_rank, self.record_world = inner.record_rank, inner.record_world
        self.lockstep = inner.lockstep
        self.generated = 0

    @property
    def model(self) -> Any:
        """The model inside every wrapper."""
        return self._inner.model

    def scoring(self) -> AbstractContextManager[Forward]:
        """As the strategy's."""
        return self._inner.scoring()

    def reference(self) -> AbstractContextManager[Forward] | None:
        """As the strategy's."""
        return self._inner.reference()

    def generate(self, input_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[list[int]]:
        """Generate what the store does not have; every rank calls, also one that has everything."""
        if kwargs.get("do_sample"):
            return self._inner.generate(input_ids, **kwargs)
        length = int(kwargs["max_new_tokens"])
        ends: GiveUp | None = kwargs.pop("give_up", None)
        keys = [_key(prompt) for prompt in input_ids]
        kept = self._store.get_values(GENERATIONS, keys, self._fingerprint)
        found = {
            i: kept[key] for i, key in enumerate(keys) if key in kept and _serves(kept[key], length, ends, i)
        }
        todo = [i for i in range(len(keys)) if i not in found]
        given_up: set[int] = set()

        def noted(place: int, new: Sequence[int]) -> bool:
            if ends is not None and ends(todo[place], new):
                given_up.add(place)
            return place in given_up

        if any(self._inner.gather([bool(todo)])):
            asked = {**kwargs, "give_up": noted} if ends is not None else kwargs
            outputs = self._inner.generate([input_ids[i] for i in todo], **asked)
            self.generated += len(outputs)
            for place, (i, ids) in enumerate(zip(todo, outputs, strict=True)):
                found[i] = {"asked": length, "ids": ids, "given_up": place in given_up}
            self._store.put_values(GENERATIONS, self._fingerprint, {keys[i]: found[i] for i in todo})
        return [list(found[i]["ids"])[:length] for i in range(len(keys))]

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """As the strategy's."""
        return self._inner.gradient_norms(input_ids, spans)

    def gather(self, rows: Sequence[T]) -> list[T]:
        """As the strategy's."""
        return self._inner.gather(rows)

    def barrier(self) -> None:
        """As the strategy's."""
        self._inner.barrier()

    def consolidate(self) -> dict[str, Tensor]:
        """As the strategy's."""
        return self._inner.consolidate()

    def facts(self) -> DistributedFacts:
        """As the strategy's."""
        return self._inner.facts()


class AbsentStrategy:
    """No model: everything must be in the store already, as when jobs' signals are merged.

    Args:
        store: where generations are.
        fingerprint: names the weights.
        model: the recorded facts of the model that the report and the extraction read.
        facts: the recorded facts of the strategy.
    """

    name = "absent"
    rank = record_rank = 0
    world_size = record_world = 1

    def __init__(
        self, store: SignalStore, fingerprint: str, model: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> None:
        self._store, self._fingerprint, self._facts = store, fingerprint, facts
        self.lockstep = bool(facts["details"].get("lockstep"))  # generations are asked for as they were made
        config = SimpleNamespace(**model["config"])
        members: dict[str, Any] = {"config": config}
        if model.get("peft_config") is not None:
            settings = dict(model["peft_config"])
            members["peft_config"] = {model["active_adapter"]: SimpleNamespace(to_dict=lambda: settings)}
            members["active_adapter"] = model["active_adapter"]
        if model.get("generation_eos") is not None:
            members["generation_config"] = SimpleNamespace(eos_token_id=model["generation_eos"])
        self._model: Any = type(str(model["class"]), (SimpleNamespace,), {})(**members)

    @property
    def model(self) -> Any:
        """What is recorded of the model: its configuration."""
        return self._model

    def _missing(self) -> SignalStoreError:
        return SignalStoreError(
            f"{self._store.path} lacks signals of some canaries; run the jobs that are missing, then merge again"
        )

    def scoring(self) -> AbstractContextManager[Forward]:
        """Refuse.

        Raises:
            SignalStoreError: always; there is no model.
        """
        raise self._missing()

    def reference(self) -> AbstractContextManager[Forward] | None:
        """Refuse.

        Raises:
            SignalStoreError: always; there is no model.
        """
        raise self._missing()

    def generate(self, input_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[list[int]]:
        """Return stored generations.

        Raises:
            SignalStoreError: one is missing.
        """
        keys = [_key(prompt) for prompt in input_ids]
        kept = self._store.get_values(GENERATIONS, keys, self._fingerprint)
        length, ends = int(kwargs["max_new_tokens"]), kwargs.get("give_up")
        lacking = {
            key for i, key in enumerate(keys) if key not in kept or not _serves(kept[key], length, ends, i)
        }
        if lacking:
            raise SignalStoreError(
                f"{self._store.path} lacks {len(lacking)} generations; run the jobs that are missing, "
                "or merge with --skip-generation"
            )
        return [list(kept[key]["ids"])[:length] for key in keys]

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """Refuse.

        Raises:
            SignalStoreError: always; there is no model.
        """
        raise self._missing()

    def gather(self, rows: Sequence[T]) -> list[T]:
        """Return the rows."""
        return list(rows)

    def barrier(self) -> None:
        """Do nothing."""

    def consolidate(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def facts(self) -> DistributedFacts:
        """Return what the jobs recorded."""
        return DistributedFacts(**self._facts)


def model_record(strategy: Strategy) -> dict[str, Any]:
    """Return what :class:`AbsentStrategy` needs to know of a model, as JSON values."""
    model: Any = strategy.model
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = getattr(model, "config", None)
    names = ("_name_or_path", "max_position_embeddings", "n_positions", "max_sequence_length", "eos_token_id")
    kept = {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}
    record: dict[str, Any] = {
        "class": type(inner).__name__.removeprefix("FSDP"),
        "config": kept,
        "generation_eos": getattr(getattr(model, "generation_config", None), "eos_token_id", None),
        "peft_config": None,
    }
    configs = getattr(model, "peft_config", None)
    if configs:
        active = getattr(model, "active_adapter", None)
        active = active if isinstance(active, str) else next(iter(configs))
        record["active_adapter"] = active
        record["peft_config"] = json.loads(json.dumps(configs[active].to_dict(), default=_plain))
    return record


def _plain(value: Any) -> Any:
    return sorted(str(one) for one in value) if isinstance(value, (set, frozenset)) else str(value)
