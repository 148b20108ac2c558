"""What answers probes: one small protocol, fulfilled by transformers models on any ranks and by vLLM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from memaudit.attacks.base import Generation
from memaudit.probes import Probe
from memaudit.signals import TokenSignals

Which = str
"""A model of a run: "target", "reference", or "reference NAME" where an attack names one of several."""

T = TypeVar("T")


def reference_model(name: str = "") -> Which:
    """Return which model a reference is: the run's only one, or the one of that name.

    Example:
        >>> reference_model(), reference_model("small")
        ('reference', 'reference small')
    """
    return f"reference {name}" if name else "reference"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Signals by probe key, and what they cost.

    Args:
        signals: by ``Probe.key``.
        needed: probes that went through the model.
        reused: probes whose signals the store had.
        forwards: forwards of the model on each rank.
        prefix_tokens_saved: prefix tokens that were not forwarded again, thanks to the shared cache.
    """

    signals: Mapping[str, TokenSignals]
    needed: int = 0
    reused: int = 0
    forwards: tuple[int, ...] = (0,)
    prefix_tokens_saved: int = 0


class Backend(Protocol):
    """A target model, and a reference where there is one, ready to answer.

    ``references`` names those that attacks may choose among, beside the unnamed one of ``has_reference``.
    ``full_distribution`` says whether signals hold the mean and standard deviation over the vocabulary;
    without it attacks that need them are refused. Every rank makes the same calls.
    """

    name: str
    rank: int
    tokenizer: Any
    max_length: int
    vocabulary: int
    has_reference: bool
    references: tuple[str, ...]
    full_distribution: bool

    def score(self, probes: Sequence[Probe], which: Which) -> Answer:
        """Answer probes, equal ones once; the same result on every rank."""
        ...

    def generate(self, wanted: Sequence[Generation]) -> list[list[tuple[int, ...]]]:
        """Return for each generation the new ids of every sample; the same result on every rank."""
        ...

    def gradient_norms(self, probes: Sequence[Probe], which: Which) -> list[float] | None:
        """Return squared norms of the loss gradients, or None where this model has no gradient of its own."""
        ...

    def share(self, rows: Sequence[T]) -> list[T]:
        """Return every rank's rows, in order of rank, on every rank."""
        ...

    def my_part(self, n: int) -> range:
        """Return which of n pieces of work this rank does."""
        ...

    def facts(self) -> dict[str, Any]:
        """Say what answers: model, precision, ranks, fingerprints."""
        ...
