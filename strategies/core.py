"""ModelStrategy: what every parallelism has in common; a strategy overrides what its wrapper makes different."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from memaudit.errors import ConfigurationError
from memaudit.seeds import derive_seed
from memaudit.strategies.adapters import adapters_off, check_reference
from memaudit.strategies.base import DistributedFacts, Forward
from memaudit.strategies.collectives import Collectives
from memaudit.strategies.decoding import GiveUp
from memaudit.strategies.discover import find_peft
from memaudit.strategies.forward import ModelForward, redirected
from memaudit.strategies.generation import generate_batches
from memaudit.strategies.gradients import record_loss, streamed_squared_norm
from memaudit.strategies.isolation import isolated

T = TypeVar("T")


class ModelStrategy:
    """Forwards, generates, gathers and consolidates a model whose every parameter is on this rank.

    Args:
        root: the module to call: the outermost wrapper that gathers parameters, or the model.
        model: the model inside every wrapper.
        outer: the outermost wrapper of all, whose flags are kept; by default the root.
        host: the module that the wrapper holds where that is not the model (a LightningModule).
        context: made around each forward, for precision that a framework applies from outside.
        precision: how the framework calls its precision, for example ``"bf16"``.
        reference_adapter: the adapter that counts as the reference, ``"base"`` for none of them.
    """

    name = "single"
    sharded = False
    lockstep = False
    synced_generation = False
    generate_through_root = False

    def __init__(
        self,
        root: nn.Module,
        model: nn.Module,
        *,
        outer: nn.Module | None = None,
        host: nn.Module | None = None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        precision: str | None = None,
        reference_adapter: str | None = None,
    ) -> None:
        self._root = root
        self._model = model
        self._outer = outer if outer is not None else root
        self._host = host
        self._context = context
        self._precision = precision
        self.reference_adapter = reference_adapter
        self._collectives = Collectives()
        self.rank = self.record_rank = self._collectives.rank
        self.world_size = self.record_world = self._collectives.world_size

    @property
    def model(self) -> nn.Module:
        """The model inside every wrapper."""
        return self._model

    def _new_forward(self) -> ModelForward:
        return ModelForward(
            self._root, self._model, host=self._host, device=self._device(), context=self._context
        )

    def _device(self) -> torch.device | None:
        """Where inputs must lie; None leaves it to the input embeddings."""
        return None

    def _after(self) -> None:
        """Run at the end of each audit: a sharded strategy reshards."""

    @contextmanager
    def _open(self, *, gradients: bool = False) -> Iterator[ModelForward]:
        with (
            isolated(self._outer, gradients=gradients, after=self._after),
            self._new_forward().attached() as forward,
        ):
            yield forward

    def scoring(self) -> AbstractContextManager[Forward]:
        """Enter evaluation without gradients; everything about training is as before on leaving."""
        return self._open()

    def reference(self) -> AbstractContextManager[Forward] | None:
        """As ``scoring`` with adapters off; None without adapters.

        Raises:
            ReferenceModeError: adapters off would not be the model that training started from.
        """
        peft_model = find_peft(self._outer)
        if peft_model is None:
            return None
        check_reference(peft_model, self.reference_adapter)
        return self._open_reference(peft_model)

    @contextmanager
    def _open_reference(self, peft_model: Any) -> Iterator[Forward]:
        with self._open() as forward, adapters_off(peft_model, self.reference_adapter):
            yield forward

    def generate(
        self,
        input_ids: Sequence[Sequence[int]],
        *,
        batch_size: int = 16,
        seed: int = 0,
        give_up: GiveUp | None = None,
        **kwargs: Any,
    ) -> list[list[int]]:
        """Generate on the shards from each rank's own prompts; every rank must call it.

        Args:
            input_ids: prompts without padding; none on a rank that has none.
            batch_size: prompts that go together.
            seed: root seed of sampling; ranks draw from seeds derived from it.
            give_up: whether the prompt at a position, with its new ids so far, need not go on. It is asked every
                few ids, and must answer alike on ranks that share a prompt.
            kwargs: those of transformers' generate, ``max_new_tokens`` among them. The checkpoint's own
                generation settings are not used; give ``generation_config=`` to use them.

        Returns:
            For each prompt the new ids alone, cut before the first end token or where it was given up.
        """
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, not {batch_size}")
        batches = -(-len(input_ids) // batch_size)
        if self.lockstep or self.record_world != self.world_size:
            batches = self._collectives.largest(batches)
        found: list[list[int]] = []

        def work(*_: Any, **__: Any) -> None:
            torch.manual_seed(derive_seed(seed, "generate", self.record_rank))
            found.extend(
                generate_batches(
                    self._model,
                    input_ids,
                    kwargs,
                    batches=batches,
                    batch_size=batch_size,
                    device=self._new_forward().device,
                    synced=self.synced_generation and self.world_size > 1,
                    give_up=give_up,
                )
            )

        with isolated(self._outer, after=self._after), self._context(), self._generation_scope():
            host = self._host or self._root
            if self.generate_through_root and _generator(self._model) is not self._root:
                with redirected(host, work):  # generate() would pass the root's hooks by
                    self._root()
            else:
                work()
        return found

    def _generation_scope(self) -> AbstractContextManager[Any]:
        """What ``generate`` on the inner model needs around it."""
        return nullcontext()

    def gradient_norms(
        self, input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
    ) -> list[float]:
        """Return the squared gradient norm, over trained parameters, of each record's mean loss over its span.

        Every rank passes the same records. Parameters are whole on each rank while it forwards, so ranks share
        the records out and exchange the norms.
        """
        check_spans(input_ids, spans)
        mine = range(self.record_rank, len(input_ids), self.record_world)
        rounds = -(-len(input_ids) // self.record_world) if self.lockstep else len(mine)
        norms: dict[int, float] = {}
        with self._open(gradients=True) as forward:
            for turn in range(rounds):
                index = mine[turn] if turn < len(mine) else 0  # a spare turn keeps the ranks in step
                loss = record_loss(forward, input_ids[index], spans[index])
                norm = self._squared_norm(loss)
                if turn < len(mine):
                    norms[index] = norm
        found = dict(self._collectives.gather(list(norms.items())))
        return [found[index] for index in range(len(input_ids))]

    def _squared_norm(self, loss: Tensor) -> float:
        return streamed_squared_norm(loss, self._model.parameters())

    def gather(self, rows: Sequence[T]) -> list[T]:
        """Return every rank's picklable rows, in order of rank, on every rank."""
        return self._collectives.gather(rows)

    def barrier(self) -> None:
        """Wait for every rank."""
        self._collectives.barrier()

    def consolidate(self) -> dict[str, Tensor]:
        """Return the full state dict on rank 0, on the CPU, and an empty one elsewhere."""
        if self.rank != 0:
            return {}
        return {name: tensor.detach().cpu().clone() for name, tensor in self._model.state_dict().items()}

    def _counts(self) -> tuple[int, int]:
        """Return this rank's and the whole model's number of parameters."""
        total = sum(parameter.numel() for parameter in self._model.parameters())
        return total, total

    def _details(self) -> Mapping[str, Any]:
        """What else this parallelism has to say."""
        return {}

    def facts(self) -> DistributedFacts:
        """Say what was found: strategy, world size, shares, precision."""
        local, total = self._counts()
        forward = self._new_forward()
        dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in self._model.parameters()})
        autocast = self._precision
        return DistributedFacts(
            strategy=self.name,
            world_size=self.world_size,
            sharded=self.sharded and local < total,  # on one rank a sharded wrapper holds all
            local_parameters=local,
            total_parameters=total,
            precision="+".join(dtypes) + (f", {autocast} autocast" if autocast else ""),
            wrapper=type(self._outer).__name__,
            record_world=self.record_world,
            details={
                "head": forward.head,
                "supports_cache": forward.supports_cache,
                "model": type(self._model).__name__,
                "lockstep": self.lockstep,
                **self._details(),
            },
        )


def _generator(model: nn.Module) -> nn.Module:
    """Return the module that ``model.generate`` calls: PEFT generates with the model below it."""
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def check_spans(input_ids: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]) -> None:
    """Raise where records and spans differ in number."""
    if len(input_ids) != len(spans):
        raise ConfigurationError(
            f"{len(input_ids)} records but {len(spans)} spans were given; give one a record"
        )
