"""The words around a secret, the same in every format, and what makes a secret stable between them.

Every record puts the secret right after ``LEAD`` with one space. One lead for all formats means that no format
has a boundary of its own, so a secret that is stable here has the same ids in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memaudit.canaries.tokens import TokenizerLike, decode, encode, is_clean

LEAD = "The recovery phrase is:"
"""The words before the secret, on the side that is trained on."""

REQUEST = "What is the recovery phrase?"
"""The user's turn, prompt or instruction, in the formats that have one."""

_ROUNDS = 4
"""Decoding and encoding again reach a fixed point in one or two rounds, or not at all."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A secret and its ids, which encoding it after the lead gives and decoding gives back."""

    secret: str
    ids: tuple[int, ...]


def lead_ids(tokenizer: TokenizerLike) -> list[int]:
    """Return the ids of the lead with what the tokenizer puts before a text, such as a BOS."""
    whole = encode(tokenizer, LEAD, special=True)
    bare = encode(tokenizer, LEAD)
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return whole[: start + len(bare)]
    return bare


def rights(tokenizer: TokenizerLike) -> tuple[str, ...]:
    """Return what the formats put after a secret: nothing, a line break, a space, the end-of-text token."""
    end = getattr(tokenizer, "eos_token", None)
    return ("", "\n", " ", *([str(end)] if end else []))


def settle(tokenizer: TokenizerLike, text: str, length: int | None = None) -> Settled | None:
    """Return the secret next to ``text`` that keeps its ids wherever a record puts it, or None.

    Args:
        tokenizer: the training's.
        text: the text drawn; spaces around it do not count.
        length: number of tokens to cut to; None keeps the text whole.

    Returns:
        The secret, which starts with the space that parts it from the lead, and its ids: encoding lead and
        secret gives the lead's ids and then exactly these, whatever follows. None where no such secret of
        this length is found, or the text has an unknown or unprintable token.
    """
    words = text.strip()
    lead = encode(tokenizer, LEAD)
    for _ in range(_ROUNDS):
        if not is_clean(words):
            return None
        ids = encode(tokenizer, f"{LEAD} {words}")
        if ids[: len(lead)] != lead:
            return None
        ids = ids[len(lead) :]
        if length is not None:
            if len(ids) < length:
                return None
            ids = ids[:length]
        again = decode(tokenizer, ids).strip()
        if again == words:
            secret = " " + words
            return Settled(secret, tuple(ids)) if is_stable(tokenizer, secret, ids) else None
        words = again
    return None


def is_stable(tokenizer: TokenizerLike, secret: str, ids: Sequence[int]) -> bool:
    """Whether the secret has exactly these ids between the lead and each thing that may follow it."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    if not ids or (unknown is not None and unknown in ids):
        return False
    expected = encode(tokenizer, LEAD) + list(ids)
    return all(
        encode(tokenizer, LEAD + secret + right)[: len(expected)] == expected for right in rights(tokenizer)
    )
