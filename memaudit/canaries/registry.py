"""Families of secrets: what one must be able to do, and the registry that third parties add theirs to."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from memaudit.canaries.tokens import TokenizerLike
from memaudit.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Sampled:
    """One continuation drawn from a model: its ids, and the log-probability of each at temperature 1."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Sampler(Protocol):
    """A model, seen only as something that draws continuations of a prompt and scores given ones."""

    def sample(
        self,
        count: int,
        length: int,
        *,
        prompt: Sequence[int],
        allowed: Sequence[int],
        temperatures: Sequence[float],
        seed: int,
    ) -> list[Sampled]:
        """Draw ``count`` continuations of ``length`` tokens among ``allowed``, the same for the same seed.

        ``temperatures`` has one value for each of them.
        """
        ...

    def perplexities(self, prompt: Sequence[int], continuations: Sequence[Sequence[int]]) -> list[float]:
        """Return the perplexity of each continuation of the prompt at temperature 1."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """One secret as a family made it.

    ``generator`` names what really drew the tokens, ``metadata`` what is known about it (never the text);
    ``variants`` are near-duplicates of it, where the family makes them.
    """

    secret: str = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)
    generator: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """What a family is asked for.

    Args:
        tokenizer: the training's.
        count: number of secrets.
        length: tokens of each.
        seed: of this drawing.
        sampler: a model, where there is one.
        corpus: texts, where they are given; read once.
        ppl_band: perplexities between which a sampled secret lies.
        temperature: of the sampling: where it starts.
        copies: the most often that a secret will be repeated.
        options: what the family alone understands.
        notes: a family appends what the reader of a report should know.
    """

    tokenizer: TokenizerLike
    count: int
    length: int
    seed: int
    sampler: Sampler | None = None
    corpus: Iterable[str] | None = None
    ppl_band: tuple[float, float] = (40.0, 500.0)
    temperature: float = 1.8
    copies: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


Family = Callable[[Request], list[Draw]]

_BUILT_IN = {
    "bigram": "memaudit.canaries.bigram",
    "high_ppl": "memaudit.canaries.high_ppl",
    "near_duplicate": "memaudit.canaries.near_duplicate",
    "new_token": "memaudit.canaries.new_token",
    "random": "memaudit.canaries.random",
    "structured": "memaudit.canaries.structured",
    "unigram": "memaudit.canaries.unigram",
}
_ADDED: dict[str, Family] = {}


def register_family(name: str) -> Callable[[Family], Family]:
    """Return a decorator that adds a family of one's own under ``name``.

    Raises:
        ConfigurationError: the name is taken.

    Example:
        >>> @register_family("pins")
        ... def pins(request):
        ...     return [Draw(" 1 2 3 4", (1, 2, 3, 4), "pins") for _ in range(request.count)]
        >>> "pins" in families()
        True
        >>> unregister_family("pins")
    """

    def add(function: Family) -> Family:
        if name in _BUILT_IN or name in _ADDED:
            raise ConfigurationError(
                f"a canary family {name!r} exists already; register yours by another name"
            )
        _ADDED[name] = function
        return function

    return add


def unregister_family(name: str) -> None:
    """Take a family of one's own out of the registry again."""
    _ADDED.pop(name, None)


def families() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(sorted({*_BUILT_IN, *_ADDED}))


def family(name: str) -> Family:
    """Return the family called ``name``.

    Raises:
        ConfigurationError: there is none; the message lists them.
    """
    if name in _ADDED:
        return _ADDED[name]
    if name not in _BUILT_IN:
        raise ConfigurationError(f"no canary family {name!r}; choose one of {', '.join(families())}")
    found: Family = importlib.import_module(_BUILT_IN[name]).draw
    return found
