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
from memaudit.strategies.core import ModelStrategy, check_spans
from memaudit.strategies.forward import output_head
from memaudit.strategies.gradients import record_loss


class TensorParallelStrategy(ModelStrategy):
    """Ranks of one tensor-parallel group hold parts of each layer and score the same records.

    ``record_rank`` is the rank's place in the data dimension; every forward has collectives within the group,
    and with FSDP2 over the data dimension also between groups, so all ranks go in lockstep.
    """

    name = "tp"
    sharded = True
    lockstep = True

    def __init__(self, root: nn.Module, model: nn.Module, **options: Any) -> None:
        super().__init__(root, model, **options)
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

    def _after(self) -> None:
        sharding.reshard(self._outer)

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
        check_spans(input_ids, spans)
        self._refuse_pieces("gradient norms")
        sharding.reshard(self._outer)  # so that the parameters met below are the shards
        shares: list[float] = []
        with (
            self._open(gradients=True) as forward,
            sharding.reduction_alone(self._outer),
            sharding.gradients_aside(list(self._outer.parameters())),
        ):
            for ids, span in zip(input_ids, spans, strict=True):
                loss = record_loss(forward, ids, span)
                shares.append(sharding.backward_share(loss, self._outer, self.world_size))
                sharding.reshard(self._outer)
        return self._collectives.sum(shares)

    def consolidate(self) -> dict[str, Tensor]:
        """Return the full state dict on rank 0, gathered one tensor at a time.

        Raises:
            StrategyError: adapters lie in pieces of which no tensor says so.
        """
        self._refuse_pieces("the consolidated weights")
        sharding.reshard(self._outer)
        return sharding.full_state(self._model)

    def _refuse_pieces(self, wanted: str) -> None:
        """Raise where PEFT sized plain adapter weights by this rank's part of a layer: their shards are unknown."""
        for path, module in self._model.named_modules():
            weight = getattr(getattr(module, "base_layer", None), "weight", None)
            split = isinstance(weight, DTensor) and not all(p.is_replicate() for p in weight.placements)
            adapters = [p for name, p in module.named_parameters() if not name.startswith("base_layer")]
            if split and any(not isinstance(parameter, DTensor) for parameter in adapters):
                raise StrategyError(
                    f"the adapter on {path} lies in pieces beside a tensor-parallel weight, of which no tensor says "
                    f"so; {wanted} cannot be had. Scores and the reference can; for the rest use FSDP2 or ZeRO-3"
                )

    def _counts(self) -> tuple[int, int]:
        sharding.reshard(self._outer)
        return sharding.counts(self._model)

    def _details(self) -> Mapping[str, Any]:
        return {"tensor_parallel_size": self.world_size // self.record_world}


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
