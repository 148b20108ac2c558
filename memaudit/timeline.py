"""memaudit-timeline.jsonl: one line for each audit during training, appended as it ends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memaudit.errors import ConfigurationError
from memaudit.files import write_atomic

TIMELINE_NAME = "memaudit-timeline.jsonl"


def append(path: str | os.PathLike[str], entry: Mapping[str, Any]) -> None:
    """Append one audit's line; numbers that are not finite become null.

    Args:
        path: the timeline file; made with its folder when missing.
        entry: step, epoch, headline figures, seconds, share of training time.

    Raises:
        ConfigurationError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/t.jsonl"
        >>> append(file, {"step": 1, "auc": float("nan")})
        >>> read(file)
        [{'step': 1, 'auc': None}]
    """
    clean = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in entry.items()}
    line = json.dumps(clean, allow_nan=False) + "\n"
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # One write of one line in append mode: a cut-off line can only be the last one.
        with open(target, "a", encoding="utf-8") as handle:
            handle.write(line)
    except OSError as error:
        raise ConfigurationError(f"cannot append to {target}: {error.strerror or error}") from error


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the audits of a timeline in the order of their steps; a later audit of a step replaces it.

    A cut-off last line, left by a job that was killed, is passed over.
    """
    target = Path(path)
    if not target.exists():
        return []
    by_step: dict[int, dict[str, Any]] = {}
    for line in target.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
            by_step[int(entry["step"])] = entry
        except (ValueError, KeyError, TypeError):
            continue
    return [by_step[step] for step in sorted(by_step)]


def rewind(path: str | os.PathLike[str], step: int) -> None:
    """Leave the audits up to ``step`` in a timeline, where a run begins (0: none) or is resumed.

    Example:
        >>> import tempfile
        >>> file = tempfile.mkdtemp() + "/t.jsonl"
        >>> for done in (2, 4, 6):
        ...     append(file, {"step": done})
        >>> rewind(file, 4)
        >>> read(file)
        [{'step': 2}, {'step': 4}]
    """
    target = Path(path)
    if not target.exists():
        return
    kept = [entry for entry in read(target) if step > 0 and entry["step"] <= step]
    write_atomic(target, "".join(json.dumps(entry, allow_nan=False) + "\n" for entry in kept))
