"""Tools: how texts become probes, under one policy for beginnings, lengths and words that results state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from memaudit.attacks.base import UnscorableError, Variant
from memaudit.errors import ConfigurationError
from memaudit.probes import Probe
from memaudit.seeds import derive_seed, generator

LongTexts = Literal["window", "truncate", "refuse"]
LONG_TEXTS = ("window", "truncate", "refuse")

Rewrite = Callable[[str, int, int, float, int], "list[str]"]
"""What a masked language model gives: (text, n, top_k, dropout, seed) to the text as it writes it, then n others."""

_UNBOUNDED = 10**9
_SENTINEL = 10**12  # tokenizers without a length say 1e30


@dataclass(kw_only=True)
class Tools:
    """What an attack may use to make variants; the same on every rank.

    Args:
        tokenizer: a transformers tokenizer; it is never changed.
        max_length: tokens that fit the model's context.
        seed: root of every random choice; each attack and text has its own seed below it.
        long_texts: ``window`` cuts a text longer than the context into windows that each begin as a text does,
            every token scored once; ``truncate`` keeps the first; ``refuse`` leaves the text unscored.
        spaced: whether words are separated by spaces; where not, a character counts as a word. The text that
            is forwarded stays as it is.
        nonmembers: texts known not to be members, for prefixes and populations.
        members: texts known to be members, for prefixes.
        rewrite: the masked language model, where one was named.

    Raises:
        ConfigurationError: a policy that does not exist, or a context of less than 2 tokens.
    """

    tokenizer: Any
    max_length: int = _UNBOUNDED
    seed: int = 0
    long_texts: LongTexts = "window"
    spaced: bool = True
    nonmembers: Sequence[str] = ()
    members: Sequence[str] = ()
    judged: Sequence[tuple[str, int | None]] = ()
    rewrite: Rewrite | None = None
    longer: set[str] = field(default_factory=set)
    shots_used: dict[str, int] = field(default_factory=dict)
    _encoded: dict[str, tuple[int, ...]] = field(default_factory=dict, repr=False)
    _prefixes: dict[tuple[str, str, int, bool], tuple[int, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.long_texts not in LONG_TEXTS:
            raise ConfigurationError(f"long_texts={self.long_texts!r}; give one of {', '.join(LONG_TEXTS)}")
        if self.max_length < 2:
            raise ConfigurationError(f"a context of {self.max_length} tokens scores nothing; give at least 2")
        self.bos = beginning(self.tokenizer)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of the text itself, without the special tokens that the tokenizer adds.

        A beginning of text that is written out in the text is taken for the one that would be added.
        """
        found = self._encoded.get(text)
        if found is None:
            ids = tuple(int(one) for one in self.tokenizer(text, add_special_tokens=False)["input_ids"])
            if self.bos and ids[: len(self.bos)] == self.bos:
                ids = ids[len(self.bos) :]
            found = self._encoded[text] = ids
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, spaces kept as they are and special tokens left out."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def words(self, text: str) -> list[str]:
        """Split a text at white space, or into characters where the language has none."""
        return text.split() if self.spaced else [one for one in text if not one.isspace()]

    def variant(self, text: str, prefix_ids: Sequence[int] = (), *, keep_bos: bool = True) -> Variant:
        """Turn a text into probes: after its own beginning, or after a prefix that probes share.

        Args:
            text: what is scored, every token of it; without a beginning the first token is not.
            prefix_ids: ids before it, their beginning included.
            keep_bos: whether a text after a prefix still begins with its own beginning, scored as well, as
                the published code of the prefix attacks has it.

        Raises:
            UnscorableError: no token is left to score, or the text is too long under the policy.
        """
        ids = self.encode(text)
        if not ids:
            raise UnscorableError("the text has no tokens")
        prefix = tuple(prefix_ids)
        if prefix:
            body = (self.bos if keep_bos else ()) + ids
            pieces = self._cut(body, self.max_length - len(prefix), text)
            return Variant(tuple(Probe(f"{i}", one, (0, len(one)), prefix) for i, one in enumerate(pieces)))
        if self.bos:
            pieces = self._cut(ids, self.max_length - len(self.bos), text)
            first = len(self.bos)
            return Variant(
                tuple(
                    Probe(f"{i}", self.bos + one, (first, first + len(one))) for i, one in enumerate(pieces)
                )
            )
        if len(ids) == 1:
            raise UnscorableError(
                "the text is one token and the tokenizer adds no beginning that predicts it"
            )
        # Without a beginning each window is predicted from the last token of the one before.
        pieces = self._cut(ids[1:], self.max_length - 1, text)
        before = [ids[0], *(one[-1] for one in pieces[:-1])]
        return Variant(
            tuple(
                Probe(f"{i}", (last, *one), (1, 1 + len(one)))
                for i, (last, one) in enumerate(zip(before, pieces, strict=True))
            )
        )

    def _cut(self, ids: tuple[int, ...], room: int, text: str) -> list[tuple[int, ...]]:
        if len(ids) <= room:
            return [ids]
        self.longer.add(text)
        if room < 1:
            raise UnscorableError(
                f"no token fits the context of {self.max_length} after what precedes the text"
            )
        if self.long_texts == "refuse":
            raise UnscorableError(f"the text has {len(ids)} tokens, {room} fit the context")
        pieces = [ids[start : start + room] for start in range(0, len(ids), room)]
        return pieces[:1] if self.long_texts == "truncate" else pieces

    def prefix(
        self, kind: Literal["nonmembers", "members"], shots: int, attack: str, *, judged: bool
    ) -> tuple[int, ...]:
        """Return the ids of a prefix of shots, which leaves at least half of the context to the texts.

        Shots are drawn by seed from the pool apart from the judged texts, or from the judged ones by their
        labels; where they do not fit, the last drawn is dropped, one after the other. Each is tokenised by
        itself and follows the one before without a separator, as in the papers' code.

        Raises:
            ConfigurationError: the pool is empty, or not one shot fits.
        """
        key = (kind, attack, shots, judged)
        if key not in self._prefixes:
            self._prefixes[key] = self._draw(kind, shots, attack, judged)
        return self._prefixes[key]

    def _draw(self, kind: str, shots: int, attack: str, judged: bool) -> tuple[int, ...]:
        if judged:
            label = 1 if kind == "members" else 0
            pool = [text for text, one in self.judged if one == label]
        else:
            pool = list(self.nonmembers if kind == "nonmembers" else self.members)
        if not pool:
            where = "labelled so among the judged texts" if judged else "held apart from the judged texts"
            raise ConfigurationError(
                f"attack {attack} needs {kind} {where} for its prefix, and there are none"
            )
        order = generator(self.seed, attack, kind).permutation(len(pool))[:shots]
        drawn = [self.encode(pool[i]) for i in order]
        room = self.max_length // 2
        while drawn:
            joined = self.bos + tuple(token for one in drawn for token in one)
            if len(joined) <= room:
                self.shots_used[f"{attack}/{kind}"] = len(drawn)
                return joined
            drawn.pop()
        raise ConfigurationError(
            f"attack {attack}: not one of the {shots} shots fits half of the context of {self.max_length} tokens; "
            "give shorter texts in the pool"
        )

    def seed_for(self, *names: str | int) -> int:
        """Return the seed of one random choice, of one attack on one text."""
        return derive_seed(self.seed, *names)

    def random(self, *names: str | int) -> np.random.Generator:
        """Return the generator of one random choice, of one attack on one text."""
        return generator(self.seed, *names)


def beginning(tokenizer: Any) -> tuple[int, ...]:
    """Return the ids that the tokenizer itself puts before a text, found from what it does, not what it says.

    A token that it adds after a text is left out: a text that is judged did not end there.
    """
    mark = "a"
    bare = list(tokenizer(mark, add_special_tokens=False)["input_ids"])
    whole = list(tokenizer(mark)["input_ids"])
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(int(one) for one in whole[:start])
    return ()


def context_length(model_config: Any, tokenizer: Any) -> int:
    """Return how many tokens fit the model: its positions, or the tokenizer's limit where that is smaller."""
    limits = []
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        value = getattr(model_config, name, None)
        if isinstance(value, int) and value > 0:
            limits.append(value)
            break
    stated = getattr(tokenizer, "model_max_length", None)
    if isinstance(stated, (int, float)) and 0 < stated < _SENTINEL:
        limits.append(int(stated))
    return min(limits, default=_UNBOUNDED)
