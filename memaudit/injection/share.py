"""The canaries' share of the tokens, and the warnings above 0.1% and 1%."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memaudit.canaries.tokens import TokenizerLike
from memaudit.injection.duplicates import strings
from memaudit.injection.rendering import render_record

SAMPLE = 200
"""Host rows that are tokenised for the estimate."""

TARGET, LIMIT = 0.001, 0.01
"""Shares above which a warning is given: canaries beyond them change what the model learns."""


def token_share(
    rows: Iterable[Mapping[str, Any]],
    host_sample: Iterable[Mapping[str, Any]],
    n_host: int | None,
    fmt: str,
    columns: Mapping[str, str],
    tokenizer: TokenizerLike | None,
) -> float | None:
    """Return the added rows' share of all tokens, estimated from a sample of the host; None without its length.

    Without a tokenizer, or for rows that do not render, characters stand for tokens.
    """
    sample = list(host_sample)
    if n_host is None or (n_host and not sample):
        return None
    added = sum(_size(row, fmt, columns, tokenizer) for row in rows)
    host = n_host * sum(_size(row, fmt, columns, tokenizer) for row in sample) / max(len(sample), 1)
    return added / (added + host) if added + host else 0.0


def share_warnings(share: float | None) -> list[str]:
    """Return the warning that a share deserves.

    Example:
        >>> share_warnings(0.0005), len(share_warnings(0.02))
        ([], 1)
    """
    if share is None or share <= TARGET:
        return []
    if share <= LIMIT:
        return [f"canaries are {share:.2%} of the tokens, above the target of {TARGET:.1%}"]
    return [
        f"canaries are {share:.2%} of the tokens, above the limit of {LIMIT:.0%}: the result says more about the "
        "canaries than about the data; use more data, fewer canaries or fewer repetitions"
    ]


def _size(
    row: Mapping[str, Any], fmt: str, columns: Mapping[str, str], tokenizer: TokenizerLike | None
) -> float:
    if tokenizer is not None:
        try:
            return float(render_record(row, fmt, columns, tokenizer))
        except Exception:  # a host row that the format cannot render counts by its characters
            pass
    ids = row.get("input_ids")
    if ids is not None and not isinstance(ids, str):
        return float(len(ids))
    return sum(len(text) for text in strings(row)) / 4.0  # about four characters a token
