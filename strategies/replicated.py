"""Models that are whole in each process: a single one, DistributedDataParallel, and device_map over devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memaudit.errors import StrategyError
from memaudit.strategies.collectives import fingerprint
from memaudit.strategies.core import ModelStrategy


class SingleStrategy(ModelStrategy):
    """One process holds the model, and nothing else takes part."""

    name = "single"


class DDPStrategy(ModelStrategy):
    """DistributedDataParallel: the module inside is scored, which has no collective.

    The wrapper broadcasts buffers at its first forward without gradients, so ranks with unequal numbers of
    forwards would wait for each other there.
    """

    name = "ddp"


class ReplicatedStrategy(ModelStrategy):
    """A bare module in a process group: taken as one model on every rank only after its parameters were compared.

    Raises:
        StrategyError: ranks hold different parameters.
    """

    name = "replicated"

    def __init__(self, root: nn.Module, model: nn.Module, **options: Any) -> None:
        super().__init__(root, model, **options)
        marks = self._collectives.gather([fingerprint(list(model.parameters()))])
        different = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
        if different:
            raise StrategyError(
                f"given a bare {type(model).__name__} in a group of {self.world_size} processes whose parameters "
                f"differ from rank 0's on ranks {different}; wrap it (DistributedDataParallel, FSDP), or give the "
                "Accelerator or Trainer that prepared it"
            )


class DeviceMapStrategy(ModelStrategy):
    """A model that ``device_map`` laid over devices, the CPU or the disk; its hooks move inputs and weights."""

    name = "device_map"

    @property
    def offloaded(self) -> bool:
        """Whether some weights lie on the CPU or the disk until their layer runs."""
        return any(parameter.device.type == "meta" for parameter in self._model.parameters())

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """As the base; refused where weights are offloaded, since they carry no gradient.

        Raises:
            StrategyError: some weights are offloaded.
        """
        if self.offloaded:
            raise StrategyError(
                "gradient norms need every weight on a device, and device_map has offloaded some; "
                "load the model without offloading, or sharded with FSDP"
            )
        return super().gradient_norms(input_ids, spans)

    def consolidate(self) -> dict[str, Tensor]:
        """As the base, with offloaded weights read back."""
        if not self.offloaded:
            return super().consolidate()
        from accelerate.utils.modeling import get_state_dict_offloaded_model

        state = get_state_dict_offloaded_model(self._model)
        return {name: tensor.detach().cpu() for name, tensor in state.items() if self.rank == 0}

    def _details(self) -> Mapping[str, Any]:
        places: dict[str, Any] = getattr(self._model, "hf_device_map", {})
        devices = sorted(
            {str(torch.device("cuda", p)) if isinstance(p, int) else str(p) for p in places.values()}
        )
        return {"devices": devices, "offloaded": self.offloaded}
