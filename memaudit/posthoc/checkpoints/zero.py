"""DeepSpeed ZeRO-1, -2 and -3 checkpoints, saved at any world size: fp32 weights put together from the shards.

DeepSpeed itself refuses a ZeRO-3 checkpoint at another world size. Its zero_to_fp32 utilities read the
optimizer's fp32 partitions; here they are mapped, and one parameter at a time is put together, so that a rank
needs the memory of its own share and of one full parameter, not of the whole model.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memaudit.errors import CheckpointError, MissingExtraError
from memaudit.posthoc.checkpoints.base import Checkpoint, box, damaged, some

_MODEL = "*_model_states.pt"
_OPTIM = "*_optim_states.pt"


def detect(path: Path) -> Checkpoint | None:
    """Return the ZeRO checkpoint whose root, or whose step's folder, is ``path``, or None.

    Raises:
        CheckpointError: 'latest' names a folder that is not there, or ranks' files are missing.
    """
    if not path.is_dir():
        return None
    if any(path.glob(_MODEL)):
        root, tag = path.parent, path.name
    elif (path / "latest").is_file():
        root, tag = path, (path / "latest").read_text().strip()
    else:
        steps = [one.name for one in path.glob("global_step*") if any(one.glob(_MODEL))]
        if not steps:
            return None
        root, tag = path, max(steps, key=lambda name: int(re.sub(r"\D", "", name) or 0))
    folder = root / tag
    if not any(folder.glob(_MODEL)):
        raise CheckpointError(
            f"{root}/latest names {tag!r}, where no {_MODEL} lie; copy the whole checkpoint, or name the step's folder"
        )
    files = tuple(sorted([*folder.glob(_MODEL), *folder.glob(_OPTIM)]))
    _require_every_rank(folder)
    return Checkpoint(kind="zero", path=root, files=files, tag=tag)


def _require_every_rank(folder: Path) -> None:
    """Compare the ranks' files with one another and with the world size that they were saved at."""
    optim = sorted(folder.glob(_OPTIM))
    if not optim:
        raise CheckpointError(
            f"{folder} has no {_OPTIM}: the fp32 weights lie in the optimizer's shards; copy them too, "
            "or save with stage3_gather_16bit_weights_on_model_save"
        )
    ranks = {int(found[1]) for one in optim if (found := re.search(r"zero_pp_rank_(\d+)_", one.name))}
    world = max(ranks) + 1 if ranks else len(optim)
    with contextlib.suppress(Exception):
        state = torch.load(optim[0], map_location="cpu", mmap=True, weights_only=False)
        count = state["optimizer_state_dict"]["partition_count"]
        world = max(count) if isinstance(count, list) else int(count)
    missing = set(range(world)) - ranks
    if missing:
        raise CheckpointError(
            f"{folder} was saved by {world} ranks and lacks the shards of rank(s) {some(missing, 8)}; "
            "copy the missing files"
        )


class ZeroSource:
    """Parameters of a ZeRO checkpoint, each put together when it is read.

    Args:
        checkpoint: what :func:`detect` found. DeepSpeed's files are pickles: read only those you trust.

    Raises:
        CheckpointError: the shards do not fit together.
        MissingExtraError: deepspeed is not installed.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        try:
            from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
        except ImportError as error:
            raise MissingExtraError("deepspeed", "deepspeed", "reading a ZeRO checkpoint") from error
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
                self._lazy: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(
                    str(checkpoint.path), tag=checkpoint.tag, lazy_mode=True
                )
        except Exception as error:
            raise damaged(checkpoint.path / checkpoint.tag, error) from error
        self._shapes = {name: tuple(value.shape) for name, value in self._lazy.items()}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Full shape of each parameter by name."""
        return self._shapes

    def read(self, name: str) -> Tensor:
        """Return one parameter in fp32."""
        tensor: Tensor = self._lazy[name].contiguous()
        return tensor

    def read_box(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
        """Return a box of one parameter, which is put together in full for it."""
        return box(self.read(name), offsets, sizes)
