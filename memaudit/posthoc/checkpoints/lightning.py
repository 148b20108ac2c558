"""Lightning's .ckpt files. Its sharded folders are DCP or ZeRO checkpoints and are found as those."""

from __future__ import annotations

from pathlib import Path

import torch

from memaudit.errors import CheckpointError
from memaudit.posthoc.checkpoints.base import Checkpoint, DictSource
from memaudit.posthoc.checkpoints.huggingface import load_torch_file


def detect(path: Path) -> Checkpoint | None:
    """Return the Lightning file at ``path``, or None."""
    if not (path.is_file() and path.suffix == ".ckpt"):
        return None
    return Checkpoint(kind="lightning", path=path, files=(path,))


def open_source(checkpoint: Checkpoint, *, trust_pickle: bool = False) -> DictSource:
    """Return the tensors of the file's state dict, mapped to memory.

    Raises:
        CheckpointError: the file is damaged, has no state dict, or holds objects and they are not trusted.
    """
    content = load_torch_file(checkpoint.path, trust_pickle=trust_pickle)
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(state, dict):
        raise CheckpointError(
            f"{checkpoint.path} has no 'state_dict', so Lightning did not write it; name a file that "
            "ModelCheckpoint or trainer.save_checkpoint wrote"
        )
    return DictSource({name: value for name, value in state.items() if isinstance(value, torch.Tensor)})
