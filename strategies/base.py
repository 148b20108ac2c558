"""The protocol that every parallelism fulfils, and the forward that all of them hand to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

T = TypeVar("T")


class Forward(Protocol):
    """A model ready to score: evaluation mode, no gradients, on whatever shards it lives on."""

    @property
    def device(self) -> torch.device:
        """Where the input ids must lie."""
        ...

    @property
    def supports_cache(self) -> bool:
        """Whether ``prefix`` works: the model returns keys and values that rows can share."""
        ...

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, cache: Any = None) -> Tensor:
        """Return the logits at chosen positions alone.

        Args:
            input_ids: int64 [batch, length], right-padded with any valid id.
            attention_mask: int64 [batch, length], 1 for real tokens.
            rows: int64 [n], indices into the flattened [batch * length] positions.
            cache: what ``prefix`` returned, shared by every row.

        Returns:
            Float logits [n, vocabulary]: what the model's own forward gives at these positions,
            soft-capping and scaling included. A [batch, length, vocabulary] tensor is never built.
        """
        ...

    def prefix(self, input_ids: Tensor) -> Any:
        """Forward one prefix, int64 [1, length], and return its keys and values."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DistributedFacts:
    """What the strategy found; goes into the report's ``distributed`` part.

    Parameters are counted in elements; ``local_parameters`` is this rank's share.
    """

    strategy: str
    world_size: int
    sharded: bool
    local_parameters: int
    total_parameters: int
    precision: str
    wrapper: str
    record_world: int
    details: Mapping[str, Any]


@runtime_checkable
class Strategy(Protocol):
    """How one parallelism forwards, generates, gathers and consolidates.

    ``record_rank`` of ``record_world`` says which share of the records this rank scores: ranks of one
    tensor-parallel group have the same one. ``lockstep`` says that every rank must run the same number of
    forwards.
    """

    name: str
    rank: int
    world_size: int
    record_rank: int
    record_world: int
    lockstep: bool

    @property
    def model(self) -> torch.nn.Module:
        """The model inside every wrapper, the one that has a config and a head (PEFT's wrapper included)."""
        ...

    def scoring(self) -> AbstractContextManager[Forward]:
        """Enter evaluation without gradients; everything about training is as before on leaving."""
        ...

    def reference(self) -> AbstractContextManager[Forward] | None:
        """As ``scoring`` with adapters off; None where the model has none. Every rank must enter it."""
        ...

    def generate(self, input_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[list[int]]:
        """Generate on the shards from each rank's own prompts, given without padding.

        Returns, for each prompt, the new token ids alone. Keyword arguments are those of transformers'
        generate, and ``give_up(position, new_ids)``, which ends a text that its caller needs no more of. Every
        rank must call it, with no prompts where it has none.
        """
        ...

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """Return the squared gradient norm of each record's mean loss over its span, over all shards.

        Every rank passes the same records. Gradients and optimizer state stay as they were.
        """
        ...

    def gather(self, rows: Sequence[T]) -> list[T]:
        """Return every rank's picklable rows, in order of rank, on every rank."""
        ...

    def barrier(self) -> None:
        """Wait for every rank."""
        ...

    def consolidate(self) -> dict[str, Tensor]:
        """Return the full state dict on rank 0, on the CPU, and an empty one elsewhere."""
        ...

    def facts(self) -> DistributedFacts:
        """Say what was found: strategy, world size, shares, precision."""
        ...
