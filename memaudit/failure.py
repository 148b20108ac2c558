"""When one rank fails in the middle of an audit: every other rank learns who and why, and none hangs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

import torch.distributed as dist

from memaudit.errors import AuditError

_POLL_SECONDS = 0.5
_STALE_SECONDS = 3.0


class FailureWatch:
    """Watches over one audit on one rank, through the process group's own key-value store.

    Each rank leaves a heartbeat. A rank that fails posts its cause. A rank that is stuck in a collective
    because another has failed or died ends itself, with the cause on stderr, ``timeout`` seconds after its
    last progress; one whose collective breaks first raises :class:`memaudit.errors.AuditError`, which names
    the rank that is gone.
    Does nothing in a world of one.

    Args:
        rank, world_size: as in the process group.
        timeout: seconds between another rank's failure and the end of this process.

    Example:
        >>> with FailureWatch(rank=0, world_size=1, timeout=5.0) as watch:
        ...     watch.post("nothing listens in a world of one")
    """

    def __init__(self, *, rank: int, world_size: int, timeout: float) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self._active = world_size > 1 and dist.is_available() and dist.is_initialized()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._store: Any = None
        self._serial = 0
        self._count = 0
        self._moved = time.monotonic()
        self._seen: dict[int, tuple[bytes, float]] = {}

    _audits = 0

    def __enter__(self) -> FailureWatch:
        if self._active:
            FailureWatch._audits += 1
            self._serial = FailureWatch._audits
            # A clone has a connection of its own: the default store's may be held by a blocking wait.
            self._store = _clone(dist.distributed_c10d._get_default_store())
            self._beat()
            self._thread = threading.Thread(target=self._watch, name="memaudit-failure-watch", daemon=True)
            self._thread.start()
        return self

    def post(self, cause: str) -> None:
        """Tell the other ranks that this one has failed, and why."""
        if self._active:
            with contextlib.suppress(Exception):
                self._store.set(self._key("failed", self.rank), cause.encode())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return
        if error is not None and not isinstance(error, AuditError) and isinstance(error, Exception):
            found = self._culprit(wait=_STALE_SECONDS + 2 * _POLL_SECONDS)
            self._end()
            if found is not None:
                culprit, cause = found
                raise AuditError(
                    f"the audit stopped on rank {self.rank} because rank {culprit} {cause}"
                ) from error
            return
        self._end()

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * _POLL_SECONDS)
        with contextlib.suppress(Exception):
            self._store.set(self._key("left", self.rank), b"1")

    def _key(self, what: str, rank: int) -> str:
        return f"memaudit/{self._serial}/{what}/{rank}"

    def tick(self) -> None:
        """Say that this rank has moved on: a rank that makes progress is not stuck, whatever others did."""
        self._moved = time.monotonic()

    def _beat(self) -> None:
        self._count += 1
        with contextlib.suppress(Exception):
            self._store.set(self._key("beat", self.rank), str(self._count).encode())

    def _look(self) -> tuple[int, str] | None:
        """Name a rank that posted a failure, or whose heartbeat has not changed for a while.

        Heartbeats are counters, judged by this rank's own clock: clocks of two nodes need not agree.
        """
        for rank in range(self.world_size):
            if rank == self.rank:
                continue
            try:
                if self._store.check([self._key("failed", rank)]):
                    return rank, f"failed: {self._store.get(self._key('failed', rank)).decode()}"
                if not self._store.check([self._key("beat", rank)]):
                    continue
                count = self._store.get(self._key("beat", rank))
                last = self._seen.get(rank)
                if last is None or last[0] != count:
                    self._seen[rank] = (count, time.monotonic())
                elif time.monotonic() - last[1] > _STALE_SECONDS and not self._store.check(
                    [self._key("left", rank)]
                ):
                    age = time.monotonic() - last[1]
                    return rank, f"was killed or stopped answering ({age:.0f} s without a sign of life)"
            except Exception:
                return 0, "or the launcher, which serves the ranks' store, is gone"
        return None

    def _culprit(self, wait: float) -> tuple[int, str] | None:
        """As ``_look``, waiting until a heartbeat that has stopped is old enough to say so."""
        deadline = time.monotonic() + wait
        while (found := self._look()) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return found

    def _watch(self) -> None:
        since: float | None = None
        while not self._stop.wait(_POLL_SECONDS):
            self._beat()
            found = self._look()
            if found is None:
                since = None
                continue
            since = since if since is not None else time.monotonic()
            if time.monotonic() - max(since, self._moved) > self.timeout:
                culprit, cause = found
                sys.stderr.write(
                    f"memaudit: error: rank {self.rank} ends itself: rank {culprit} {cause}, and this rank was "
                    f"still waiting for it {self.timeout:.0f} s later\n"
                )
                sys.stderr.flush()
                os._exit(70)


def _clone(store: Any) -> Any:
    """A store of the same kind with a connection of its own, where it can be cloned."""
    clone = getattr(store, "clone", None)
    if clone is None:
        return store
    with contextlib.suppress(Exception):
        return clone()
    return store
