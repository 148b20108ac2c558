"""What canaries need of a tokenizer: its identity, ids of a text, and which ids may stand in a secret."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from memaudit.errors import ConfigurationError, ManifestError
from memaudit.manifest import CanarySet, Manifest, TokenizerIdentity

_SAMPLES = ("The recovery phrase is: river 4821", " leading space", "naïve café — 数据 🙂", "a\n\nb\tc")
"""Texts whose ids tell apart tokenizers with one vocabulary and other rules."""


class TokenizerLike(Protocol):
    """The part of a Hugging Face tokenizer that is used here; nothing of transformers is imported."""

    def __call__(self, text: str, **kwargs: Any) -> Any:
        """Return a mapping with ``input_ids``."""
        ...

    def __len__(self) -> int:
        """Return the size of the vocabulary with the added tokens."""
        ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Return the text of ids."""
        ...

    def get_vocab(self) -> dict[str, int]:
        """Return ids by token."""
        ...


def encode(tokenizer: TokenizerLike, text: str, *, special: bool = False) -> list[int]:
    """Return the ids of ``text``, with the tokenizer's special tokens where ``special`` is set."""
    ids: list[int] = tokenizer(text, add_special_tokens=special)["input_ids"]
    return [int(token) for token in ids]


def decode(tokenizer: TokenizerLike, ids: Sequence[int]) -> str:
    """Return the text of ``ids`` as they stand: no clean-up of spaces, special tokens kept."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def tokenizer_identity(tokenizer: TokenizerLike) -> TokenizerIdentity:
    """Return name, size and fingerprint of a tokenizer.

    The fingerprint covers the vocabulary and the ids of fixed sample texts, so that two tokenizers with one
    vocabulary and other rules differ. Padding, the chat template and the name do not change it.

    Raises:
        ConfigurationError: the object is no tokenizer.
    """
    if tokenizer is None or not hasattr(tokenizer, "get_vocab") or not callable(tokenizer):
        raise ConfigurationError(
            f"a tokenizer was expected, given {type(tokenizer).__name__}; "
            "pass the tokenizer that the training uses (AutoTokenizer.from_pretrained(...))"
        )
    vocabulary = sorted(tokenizer.get_vocab().items())
    digest = hashlib.sha256(json.dumps(vocabulary, ensure_ascii=True).encode())
    for sample in _SAMPLES:
        digest.update(json.dumps(encode(tokenizer, sample, special=True)).encode())
    name = str(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
    return TokenizerIdentity(name=name, vocab_size=len(tokenizer), fingerprint=digest.hexdigest())


def check_tokenizer(given: Manifest | CanarySet, tokenizer: TokenizerLike) -> None:
    """Raise where ``given`` was made for another tokenizer.

    Raises:
        ManifestError: the fingerprints differ.
    """
    found, expected = tokenizer_identity(tokenizer), given.tokenizer
    if found.fingerprint != expected.fingerprint:
        raise ManifestError(
            f"the canaries were made for the tokenizer {expected.name!r} ({expected.vocab_size} tokens), given "
            f"{found.name!r} ({found.vocab_size} tokens): their ids differ; use the tokenizer of "
            "generate_canaries(), or make the canaries again for this one"
        )


_USABLE: weakref.WeakKeyDictionary[Any, tuple[int, tuple[int, ...]]] = weakref.WeakKeyDictionary()


def usable_ids(tokenizer: TokenizerLike) -> tuple[int, ...]:
    """Return the ids, ascending, whose text may stand in a secret.

    Left out are special and added tokens, pieces of characters, and everything that is not printable on one
    line: such tokens do not survive templates, files and re-encoding.
    """
    with_cache = _cached(tokenizer)
    if with_cache is not None:
        return with_cache
    special = set(getattr(tokenizer, "all_special_ids", ()) or ())
    special.update(getattr(tokenizer, "added_tokens_decoder", {}) or {})
    ids = tuple(
        token
        for token in sorted(tokenizer.get_vocab().values())
        if token not in special and is_clean(decode(tokenizer, [token]))
    )
    if len(ids) < 16:
        raise ConfigurationError(
            f"the tokenizer has only {len(ids)} tokens that may stand in a secret; at least 16 are needed"
        )
    with contextlib.suppress(TypeError):  # an object without weak references is asked again next time
        _USABLE[tokenizer] = (len(tokenizer), ids)
    return ids


def _cached(tokenizer: TokenizerLike) -> tuple[int, ...] | None:
    try:
        size, ids = _USABLE[tokenizer]
    except (KeyError, TypeError):
        return None
    return ids if size == len(tokenizer) else None


@functools.lru_cache(maxsize=200_000)
def is_clean(text: str) -> bool:
    """Whether ``text`` is printable on one line, not empty, and without the mark of a broken character.

    Example:
        >>> is_clean(" river"), is_clean("a\\nb"), is_clean(" "), is_clean("\\ufffd")
        (True, False, False, False)
    """
    return bool(text.strip()) and text.isprintable() and "\ufffd" not in text
