"""Tensor parallelism, alone or with FSDP2 over the other dimension of the mesh (2-D), through DTensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from memaudit.errors import StrategyError
from memaudit.strategies import sharding
from memaudit.strategies.forward import output_head


class TensorParallelStrategy(sharding.DTensorStrategy):
    """Ranks of one tensor-parallel group hold parts of each layer and score the same records.

    ``record_rank`` is the rank's place in the data dimension; every forward has collectives within the group,
    and with FSDP2 over the data dimension also between groups, so all ranks go in lockstep.
    """

    name = "tp"

    def __init__(self, root: nn.Module, model: nn.Module, **options: Any) -> None:
        super().__init__(root, model, **options)
        for path, split in adapters_in_pieces(model):
            if split in _INPUTS:
                raise StrategyError(
                    f"the adapter on {path} has a {split} for this rank's part of the layer's input, and nothing sums "
                    f"the ranks' parts: each rank computes another model, in training too. {_REMEDY}"
                )
        self._fully_sharded = bool(sharding.fsdp_modules(self._outer))
        if self._fully_sharded:
            self.name = "tp+fsdp2"
            mesh = sharding.data_mesh(self._outer)
            self.record_world = int(mesh.size())
            self.record_rank = sharding.place_in_mesh(mesh)
        else:
            leaders = self._collectives.gather([min(_group(model))])
            groups = sorted(set(leaders))
            self.record_world = len(groups)
            self.record_rank = groups.index(leaders[self.rank])
        self.synced_generation = self.record_world > 1
        self.generate_through_root = self._fully_sharded

    @contextmanager
    def _generation_scope(self) -> Iterator[None]:
        """Gather logits that are split over the vocabulary: generate() looks for their maximum."""
        head = output_head(self._model)
        if head is None:
            yield
            return

        def whole(module: nn.Module, args: Any, output: Any) -> Any:
            return output.full_tensor() if isinstance(output, DTensor) else output

        handle = head.register_forward_hook(whole)
        try:
            yield
        finally:
            handle.remove()

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """Return each record's squared gradient norm: every rank runs the same backward on its shards.

        Raises:
            StrategyError: adapters lie in pieces of which no tensor says so.
        """
        self._refuse_pieces("gradient norms")
        return super().gradient_norms(input_ids, spans)

    def consolidate(self) -> dict[str, Tensor]:
        """Return the full state dict on rank 0, gathered one tensor at a time.

        Raises:
            StrategyError: adapters lie in pieces of which no tensor says so.
        """
        self._refuse_pieces("the consolidated weights")
        return super().consolidate()

    def _refuse_pieces(self, wanted: str) -> None:
        """Raise where PEFT sized adapter weights by this rank's part of a layer."""
        for path, split in adapters_in_pieces(self._model):
            raise StrategyError(
                f"the adapter on {path} lies in pieces beside a tensor-parallel weight ({split}), of which no tensor "
                f"says so, and each rank trains a copy of its own of the rest; {wanted} cannot be had. {_REMEDY}"
            )

    def _details(self) -> Mapping[str, Any]:
        return {"tensor_parallel_size": self.world_size // self.record_world}


_INPUTS = ("lora_A", "lora_embedding_A")
_REMEDY = (
    "Make the PEFT model first and split lora_A or lora_B as the layer is, or load the base with transformers' "
    "distributed_config, which PEFT follows"
)


def adapters_in_pieces(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the adapters whose weights are sized by this rank's part of a layer, and which weight is a piece.

    PEFT makes such pieces where a model was split by ``parallelize_module`` before it came. Weights of the whole
    layer's size are either split DTensors, which say so, or copies that backward keeps equal.
    """
    for path, module in model.named_modules():
        weight = getattr(getattr(module, "base_layer", None), "weight", None)
        if not isinstance(weight, DTensor) or all(p.is_replicate() for p in weight.placements):
            continue
        outputs, inputs = weight.shape[0], weight.shape[-1]
        if isinstance(module.base_layer, nn.Embedding):
            outputs, inputs = inputs, outputs
        whole = {"lora_A": (-1, inputs), "lora_B": (0, outputs)}
        whole |= {"lora_embedding_A": (-1, inputs), "lora_embedding_B": (0, outputs)}
        for name, parameter in module.named_parameters():
            kind = name.split(".")[0]
            if kind in whole:
                axis, size = whole[kind]
                piece = parameter.shape[axis] != size
            else:  # another method than LoRA, or a magnitude: plain tensors say nothing
                piece = kind != "base_layer" and not isinstance(parameter, DTensor)
            if piece:
                yield path, kind


def _group(model: nn.Module) -> list[int]:
    """Return the ranks over which the model's tensors are split.

    Raises:
        StrategyError: no parameter says so.
    """
    for parameter in model.parameters():
        if isinstance(parameter, DTensor) and not all(p.is_replicate() for p in parameter.placements):
            mesh = parameter.device_mesh
            dims = [i for i, placement in enumerate(parameter.placements) if not placement.is_replicate()]
            return _ranks_along(mesh, dims)
    raise StrategyError(
        f"{type(model).__name__} is tensor-parallel, but none of its parameters is a DTensor that says over which "
        "ranks it is split; parallelise it with torch.distributed.tensor.parallel"
    )


def _ranks_along(mesh: Any, dims: Sequence[int]) -> list[int]:
    """Return the ranks that share this rank's coordinates in every other dimension."""
    coordinate: list[int] = list(mesh.get_coordinate())
    index = tuple(slice(None) if i in dims else coordinate[i] for i in range(mesh.ndim))
    ranks: list[int] = mesh.mesh[index].flatten().tolist()
    assert dist.get_rank() in ranks
    return ranks
