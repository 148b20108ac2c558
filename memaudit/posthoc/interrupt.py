"""SIGUSR1 and SIGTERM from SLURM: the handler sets a flag, the next stored batch sees it and the job ends.

Nothing else happens in the handler: writing there could meet a write that is under way.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from memaudit.errors import MemauditError, SignalStoreError
from memaudit.signals import TokenSignals
from memaudit.store import SignalStore

EXIT_AGAIN = 75
"""Exit code of a job that was told to end and can go on where it stopped (EX_TEMPFAIL)."""


class Interrupted(BaseException):
    """The job was told to end; everything scored so far is stored.

    Not an Exception: the engine goes on with the planned forwards after those.
    """


class StoreFailed(BaseException):
    """Signals cannot be written (a full disk): the job ends at once, since further forwards would be lost.

    Not an Exception, as :class:`Interrupted`; ``error`` is what the command line reports.
    """

    def __init__(self, error: SignalStoreError) -> None:
        super().__init__(str(error))
        self.error = error


class InterruptedAuditError(MemauditError):
    """As :class:`Interrupted`, for the command line."""

    exit_code = EXIT_AGAIN


class Flag:
    """Whether a signal to end has come, and its name.

    Example:
        >>> bool(Flag())
        False
    """

    def __init__(self) -> None:
        self.name = ""

    def __bool__(self) -> bool:
        return bool(self.name)

    def set(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: remember the signal."""
        self.name = signal.Signals(number).name


@contextmanager
def listening() -> Iterator[Flag]:
    """Listen to SIGUSR1 and SIGTERM while the block runs; the handlers from before are put back."""
    flag = Flag()
    before = {number: signal.signal(number, flag.set) for number in (signal.SIGUSR1, signal.SIGTERM)}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class InterruptibleStore(SignalStore):
    """A signal store after whose writes a job that was told to end does so.

    Args:
        path: the folder.
        flag: what :func:`listening` gave.
    """

    def __init__(self, path: str | Path, flag: Flag) -> None:
        super().__init__(path)
        self._flag = flag

    def put_many(self, fingerprint: str, signals: Mapping[str, TokenSignals]) -> None:
        """Write one batch's signals, then end if the job was told to.

        Raises:
            Interrupted: the batch is stored and the flag is set.
            StoreFailed: the batch cannot be written.
        """
        try:
            super().put_many(fingerprint, signals)
        except SignalStoreError as error:
            raise StoreFailed(error) from error
        self.check()

    def put_values(self, kind: str, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Write values, then end if the job was told to.

        Raises:
            Interrupted: the values are stored and the flag is set.
            StoreFailed: the values cannot be written.
        """
        try:
            super().put_values(kind, fingerprint, values)
        except SignalStoreError as error:
            raise StoreFailed(error) from error
        self.check()

    def check(self) -> None:
        """End if the job was told to.

        Raises:
            Interrupted: the flag is set.
        """
        if self._flag:
            raise Interrupted(self._flag.name)
