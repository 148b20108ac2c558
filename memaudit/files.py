"""Writing files so that a reader sees the old content or the new one, never half of either."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from memaudit.errors import ConfigurationError

PRIVATE = 0o600
"""Mode of files that hold secrets: manifests and signal stores."""

SHARED = 0o644
"""Mode of files without secrets: reports, tables, plots."""


def write_atomic(path: str | os.PathLike[str], content: bytes | str, *, mode: int = SHARED) -> Path:
    """Write ``content`` to ``path`` through a temporary file in the same folder and a rename.

    Args:
        path: where to write; missing parent folders are made.
        content: bytes, or text that is encoded as UTF-8.
        mode: permission bits of the file, set before anything is written to it.

    Returns:
        The path written.

    Raises:
        ConfigurationError: the folder cannot be written or the disk is full; the old file stays as it was.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> write_atomic(folder + "/a.txt", "x").read_text()
        'x'
    """
    data = content.encode() if isinstance(content, str) else content

    def write(handle: IO[bytes]) -> None:
        handle.write(data)

    return write_atomic_with(path, write, mode=mode)


def write_atomic_with(
    path: str | os.PathLike[str], writer: Callable[[IO[bytes]], None], *, mode: int = SHARED
) -> Path:
    """As :func:`write_atomic`, with a function that writes to the open binary file."""
    target = Path(path)
    temporary: str | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        with os.fdopen(descriptor, "wb") as handle:
            os.fchmod(handle.fileno(), mode)
            writer(handle)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {target}: {error.strerror or error}; "
            "name a folder that exists, has space and can be written"
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    return target


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 of ``data`` in hexadecimal.

    Example:
        >>> sha256_bytes(b"")[:8]
        'e3b0c442'
    """
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content in hexadecimal, read in pieces."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        while piece := handle.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
