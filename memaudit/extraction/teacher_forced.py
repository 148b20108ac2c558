"""Verbatim regurgitation, read off the scoring forward.

Greedy decoding from a true prefix emits the true suffix exactly when every suffix token is the argmax given
the true tokens before it: by induction each emitted token is the true one, so the next is predicted from true
tokens again. One forward therefore answers every prefix length at once, with no generation.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError
from memaudit.signals import TokenSignals


def prefix_tokens(n_tokens: int, fraction: float) -> int:
    """Return how many tokens of a secret a fraction of it is: the floor, and at least 1.

    Args:
        n_tokens: tokens of the secret.
        fraction: share of the secret that is given, in (0, 1).

    Raises:
        ConfigurationError: the fraction is not inside (0, 1) or there is no token.

    Example:
        >>> prefix_tokens(25, 0.25), prefix_tokens(3, 0.25), prefix_tokens(100, 0.29)
        (6, 1, 29)
    """
    if not 0.0 < fraction < 1.0:
        raise ConfigurationError(
            f"prefix fraction {fraction} is not inside (0, 1); name the share of the secret that "
            "is given, as 0.25"
        )
    if n_tokens < 1:
        raise ConfigurationError(f"a secret of {n_tokens} tokens has no prefix")
    # 0.29 * 100 is 28.999999999999996: the floor is that of the decimal that was written, not of its binary.
    return max(1, math.floor(fraction * n_tokens + 1e-9))


def unscored(signals: TokenSignals, n_tokens: int | None) -> int:
    """Return how many tokens at the secret's start have no signal.

    It is 0, or 1 where the secret opens the record and nothing precedes its first token.

    Raises:
        ConfigurationError: any other number of signals was given.
    """
    missing = 0 if n_tokens is None else n_tokens - len(signals)
    if missing not in (0, 1):
        raise ConfigurationError(
            f"{len(signals)} signals were given for a secret of {n_tokens} tokens; expected {n_tokens}, or "
            "one less where the secret opens the record; score the secret's whole span"
        )
    return missing


def verbatim(signals: TokenSignals, n_prefix: int, *, n_tokens: int | None = None) -> bool:
    """Say whether greedy decoding after the first ``n_prefix`` tokens of the secret emits all the rest.

    Args:
        signals: signals of the secret's tokens, scored in the record's own context, [n_tokens] or
            [n_tokens - 1] where the secret opens the record.
        n_prefix: tokens of the secret that are given.
        n_tokens: tokens of the secret; the number of signals where None.

    Returns:
        True when at least one token is left and every one left is the argmax. A blank remainder is no hit.

    Raises:
        ConfigurationError: ``n_prefix`` is negative, or smaller than the tokens without a signal.

    Example:
        >>> signals = TokenSignals.from_lists(
        ...     token_ids=[4, 5, 6], top1_id=[9, 5, 6], rank=[1, 0, 0], logprob=[-2.0, -0.1, -0.1],
        ...     mean=[-1.0] * 3, std=[1.0] * 3, top1_logprob=[-0.5, -0.1, -0.1])
        >>> verbatim(signals, 1), verbatim(signals, 0), verbatim(signals, 3)
        (True, False, False)
    """
    offset = unscored(signals, n_tokens)
    if n_prefix < offset:
        raise ConfigurationError(
            f"a prefix of {n_prefix} tokens asks for the secret's first token, which has no signal because "
            "nothing precedes it; give a prefix of at least 1"
        )
    rest = signals.greedy_hit[n_prefix - offset :]
    return bool(len(rest) and rest.all())


def first_miss(signals: TokenSignals, n_prefix: int, *, n_tokens: int | None = None) -> int | None:
    """Return the position in the secret of the first token after the prefix that is not the argmax.

    Greedy decoding emits the true tokens up to there, then ``top1_id`` of that position; None: no miss.

    Example:
        >>> signals = TokenSignals.from_lists(
        ...     token_ids=[4, 5, 6], top1_id=[4, 7, 6], rank=[0, 1, 0], logprob=[-0.1, -2.0, -0.1],
        ...     mean=[-1.0] * 3, std=[1.0] * 3, top1_logprob=[-0.1] * 3)
        >>> first_miss(signals, 0), first_miss(signals, 2)
        (1, None)
    """
    offset = unscored(signals, n_tokens)
    misses = np.flatnonzero(~signals.greedy_hit[max(0, n_prefix - offset) :])
    return None if len(misses) == 0 else int(misses[0]) + max(n_prefix, offset)


def longest_run(signals: TokenSignals) -> int:
    """Return the most consecutive tokens that are the argmax given the true tokens before them.

    Example:
        >>> signals = TokenSignals.from_lists(
        ...     token_ids=[4, 5, 6, 7], top1_id=[4, 9, 6, 7], rank=[0, 1, 0, 0], logprob=[-0.1] * 4,
        ...     mean=[-1.0] * 4, std=[1.0] * 4, top1_logprob=[-0.1] * 4)
        >>> longest_run(signals)
        2
    """
    return _longest_true_run(signals.greedy_hit)


def shortest_prefix(signals: TokenSignals, *, n_tokens: int | None = None) -> int | None:
    """Return the fewest secret tokens after which greedy decoding emits all the rest.

    Args:
        signals: as for :func:`verbatim`.
        n_tokens: as for :func:`verbatim`.

    Returns:
        A number of tokens that leaves at least one; 0 where the record's context alone gives the whole
        secret; None where the last token is missed whatever is given.

    Example:
        >>> signals = TokenSignals.from_lists(
        ...     token_ids=[4, 5, 6], top1_id=[4, 7, 6], rank=[0, 1, 0], logprob=[-0.1, -2.0, -0.1],
        ...     mean=[-1.0] * 3, std=[1.0] * 3, top1_logprob=[-0.1] * 3)
        >>> shortest_prefix(signals)
        2
    """
    hits = signals.greedy_hit
    if len(hits) == 0 or not hits[-1]:
        return None
    misses = np.flatnonzero(~hits)
    first = int(misses[-1]) + 1 if len(misses) else 0
    return first + unscored(signals, n_tokens)


def _longest_true_run(hits: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of True, from the gaps between the False ones."""
    walls = np.concatenate(([-1], np.flatnonzero(~hits), [len(hits)]))
    return int(np.diff(walls).max()) - 1
