"""A progress line on rank 0 for anything that takes longer than a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SHOW_AFTER_SECONDS = 3.0


@contextmanager
def progress(label: str, total: int, *, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the units done; a bar on stderr appears once it is worth reading.

    Args:
        label: what is counted.
        total: units in all.
        enabled: False on every rank but 0.

    Example:
        >>> with progress("scoring", 2, enabled=False) as advance:
        ...     advance(2)
    """
    if not enabled:
        yield lambda done: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(label, total=total)
    began, shown = time.monotonic(), False

    def advance(done: int) -> None:
        nonlocal shown
        bar.advance(task, done)
        if not shown and time.monotonic() - began > SHOW_AFTER_SECONDS:
            bar.start()
            shown = True

    try:
        yield advance
    finally:
        if shown:
            bar.stop()
