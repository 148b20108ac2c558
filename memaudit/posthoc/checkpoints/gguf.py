"""GGUF files of llama.cpp: read, and taken back to floating point, by transformers."""

from __future__ import annotations

from pathlib import Path

from memaudit.errors import CheckpointError
from memaudit.posthoc.checkpoints.base import Checkpoint


def detect(path: Path) -> Checkpoint | None:
    """Return the GGUF file at ``path`` or, when it is the only one there, in the folder, or None.

    Raises:
        CheckpointError: the file is none, whatever its name, or the folder has several.
    """
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        if not found:
            return None
        if len(found) > 1:
            raise CheckpointError(f"{path} holds {len(found)} GGUF files; name one of them: {found[0]}")
        path = found[0]
    if path.suffix != ".gguf":
        return None
    with path.open("rb") as handle:
        if handle.read(4) != b"GGUF":
            raise CheckpointError(f"{path} does not start like a GGUF file; copy it again")
    return Checkpoint(kind="gguf", path=path, files=(path,))
