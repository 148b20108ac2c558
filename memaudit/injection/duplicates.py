"""Secrets that stand in the host's rows already: an included one would be planted twice, a held-out one leaked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from memaudit.errors import InjectionError
from memaudit.injection.search import PatternIndex
from memaudit.manifest import CanarySet

_CHUNK = 1 << 20
_SEPARATOR = "\x00"


class SecretWatch:
    """Looks for the secrets of a set in texts, some megabytes at a time."""

    def __init__(self, canaries: CanarySet) -> None:
        self._canaries = canaries.canaries
        self._index = PatternIndex([canary.secret.strip().encode() for canary in self._canaries])

    def check(self, texts: Iterable[str]) -> None:
        """Raise where a text holds a secret.

        Raises:
            InjectionError: names the canary and, in place of its text, its hash.
        """
        waiting: list[str] = []
        size = 0
        for text in texts:
            waiting.append(text)
            size += len(text)
            if size >= _CHUNK:
                self._search(waiting)
                waiting, size = [], 0
        self._search(waiting)

    def _search(self, texts: list[str]) -> None:
        for index, _ in self._index.find(_SEPARATOR.join(texts).encode("utf-8", "surrogatepass")):
            raise InjectionError(
                f"{self._canaries[index]} stands in the data already: membership would mean nothing; "
                "inject into the original data, or draw the canaries with another seed"
            )


def strings(row: object) -> Iterator[str]:
    """Yield every string in a row, however deep.

    Example:
        >>> list(strings({"a": "x", "b": [{"c": "y"}], "d": 1}))
        ['x', 'y']
    """
    if isinstance(row, str):
        yield row
    elif isinstance(row, Mapping):
        for value in row.values():
            yield from strings(value)
    elif isinstance(row, (list, tuple)) and not (row and isinstance(row[0], (int, float))):
        for value in row:
            yield from strings(value)
