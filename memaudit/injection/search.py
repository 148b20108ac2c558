"""Finding many byte or token patterns in large arrays at once: a rolling hash in numpy, no loop over rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.uint64]

_BASE = 0x9E3779B97F4A7C15 | 1  # odd, so that it has an inverse modulo 2**64
_TABLE_BITS = 18
_TABLE_MASK = np.uint64((1 << _TABLE_BITS) - 1)
_INVERSE = pow(_BASE, -1, 1 << 64)


class PatternIndex:
    """Patterns of integers that are looked for together.

    Each is known by the hash of its first ``window`` elements, where ``window`` is the shortest pattern's length
    (64 at most). A hit of the hash is compared element by element, so no hit is wrong and none is missed.

    Args:
        patterns: sequences of non-negative integers (token ids, or bytes).

    Example:
        >>> PatternIndex([b"canary", b"another"]).find(b"a canary in another mine")
        [(0, 2), (1, 12)]
    """

    def __init__(self, patterns: Sequence[Sequence[int]]) -> None:
        self.patterns = [np.asarray(_integers(pattern), dtype=np.int64) for pattern in patterns]
        lengths = [len(pattern) for pattern in self.patterns if len(pattern)]
        self.window = min(min(lengths, default=1), 64)
        self._by_hash: dict[int, list[int]] = defaultdict(list)
        for index, pattern in enumerate(self.patterns):
            if len(pattern):
                self._by_hash[int(_hashes(pattern, self.window)[0])].append(index)
        self._sorted = np.array(sorted(self._by_hash), dtype=np.uint64)
        # A table of the hashes' last bits tells at once of almost every window that it is none of them.
        self._table = np.zeros(1 << _TABLE_BITS, dtype=bool)
        self._table[(self._sorted & _TABLE_MASK).astype(np.int64)] = True

    def find(self, haystack: Sequence[int] | npt.NDArray[np.integer]) -> list[tuple[int, int]]:
        """Return (pattern, position) of every occurrence, by position."""
        data = np.asarray(_integers(haystack), dtype=np.int64)
        if len(data) < self.window or not len(self._sorted):
            return []
        hashes = _hashes(data, self.window)
        maybe = np.flatnonzero(self._table[(hashes & _TABLE_MASK).astype(np.int64)])
        slots = np.searchsorted(self._sorted, hashes[maybe])
        slots[slots == len(self._sorted)] = 0
        found = []
        for position in maybe[self._sorted[slots] == hashes[maybe]].tolist():
            for index in self._by_hash[int(hashes[position])]:
                pattern = self.patterns[index]
                if np.array_equal(data[position : position + len(pattern)], pattern):
                    found.append((index, position))
        return found


def _integers(values: Sequence[int] | npt.NDArray[np.integer]) -> npt.NDArray[np.integer] | Sequence[int]:
    return np.frombuffer(values, dtype=np.uint8) if isinstance(values, (bytes, bytearray)) else values


def _hashes(data: npt.NDArray[np.int64], window: int) -> Array:
    """Return the hash of every window of ``data``: sum of element times base to its power, modulo 2**64."""
    size = len(data)
    powers = _powers(_BASE, size)
    inverses = _powers(_INVERSE, size)
    # Elements are stirred first: small ids under a linear hash would collide more than chance has it.
    stirred = (data.astype(np.uint64) + np.uint64(1)) * np.uint64(0xBF58476D1CE4E5B9)
    stirred ^= stirred >> np.uint64(31)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(stirred * powers, dtype=np.uint64)])
    hashes: Array = (sums[window:] - sums[:-window]) * inverses[: size - window + 1]
    return hashes


_POWERS: dict[int, Array] = {}


def _powers(base: int, size: int) -> Array:
    known = _POWERS.get(base)
    if known is None or len(known) < size:
        factors = np.full(max(size, 1024), base, dtype=np.uint64)
        factors[0] = 1
        known = np.cumprod(factors, dtype=np.uint64)
        _POWERS[base] = known
    return known[:size]
