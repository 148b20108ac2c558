"""PEFT adapter folders: adapter_config.json and the adapter's weights, over a base named in the config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memaudit.errors import CheckpointError
from memaudit.posthoc.checkpoints.base import Checkpoint, damaged

_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


def detect(path: Path) -> Checkpoint | None:
    """Return the adapter in a folder, or None.

    Raises:
        CheckpointError: the folder has an adapter's configuration and no weights.
    """
    if not (path / "adapter_config.json").is_file():
        return None
    files = tuple(path / name for name in _WEIGHTS if (path / name).is_file())
    if not files:
        raise CheckpointError(
            f"{path} has adapter_config.json and neither {' nor '.join(_WEIGHTS)}; name the folder that "
            "save_pretrained wrote the adapter's weights to"
        )
    return Checkpoint(kind="adapter", path=path, files=files[:1])


def read_config(path: Path) -> dict[str, Any]:
    """Return adapter_config.json as a dictionary.

    Raises:
        CheckpointError: it is damaged.
    """
    file = path / "adapter_config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise damaged(file, error) from error
    return config


def base_of(path: Path, override: str | None = None) -> str:
    """Return the path or hub id of the model that the adapter was trained on.

    Args:
        path: the adapter's folder.
        override: what the user named instead, for example after the base was moved.

    Returns:
        A path, taken relative to the adapter's folder where only that exists, or a hub id.

    Raises:
        CheckpointError: neither names one.
    """
    named = override or read_config(path).get("base_model_name_or_path")
    if not named:
        raise CheckpointError(
            f"{path}/adapter_config.json names no base model; name it with --base PATH_OR_ID"
        )
    beside = path / str(named)
    return str(beside) if beside.is_dir() and not Path(str(named)).is_dir() else str(named)
