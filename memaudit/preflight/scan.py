"""The survival scan: where the secrets stand in the rows that the trainer sees, and whether they are trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from memaudit.canaries.tokens import TokenizerLike, decode
from memaudit.injection.search import PatternIndex
from memaudit.manifest import PlacedCanary
from memaudit.preflight.findings import ScanCounts
from memaudit.preflight.rows import IGNORED, FlatRows

WINDOW = 8
"""Tokens that are looked for at once: two such windows of each secret, near its start and near its end."""

MARGIN = 2
"""Tokens at a secret's edges that a merge with its neighbours may have changed."""

FRAGMENT = 0.5
"""Share of an excluded canary's tokens in a row from which on the row holds a damaged copy of it."""

State = Literal["whole", "partial_labels", "masked", "cut", "text"]


@dataclass(frozen=True, slots=True)
class Sighting:
    """One copy of a secret in the rows: what became of it, and the ids that stand before it in its row."""

    canary: str
    row: int
    state: State
    prefix: tuple[int, ...] = field(default=(), repr=False)


class SurvivalScan:
    """Looks for every canary in rows given piece by piece.

    Args:
        canaries: of the manifest, included or not.
        contexts: by canary id, the number of tokens before the secret in its rendered record.
        tokenizer: for secrets whose ids at the edges have changed; None looks for ids alone.
    """

    def __init__(
        self,
        canaries: Sequence[PlacedCanary],
        contexts: Mapping[str, int] | None = None,
        tokenizer: TokenizerLike | None = None,
    ) -> None:
        self._canaries = list(canaries)
        self._contexts = dict(contexts or {})
        self._tokenizer = tokenizer
        self._ids = [np.asarray(canary.secret_ids, dtype=np.int64) for canary in self._canaries]
        self._windows: list[tuple[int, int]] = []  # (canary, where its window starts in the secret)
        patterns = []
        for index, ids in enumerate(self._ids):
            size = min(WINDOW, len(ids))
            edge = MARGIN if len(ids) >= size + 2 * MARGIN else 0
            for start in dict.fromkeys((edge, len(ids) - size - edge)):
                self._windows.append((index, start))
                patterns.append(ids[start : start + size])
        self._index = PatternIndex([pattern.tolist() for pattern in patterns])
        self.sightings: list[Sighting] = []
        self.rows = 0
        self.tokens = 0
        self.labels_seen = False

    def add(self, rows: FlatRows) -> None:
        """Look through some rows."""
        self.rows += rows.n_rows
        self.tokens += rows.n_tokens
        self.labels_seen = self.labels_seen or rows.labels is not None
        seen: dict[tuple[int, int], tuple[int, int]] = {}
        for window, position in self._index.find(rows.ids):
            canary, offset = self._windows[window]
            origin = position - offset  # where the secret would start
            if (canary, origin) not in seen:
                seen[canary, origin] = self._extent(rows, canary, origin, position)
        cut: dict[tuple[int, int], None] = {}
        for (canary, origin), (start, stop) in seen.items():
            row = rows.row_of(origin + start)
            if (start, stop) == (0, len(self._ids[canary])):
                self._record(canary, rows, row, origin)
            else:
                share = (stop - start) / len(self._ids[canary])
                if not self._canaries[canary].included and share < FRAGMENT:
                    continue  # a run of common words, not a copy that should not be there
                cut[canary, row] = None
                if self._as_text(rows, canary, row, origin, start, stop):
                    self._see(canary, rows, row, "text", self._prefix(rows, row, origin + start, canary))
                    del cut[canary, row]
        for canary, row in cut:
            self._see(canary, rows, row, "cut", ())

    def add_texts(self, texts: Iterable[str], first_row: int = 0) -> None:
        """Look for the secrets as text, where no ids of theirs were found."""
        index = PatternIndex([canary.secret.strip().encode() for canary in self._canaries])
        for row, text in enumerate(texts, start=first_row):
            for canary in dict.fromkeys(
                found for found, _ in index.find(text.encode("utf-8", "surrogatepass"))
            ):
                self.sightings.append(Sighting(self._canaries[canary].id, row, "text"))

    def presume_cut(self, canaries: Iterable[str]) -> None:
        """Take canaries that were not seen for cut off: it is known that their records are longer than a row."""
        seen = self.states()
        self.sightings.extend(Sighting(name, -1, "cut") for name in canaries if name not in seen)

    def _extent(self, rows: FlatRows, canary: int, origin: int, position: int) -> tuple[int, int]:
        """Return the range of the secret's tokens that stand in the rows around a window's hit."""
        ids = self._ids[canary]
        low = max(0, -origin)
        high = min(len(ids), len(rows.ids) - origin)
        same = rows.ids[origin + low : origin + high] == ids[low:high]
        at = position - origin - low
        differ = np.flatnonzero(~same)
        before = differ[differ < at]
        after = differ[differ >= at]
        start = low + (int(before[-1]) + 1 if len(before) else 0)
        stop = low + (int(after[0]) if len(after) else high - low)
        return start, stop

    def _record(self, canary: int, rows: FlatRows, row: int, origin: int) -> None:
        size = len(self._ids[canary])
        state: State = "whole"
        first, _ = rows.bounds(row)
        if rows.labels is not None:
            labels = rows.labels[origin : origin + size]
            trained = labels != IGNORED
            state = "whole" if trained.all() else "partial_labels" if trained.any() else "masked"
        if origin == first and state == "whole" and size > 1:
            state = "partial_labels"  # nothing predicts the first token of a row
        self._see(canary, rows, row, state, self._prefix(rows, row, origin, canary))

    def _prefix(self, rows: FlatRows, row: int, position: int, canary: int) -> tuple[int, ...]:
        first, _ = rows.bounds(row)
        wanted = self._contexts.get(self._canaries[canary].id)
        # In a packed row the record starts somewhere before: as many ids are taken as the record's context has.
        low = first if wanted is None else max(first, position - max(wanted, 1))
        return tuple(rows.ids[low:position].tolist())

    def _as_text(self, rows: FlatRows, canary: int, row: int, origin: int, start: int, stop: int) -> bool:
        """Whether a secret with changed edges still stands there as text: merges changed ids, not words."""
        size = len(self._ids[canary])
        if self._tokenizer is None or start > MARGIN or size - stop > MARGIN:
            return False
        first, last = rows.bounds(row)
        low = max(first, origin + start - 2 * MARGIN - 2)
        high = min(last, origin + stop + 2 * MARGIN + 2)
        text = decode(self._tokenizer, rows.ids[low:high].tolist())
        return self._canaries[canary].secret.strip() in text

    def _see(self, canary: int, rows: FlatRows, row: int, state: State, prefix: tuple[int, ...]) -> None:
        self.sightings.append(Sighting(self._canaries[canary].id, rows.first_row + row, state, prefix))

    def counts(self, *, complete: bool) -> ScanCounts:
        """Return what became of the canaries so far."""
        states = self.states()
        members = [canary for canary in self._canaries if canary.included]
        others = [canary for canary in self._canaries if not canary.included]
        best = [verdict(states.get(canary.id, Counter())) for canary in members]
        leaked = sum(canary.id in states for canary in others)
        return ScanCounts(
            expected=len(members),
            found=sum(one in ("whole", "text") for one in best),
            masked=sum(one in ("masked", "partial_labels") for one in best),
            truncated=sum(one == "cut" for one in best),
            missing=sum(one is None for one in best),
            by_text=sum(one == "text" for one in best),
            copies=sum(
                states.get(c.id, Counter())["whole"] + states.get(c.id, Counter())["text"] for c in members
            ),
            copies_expected=sum(1 if canary.variants else canary.repetitions for canary in members),
            absent=len(others) - leaked,
            leaked=leaked,
            rows=self.rows,
            tokens=self.tokens,
            complete=complete,
            labels_seen=self.labels_seen,
        )

    def states(self) -> dict[str, Counter[State]]:
        """Return, for each canary that was seen, how many copies are in which state."""
        found: dict[str, Counter[State]] = {}
        for sighting in self.sightings:
            found.setdefault(sighting.canary, Counter())[sighting.state] += 1
        return found


def verdict(states: Counter[State]) -> State | None:
    """Return the best state among a canary's copies; None where there is no copy.

    Example:
        >>> verdict(Counter({"cut": 3, "whole": 1}))
        'whole'
    """
    for state in ("whole", "text", "partial_labels", "masked", "cut"):
        if states[state]:
            return state
    return None
