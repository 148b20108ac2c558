"""What an audit will cost: forwards, tokens, time, bytes and memory, from a model's shape and a machine's speed.

Arithmetic alone, no torch. Counts are exact for the plan that the engine makes; times rest on the machine's
figures, measured by :mod:`memaudit.posthoc.calibrate` or taken from ``MACHINES``, whose assumptions are printed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from memaudit.errors import ConfigurationError

SHARDED = ("fsdp2", "zero3")
STRATEGIES = ("single", "ddp", *SHARDED)
SIGNAL_BYTES = 8 * 9
"""Bytes that a target token leaves behind: seven columns and two decoding schemes, each of 8 bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A decoder's shape.

    Args:
        params: parameters in all.
        layers, hidden, vocab: number of layers, width, entries of the vocabulary.
        bytes_per_param: 2 for bf16, 4 for fp32.
        tied: whether the head is the embedding.

    Example:
        >>> Shape.guess(7e9).layers
        32
    """

    params: float
    layers: int
    hidden: int
    vocab: int = 32_000
    bytes_per_param: int = 2
    tied: bool = False

    @classmethod
    def guess(cls, params: float, **known: Any) -> Shape:
        """Return a shape of the Llama family's proportions: 12 L H^2 + 2 V H parameters, H about 128 L."""
        vocab = int(known.get("vocab") or 32_000)
        hidden = known.get("hidden")
        layers = known.get("layers")
        if layers is None:
            body = max(params * 0.96, 1.0)
            layers = max(1, round((body / (12 * 128**2)) ** (1 / 3)))
        if hidden is None:
            # 12 L H^2 + 2 V H = params, solved for H, in steps of the 128 that heads take.
            a, b = 12 * layers, 2 * vocab
            hidden = (-b + math.sqrt(b * b + 4 * a * params)) / (2 * a)
            hidden = max(128, round(hidden / 128) * 128)
        rest = {
            key: value
            for key, value in known.items()
            if key in ("bytes_per_param", "tied") and value is not None
        }
        return cls(params=params, layers=int(layers), hidden=int(hidden), vocab=vocab, **rest)

    @property
    def embedding(self) -> float:
        """Parameters of the embedding; the head has as many where it is not tied."""
        return float(self.vocab * self.hidden)

    @property
    def body(self) -> float:
        """Parameters of the layers."""
        return max(self.params - self.embedding * (1 if self.tied else 2), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What is audited.

    Args:
        canaries: probes, members, held-out and controls alike.
        length: tokens of a canary's record.
        secret: tokens of its secret: rows of the vocabulary projection.
        batch_size, batch_tokens, batch_targets: limits of one forward, as the engine's.
        reference: whether reference scores are taken too (adapters off or a base checkpoint).
        open_share: share of (canary, prefix) pairs that need a generation.
        prefixes: prefixes of each secret.
    """

    canaries: int
    length: int = 128
    secret: int = 32
    batch_size: int = 32
    batch_tokens: int = 8192
    batch_targets: int = 2048
    reference: bool = True
    open_share: float = 0.0
    prefixes: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A rank's speed, measured or assumed.

    Args:
        name: what it is.
        flops: floating-point operations per second that a forward reaches on one rank.
        seconds_per_forward: fixed cost of one forward (launches, Python, the store).
        bytes_per_second: what a rank receives per second in an all-gather.
        seconds_per_collective: fixed cost of one all-gather.
        overlap: share of the communication that is hidden behind compute: about 1 with prefetching on a
            GPU, 0 on a CPU.
        memory: bytes of one rank's device.
        source: where the figures are from.
    """

    name: str
    flops: float
    seconds_per_forward: float = 0.02
    bytes_per_second: float = 5e10
    seconds_per_collective: float = 5e-5
    overlap: float = 0.0
    memory: float = 80e9
    source: str = "assumed"


MACHINES: dict[str, Machine] = {
    "h100": Machine(
        name="h100",
        flops=0.35 * 989e12,
        bytes_per_second=40e9,
        seconds_per_collective=1e-4,
        overlap=0.8,
        memory=80e9,
        source="assumed: 35% of 989 TFLOP/s in bf16, 40 GB/s a GPU between nodes (400 Gb/s at 80%), 80% overlap",
    ),
    "a100": Machine(
        name="a100",
        flops=0.4 * 312e12,
        bytes_per_second=20e9,
        seconds_per_collective=1e-4,
        overlap=0.8,
        memory=80e9,
        source="assumed: 40% of 312 TFLOP/s in bf16, 20 GB/s a GPU between nodes (200 Gb/s at 80%), 80% overlap",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What an audit costs. Forwards, tokens, bytes and memory are per rank unless the name says otherwise."""

    strategy: str
    ranks: int
    batches: int
    forwards: int
    tokens_total: int
    flops_total: float
    seconds_scoring: float
    seconds_generation: float
    bytes_received: float
    bytes_weights: float
    bytes_transient: float
    bytes_activations: float
    fits: bool
    machine: str
    source: str

    @property
    def seconds(self) -> float:
        """Scoring and generation together."""
        return self.seconds_scoring + self.seconds_generation

    @property
    def bytes_memory(self) -> float:
        """Peak memory of a rank: weights, gathered layers, activations."""
        return self.bytes_weights + self.bytes_transient + self.bytes_activations

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, the sums included."""
        return {**asdict(self), "seconds": self.seconds, "bytes_memory": self.bytes_memory}


def batch_rows(work: Work) -> int:
    """Return how many probes go through the model together under all limits.

    Example:
        >>> batch_rows(Work(canaries=100, length=128, secret=32))
        32
        >>> batch_rows(Work(canaries=100, length=1024, secret=32))
        8
    """
    return max(1, min(work.batch_size, work.batch_tokens // work.length, work.batch_targets // work.secret))


def forward_flops(shape: Shape, rows: float, length: float, secret: float) -> float:
    """Return the operations of one forward: layers on every token, attention, the head on the secret's rows."""
    tokens = rows * length
    attention = 2 * 2 * shape.layers * shape.hidden * tokens * length / 2  # causal: half of the square
    return 2 * shape.body * tokens + attention + 2 * shape.embedding * rows * secret


def forward_seconds(
    shape: Shape, machine: Machine, *, rows: float, length: float, secret: float, strategy: str, ranks: int
) -> float:
    """Return the seconds of one forward on one rank, its all-gathers included."""
    compute = forward_flops(shape, rows, length, secret) / machine.flops
    if strategy not in SHARDED or ranks == 1:
        return machine.seconds_per_forward + compute
    received = gathered_bytes(shape, ranks) / machine.bytes_per_second
    exchange = received + (shape.layers + 1) * machine.seconds_per_collective
    hidden = min(compute, exchange) * machine.overlap
    return machine.seconds_per_forward + compute + exchange - hidden


def gathered_bytes(shape: Shape, ranks: int) -> float:
    """Return the bytes that a rank receives in one forward: every other rank's share of the weights."""
    return shape.bytes_per_param * shape.params * (ranks - 1) / ranks


def forecast(shape: Shape, work: Work, machine: Machine, *, strategy: str, ranks: int) -> Forecast:
    """Foresee an audit's cost.

    Args:
        shape: the model.
        work: what is audited.
        machine: a rank's speed.
        strategy: single, ddp, fsdp2 or zero3.
        ranks: number of ranks.

    Raises:
        ConfigurationError: an unknown strategy, fewer than one rank or canary, or a single process on several.

    Example:
        >>> f = forecast(Shape.guess(7e9), Work(canaries=1000), MACHINES["h100"], strategy="fsdp2", ranks=8)
        >>> f.batches, f.forwards, round(f.bytes_weights / 1e9, 2), f.fits
        (32, 8, 1.75, True)
    """
    if strategy not in STRATEGIES:
        raise ConfigurationError(f"strategy {strategy!r}; give one of {', '.join(STRATEGIES)}")
    if min(ranks, work.canaries) < 1 or (strategy == "single" and ranks > 1):
        raise ConfigurationError(
            f"{work.canaries} canaries on {ranks} ranks under {strategy}: expected at least one of each, and one rank "
            "under single"
        )
    rows = batch_rows(work)
    batches = math.ceil(work.canaries / rows)
    passes = 2 if work.reference else 1
    per_rank = math.ceil(batches / ranks)
    one = forward_seconds(
        shape, machine, rows=rows, length=work.length, secret=work.secret, strategy=strategy, ranks=ranks
    )
    flops = forward_flops(shape, 1, work.length, work.secret) * work.canaries * passes
    generation_forwards, generation_seconds = _generation(shape, work, machine, strategy, ranks, rows)
    sharded = strategy in SHARDED and ranks > 1
    received = gathered_bytes(shape, ranks) * (per_rank * passes + generation_forwards) if sharded else 0.0
    received += SIGNAL_BYTES * work.secret * work.canaries * passes * (1 if ranks > 1 else 0)
    weights = shape.bytes_per_param * shape.params / (ranks if sharded else 1)
    layer = shape.body / shape.layers
    # Two layers at once (one computed, one prefetched) and the root's own: embedding and head.
    root = shape.embedding * (1 if shape.tied else 2)
    transient = shape.bytes_per_param * (2 * layer + root) if sharded else 0.0
    activations = _activation_bytes(shape, work, rows)
    need = weights + transient + activations
    return Forecast(
        strategy=strategy,
        ranks=ranks,
        batches=batches,
        forwards=per_rank * passes + generation_forwards,
        tokens_total=work.canaries * work.length * passes,
        flops_total=flops,
        seconds_scoring=per_rank * passes * one,
        seconds_generation=generation_seconds,
        bytes_received=received,
        bytes_weights=weights,
        bytes_transient=transient,
        bytes_activations=activations,
        fits=need < 0.9 * machine.memory,
        machine=machine.name,
        source=machine.source,
    )


def _generation(
    shape: Shape, work: Work, machine: Machine, strategy: str, ranks: int, rows: int
) -> tuple[int, float]:
    """Return forwards and seconds of greedy generation: one forward a new token, all prompts of a batch at once."""
    prompts = math.ceil(work.canaries * work.prefixes * work.open_share)
    if prompts == 0:
        return 0, 0.0
    rounds = math.ceil(prompts / (rows * ranks))
    new_tokens = math.ceil(0.75 * work.secret)
    prefill = forward_seconds(
        shape, machine, rows=rows, length=work.length, secret=1, strategy=strategy, ranks=ranks
    )
    step = forward_seconds(shape, machine, rows=rows, length=1, secret=1, strategy=strategy, ranks=ranks)
    return rounds * new_tokens, rounds * (prefill + (new_tokens - 1) * step)


def _activation_bytes(shape: Shape, work: Work, rows: int) -> float:
    """Return what one forward without gradients holds at once: a layer's intermediates and the secret's logits."""
    tokens = rows * work.length
    layer = tokens * shape.hidden * 12 * shape.bytes_per_param
    logits = rows * work.secret * shape.vocab * (shape.bytes_per_param + 2 * 4)  # logits, and fp32 twice
    return float(layer + logits)


def with_speed(machine: Machine, **changes: float | None) -> Machine:
    """Return a machine with some figures replaced; None keeps one."""
    kept = {key: value for key, value in changes.items() if value is not None}
    return replace(machine, **kept, source=f"{machine.source}; given: {', '.join(kept)}") if kept else machine  # type: ignore[arg-type]
