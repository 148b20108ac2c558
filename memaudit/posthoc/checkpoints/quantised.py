"""Quantised Hugging Face folders: config.json has a quantization_config, transformers knows how to read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from memaudit.errors import CheckpointError
from memaudit.posthoc.checkpoints import huggingface
from memaudit.posthoc.checkpoints.base import Checkpoint, damaged


def detect(path: Path) -> Checkpoint | None:
    """Return the quantised checkpoint in a folder, or None."""
    if not quantisation(path):
        return None
    found = huggingface.detect(path)
    return None if found is None else replace(found, kind="quantised")


def quantisation(path: Path) -> dict[str, Any]:
    """Return config.json's quantization_config, empty where there is none.

    Raises:
        CheckpointError: config.json is damaged.
    """
    file = path / "config.json"
    if not file.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(file.read_text()).get("quantization_config") or {}
    except (OSError, ValueError, AttributeError) as error:
        raise damaged(file, error) from error
    return found


def require_support(checkpoint: Checkpoint) -> None:
    """Check that this machine can run the quantised model.

    Raises:
        CheckpointError: it needs a GPU or a library that is not here.
    """
    import importlib.util

    import torch

    config = quantisation(checkpoint.path)
    method = str(config.get("quant_method") or "")
    bits = config.get("load_in_4bit") or config.get("load_in_8bit")
    if method.startswith("bitsandbytes") or (not method and bits):
        if not torch.cuda.is_available():
            raise CheckpointError(
                f"{checkpoint.path} is quantised with bitsandbytes, which needs a GPU, and this machine shows none; "
                "audit it on a GPU, or audit the checkpoint it was quantised from"
            )
        if importlib.util.find_spec("bitsandbytes") is None:
            raise CheckpointError(
                f"{checkpoint.path} is quantised with bitsandbytes, which is not installed; "
                "run: pip install bitsandbytes"
            )
