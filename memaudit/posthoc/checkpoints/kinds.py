"""From a path, or a hub id that the user named, to the kind of checkpoint that lies there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from memaudit.errors import CheckpointError, ConfigurationError
from memaudit.files import sha256_file
from memaudit.posthoc.checkpoints import adapter, dcp, gguf, huggingface, lightning, quantised, zero
from memaudit.posthoc.checkpoints.base import Checkpoint, some

# The first that fits wins: an adapter before a base beside it, whole weights before the shards beside them.
_DETECTORS: tuple[Callable[[Path], Checkpoint | None], ...] = (
    lightning.detect,
    adapter.detect,
    quantised.detect,
    huggingface.detect,
    dcp.detect,
    zero.detect,
    gguf.detect,
)

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.bin", "*.model", "*.txt", "*.jinja"]


def detect(path: str | Path) -> Checkpoint:
    """Say what kind of checkpoint lies at a path.

    Args:
        path: a folder, a file, or a hub id (``organisation/name``, or ``hub:name``), which is downloaded.

    Returns:
        What was found; every file that it needs is there.

    Raises:
        CheckpointError: nothing is there, nothing that is known, or parts are missing.

    Example:
        >>> detect("no/such/folder")
        Traceback (most recent call last):
        ...
        memaudit.errors.CheckpointError: no checkpoint at no/such/folder: ...
    """
    local = Path(path)
    if not local.exists():
        hub_id = _hub_id(str(path))
        if hub_id is None:
            raise CheckpointError(
                f"no checkpoint at {path}: neither a file nor a folder; correct the path (hub ids look like "
                "organisation/name)"
            )
        local = _download(hub_id)
    for find in _DETECTORS:
        found = find(local)
        if found is not None:
            return replace(found, config=found.config or _config_near(found.path), step=step_of(Path(path)))
    raise CheckpointError(_unknown(local))


def _hub_id(text: str) -> str | None:
    """Return the hub id that a text names; a text whose first part is a local folder is a mistyped path."""
    if text.startswith("hub:"):
        return text[4:]
    if _HUB_ID.fullmatch(text) and not text.startswith(".") and not Path(text).parent.exists():
        return text
    return None


def _download(hub_id: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES))
    except Exception as error:
        raise CheckpointError(
            f"no checkpoint at {hub_id}: no such folder here, and the hub gave {type(error).__name__}; "
            "correct the path or id, or download it first"
        ) from error


def _config_near(path: Path) -> Path | None:
    """Return the nearest folder, from the weights upwards, that has a model's configuration."""
    start = path if path.is_dir() else path.parent
    for folder in (start, start.parent, start.parent.parent):
        if (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file():
            return folder
    return None


def step_of(path: Path) -> int | None:
    """Return the step that the name of a checkpoint tells, or None.

    Example:
        >>> step_of(Path("out/checkpoint-30")), step_of(Path("epoch=1-step=60.ckpt")), step_of(Path("final"))
        (30, 60, None)
    """
    for pattern in (r"step[-_=]?(\d+)", r"checkpoint[-_=]?(\d+)", r"epoch[-_=]?(\d+)"):
        found = re.findall(pattern, path.name)
        if found:
            return int(found[-1])
    return None


def fingerprint(checkpoint: Checkpoint) -> str:
    """Return a SHA-256 over the content of the weight files and of the configuration, whatever their place.

    A checkpoint that is written anew at the same path gets another one, a copy the same. Every byte is read
    once; an adapter's base counts by its own fingerprint, see :func:`memaudit.posthoc.checkpoints.load`.

    Raises:
        CheckpointError: a file cannot be read.
    """
    facts: list[tuple[str, str]] = []
    files = list(checkpoint.files)
    for folder in (checkpoint.config, checkpoint.path if checkpoint.kind == "adapter" else None):
        if folder is not None:
            files += [
                folder / name for name in ("config.json", "adapter_config.json") if (folder / name).is_file()
            ]
    try:
        facts = sorted((file.name, sha256_file(file)) for file in set(files))
    except OSError as error:
        raise CheckpointError(
            f"cannot read {error.filename}: {error.strerror}; check its owner and mode"
        ) from error
    return hashlib.sha256(json.dumps([checkpoint.kind, facts]).encode()).hexdigest()


def expand(patterns: str | list[str]) -> list[Checkpoint]:
    """Return the checkpoints that shell patterns match, in order of step and name.

    Raises:
        ConfigurationError: a pattern matches nothing.
        CheckpointError: a match is no checkpoint, or lacks parts.
    """
    import glob

    found: list[Checkpoint] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = sorted(glob.glob(pattern))
        if not matches:
            raise ConfigurationError(
                f"no checkpoint matches {pattern!r}; quote the pattern and correct the path"
            )
        found += [replace(detect(match), path=detect(match).path) for match in matches]
    return sorted(found, key=lambda one: (one.step is None, one.step or 0, str(one.path)))


def _unknown(path: Path) -> str:
    if path.is_file():
        return (
            f"{path} is no checkpoint that memaudit reads alone; name the folder that holds it with its config.json, "
            "a .ckpt of Lightning or a .gguf file"
        )
    names = some((one.name for one in path.iterdir()), 5) or "nothing"
    hint = "it has a config.json and no weights; " if (path / "config.json").is_file() else ""
    return (
        f"{path} holds no checkpoint that memaudit knows (it holds {names}); {hint}expected config.json with "
        "safetensors, adapter_config.json, .distcp files with .metadata, global_step* folders, or a GGUF file"
    )
