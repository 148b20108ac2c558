"""Probes, and the plan that says before the first forward which rank forwards what, and how often."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from memaudit.beginnings import common_length
from memaudit.errors import ConfigurationError

FEWEST_SHARED = 8
"""Tokens that texts must begin with alike before their beginning is forwarded apart from them."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Token ids, the target span in them, and an id: what one row of a forward answers.

    Args:
        id: the caller's name for it; results are joined by it, never by position.
        token_ids: the ids of the text, without padding.
        span: half-open range of the target tokens in ``token_ids``. It starts at 1 or later, since nothing
            predicts the first token, unless there is a prefix.
        prefix_ids: ids that precede the text; probes with the same prefix share one forward of it.

    Raises:
        ConfigurationError: the span is empty or lies outside the text.

    Example:
        >>> Probe("a", (5, 6, 7), (1, 3)).n_targets
        2
    """

    id: str
    token_ids: tuple[int, ...]
    span: tuple[int, int]
    prefix_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        start, stop = self.span
        first = 0 if self.prefix_ids else 1
        if not (first <= start < stop <= len(self.token_ids)):
            raise ConfigurationError(
                f"probe {self.id}: span {self.span} does not fit {len(self.token_ids)} tokens; "
                f"a span starts at {first} or later and holds at least one token"
            )

    @property
    def n_targets(self) -> int:
        """Number of target tokens."""
        return self.span[1] - self.span[0]

    @property
    def key(self) -> str:
        """SHA-256 over ids, span and prefix: equal for probes that one forward answers."""
        text = f"{self.prefix_ids}|{self.token_ids}|{self.span}"
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def input_ids(self) -> tuple[int, ...]:
        """The ids of the row to forward: the last token of the prefix, where there is one, and the text."""
        return self.prefix_ids[-1:] + self.token_ids

    @property
    def rows(self) -> range:
        """Positions in ``input_ids`` whose next-token distributions predict the targets."""
        shift = 0 if self.prefix_ids else -1
        return range(self.span[0] + shift, self.span[1] + shift)


@dataclass(frozen=True, slots=True)
class Batch:
    """Probes that go through the model together; a batch of none is a dummy that keeps ranks in step.

    ``cached_prefix`` holds the ids whose keys and values the rows share: all but the last token of the probes'
    own prefix, or what the texts of probes without one begin with alike; ``skip`` is the number of leading
    ids of each row that it stands for in the second case.
    """

    probes: tuple[Probe, ...]
    cached_prefix: tuple[int, ...] = ()
    skip: int = 0

    def ids_of(self, probe: Probe) -> tuple[int, ...]:
        """The ids that are forwarded for a probe of this batch."""
        return probe.input_ids[self.skip :]

    def rows_of(self, probe: Probe) -> range:
        """Positions in ``ids_of(probe)`` whose next-token distributions predict the targets."""
        return range(probe.rows.start - self.skip, probe.rows.stop - self.skip)

    @property
    def is_dummy(self) -> bool:
        """Whether the batch only keeps the number of forwards equal over ranks."""
        return not self.probes

    @property
    def tokens(self) -> int:
        """Padded size of the batch in tokens."""
        return len(self.probes) * max((len(self.ids_of(p)) for p in self.probes), default=1)

    def forwards_after(self, held: tuple[int, ...]) -> int:
        """Forwards that the batch takes where the keys and values of ``held`` are there: one, or two."""
        return 1 + (bool(self.cached_prefix) and self.cached_prefix != held)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every rank's batches, fixed before the first forward.

    ``batches[r]`` are those of record rank r. ``requested`` counts the probes given, ``distinct`` those left
    after equal ones were joined; ``ids_by_key`` says whose answers a distinct probe is.
    """

    batches: tuple[tuple[Batch, ...], ...]
    requested: int
    distinct: int
    ids_by_key: dict[str, tuple[str, ...]] = field(repr=False)

    @property
    def forwards(self) -> tuple[int, ...]:
        """Forwards of the model on each record rank, dummies included."""
        return tuple(_forwards(rank) for rank in self.batches)

    @property
    def prefix_tokens_saved(self) -> int:
        """Tokens of shared prefixes that would be forwarded again if each probe carried its own."""
        carried = sum(len(b.cached_prefix) * len(b.probes) for rank in self.batches for b in rank)
        forwarded = sum(len(one) for rank in self.batches for one in _prefixes(rank))
        return carried - forwarded

    @property
    def tokens(self) -> tuple[int, ...]:
        """Padded tokens on each record rank."""
        return tuple(sum(batch.tokens for batch in rank) for rank in self.batches)


def plan(
    probes: Iterable[Probe],
    *,
    ranks: int = 1,
    lockstep: bool = False,
    max_batch_size: int = 32,
    max_batch_tokens: int = 8192,
    max_batch_targets: int = 2048,
    fixed_batches: bool = False,
    known: Container[str] = (),
    share_from: int | None = None,
) -> Plan:
    """Join equal probes, bucket them by length into batches, and deal the batches to ranks by tokens.

    The result depends on the set of probes alone, not on their order, so every rank makes the same plan.

    Args:
        probes: what is to be scored; ids are unique.
        ranks: number of ranks that share the records.
        lockstep: whether every rank must run the same number of forwards; dummies fill up the difference.
        max_batch_size: rows of a batch at most.
        max_batch_tokens: padded tokens of a batch at most (a longer single probe has a batch of its own).
        max_batch_targets: target tokens of a batch at most: the rows of the vocabulary projection.
        fixed_batches: whether probes must keep the same company on any number of ranks and after any
            interruption: the last bits of a score depend on the shape of its batch.
        known: keys that need no forward; only batches that are known as a whole are left out, so this is
            for plans with ``fixed_batches``, whose batches are scored and stored as a whole.
        share_from: where texts begin alike (a template's header, a system prompt) and at least so many tokens
            would go through the model again and again, their beginning is forwarded once a rank; None where
            the model's cache cannot be shared. Not with ``fixed_batches``, since it depends on the company.

    Returns:
        The plan.

    Raises:
        ConfigurationError: an id occurs twice with different content, or a limit is below 1.

    Example:
        >>> work = [Probe(str(i), tuple(range(3 + i)), (1, 3)) for i in range(5)]
        >>> plan(work, ranks=2, lockstep=True, max_batch_size=2).forwards
        (2, 2)
    """
    if min(ranks, max_batch_size, max_batch_tokens, max_batch_targets) < 1:
        raise ConfigurationError("ranks and the batch limits must be at least 1")
    by_key: dict[str, Probe] = {}
    ids: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    requested = 0
    for probe in probes:
        requested += 1
        key = probe.key
        if owner.setdefault(probe.id, key) != key:
            raise ConfigurationError(f"probe id {probe.id} occurs twice with different content")
        by_key.setdefault(key, probe)
        ids.setdefault(key, []).append(probe.id)
    # A batch as full as it may be would leave ranks idle when there are fewer batches than ranks.
    size = max_batch_size if fixed_batches else max(1, min(max_batch_size, -(-len(by_key) // ranks)))
    shared = {} if share_from is None or fixed_batches else _beginnings(by_key, share_from)
    batches = _bucket(by_key, size, max_batch_tokens, max_batch_targets, shared)
    batches = [batch for batch in batches if not all(probe.key in known for probe in batch.probes)]
    left = {probe.key for batch in batches for probe in batch.probes}
    # A rank takes the batches of one prefix one after the other, so that it forwards the prefix once.
    dealt = [sorted(rank, key=lambda batch: batch.cached_prefix) for rank in _deal(batches, ranks)]
    if lockstep:
        most = max(_forwards(rank) for rank in dealt)
        for rank in dealt:
            rank.extend(Batch(()) for _ in range(most - _forwards(rank)))
    return Plan(
        batches=tuple(tuple(rank) for rank in dealt),
        requested=requested,
        distinct=len(left),
        ids_by_key={key: tuple(sorted(set(names))) for key, names in ids.items() if key in left},
    )


def _prefixes(batches: Sequence[Batch]) -> list[tuple[int, ...]]:
    """Return the prefixes that a rank computes: each where it differs from the one before."""
    found: list[tuple[int, ...]] = []
    for batch in batches:
        if batch.cached_prefix and batch.forwards_after(found[-1] if found else ()) == 2:
            found.append(batch.cached_prefix)
    return found


def _forwards(batches: Sequence[Batch]) -> int:
    """Count a rank's forwards: its batches, dummies included, and its prefixes."""
    return len(batches) + len(_prefixes(batches))


def _beginnings(by_key: dict[str, Probe], share_from: int) -> dict[str, tuple[int, ...]]:
    """Return by key what a probe's text begins with alike others, where sharing it saves enough tokens."""
    groups: dict[tuple[int, ...], list[str]] = {}
    for key, probe in by_key.items():
        # The row that predicts the first target must stay in the text.
        if not probe.prefix_ids and probe.span[0] > FEWEST_SHARED:
            groups.setdefault(probe.token_ids[:FEWEST_SHARED], []).append(key)
    shared: dict[str, tuple[int, ...]] = {}
    for keys in groups.values():
        length = min(by_key[key].span[0] - 1 for key in keys)
        alike = min(length, common_length([by_key[key].token_ids for key in keys]))
        if alike * (len(keys) - 1) >= share_from:
            shared.update(dict.fromkeys(keys, by_key[keys[0]].token_ids[:alike]))
    return shared


def _bucket(
    by_key: dict[str, Probe], size: int, tokens: int, targets: int, shared: dict[str, tuple[int, ...]]
) -> list[Batch]:
    """Cut the probes, longest first within a prefix, into batches under the limits."""

    def before(key: str, probe: Probe) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return probe.prefix_ids, shared.get(key, ())

    ordered = sorted(by_key.items(), key=lambda item: (before(*item), -len(item[1].token_ids), item[0]))
    batches: list[Batch] = []
    current: list[Probe] = []
    held: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def close() -> None:
        if current:
            prefix, beginning = held
            batches.append(Batch(tuple(current), prefix[:-1] or beginning, len(beginning)))
            current.clear()

    for key, probe in ordered:
        if current:
            longest = len(current[0].input_ids) - len(held[1])
            full = (
                len(current) >= size
                or (len(current) + 1) * longest > tokens
                or sum(p.n_targets for p in current) + probe.n_targets > targets
                or before(key, probe) != held
            )
            if full:
                close()
        held = before(key, probe)
        current.append(probe)
    close()
    return batches


def _deal(batches: Sequence[Batch], ranks: int) -> list[list[Batch]]:
    """Give each batch, heaviest first, to the rank with the fewest tokens so far."""
    dealt: list[list[Batch]] = [[] for _ in range(ranks)]
    load = [(0, rank) for rank in range(ranks)]
    heapq.heapify(load)
    order = sorted(
        range(len(batches)), key=lambda i: (-(batches[i].tokens + len(batches[i].cached_prefix)), i)
    )
    for index in order:
        total, rank = heapq.heappop(load)
        dealt[rank].append(batches[index])
        weight = batches[index].tokens + len(batches[index].cached_prefix)
        heapq.heappush(load, (total + weight, rank))
    return dealt
