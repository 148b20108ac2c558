"""A short run on this machine that gives the cost model its speeds, and checks it on a size that it did not see."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.files import write_atomic
from memaudit.posthoc.cost import (
    SHARDED,
    Machine,
    Shape,
    forward_flops,
    forward_seconds,
    gathered_bytes,
)
from memaudit.seeds import generator

CALIBRATION_NAME = "memaudit-calibration.json"

# (layers, hidden, vocabulary, rows, length): small enough for a CPU, apart enough to tell the terms from each other.
GRID: tuple[tuple[int, int, int, int, int], ...] = (
    (2, 128, 512, 2, 32),
    (2, 256, 2048, 8, 64),
    (4, 256, 2048, 4, 64),
    (8, 256, 2048, 2, 32),
    (4, 512, 4096, 2, 64),
    (2, 512, 4096, 8, 64),
)
HELD_OUT: tuple[tuple[int, int, int, int, int], ...] = ((6, 384, 4096, 4, 96), (8, 512, 8192, 4, 64))
SECRET = 16
FORWARDS = 6


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one forward of one size: the median over several, measured and foreseen."""

    layers: int
    hidden: int
    params: float
    rows: int
    length: int
    seconds: float
    predicted: float
    held_out: bool


def calibrate(strategy: str = "single") -> tuple[Machine, list[Measured]]:
    """Measure forwards on this machine and fit the cost model's speeds to them; every rank calls.

    Args:
        strategy: "single" on one process, "fsdp2" on the ranks of a process group.

    Returns:
        The machine, and every measurement beside what the fitted model says, held-out sizes included.
    """
    import torch

    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if strategy in SHARDED and ranks == 1:
        raise ConfigurationError(
            "calibrating a sharded strategy needs ranks: torchrun --nproc-per-node N -m memaudit plan --calibrate ..."
        )
    rows = [(point, *_measure(point, strategy)) for point in GRID]
    machine = _fit([(shape, point, seconds) for point, shape, seconds in rows], strategy, ranks)
    rows += [(point, *_measure(point, strategy)) for point in HELD_OUT]
    found = []
    for point, shape, seconds in rows:
        layers, hidden, _, batch, length = point
        foreseen = forward_seconds(
            shape, machine, rows=batch, length=length, secret=SECRET, strategy=strategy, ranks=ranks
        )
        found.append(
            Measured(layers, hidden, shape.params, batch, length, seconds, foreseen, point in HELD_OUT)
        )
    return machine, found


def _measure(point: tuple[int, int, int, int, int], strategy: str) -> tuple[Shape, float]:
    """Time the engine's own forwards of one size; the slowest rank counts."""
    import torch

    from memaudit.engine import AuditEngine
    from memaudit.posthoc.checkpoints.skeleton import blocks
    from memaudit.posthoc.ranks import local_device
    from memaudit.probes import Probe
    from memaudit.strategies.resolve import resolve

    layers, hidden, vocab, rows, length = point
    model = _model(layers, hidden, vocab).to(local_device()).eval()
    params = sum(parameter.numel() for parameter in model.parameters())
    if strategy == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in blocks(model):
            fully_shard(block)
        fully_shard(model)
    found = resolve(model)
    draw = generator(0, "calibrate", layers, hidden)
    count = rows * FORWARDS * found.record_world
    probes = [
        Probe(str(i), tuple(int(t) for t in draw.integers(0, vocab, length)), (length - SECRET, length))
        for i in range(count)
    ]
    engine = AuditEngine(strategy=found, max_batch_size=rows, fixed_batches=True)
    engine.score(probes[: rows * found.record_world])  # the first forward builds what later ones reuse
    times = []
    for _ in range(3):
        found.barrier()
        began = time.perf_counter()
        engine.score(probes)
        times.append((time.perf_counter() - began) / FORWARDS)
    slowest = max(found.gather([float(np.median(times))]))
    width = next(model.parameters()).element_size()
    del torch
    return Shape(params=params, layers=layers, hidden=hidden, vocab=vocab, bytes_per_param=width), slowest


def _model(layers: int, hidden: int, vocab: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(state)
    return model


def _fit(
    rows: Sequence[tuple[Shape, tuple[int, int, int, int, int], float]], strategy: str, ranks: int
) -> Machine:
    """Fit seconds = fixed + flops/speed (+ bytes/bandwidth + collectives) with non-negative terms, relatively."""
    from scipy.optimize import nnls

    features, targets = [], []
    for shape, (layers, _, _, batch, length), seconds in rows:
        row = [1.0, forward_flops(shape, batch, length, SECRET) / 1e9]
        if strategy in SHARDED:
            row += [gathered_bytes(shape, ranks) / 1e9, float(layers + 1)]
        # Divided by what was measured: a small size counts as much as a large one.
        features.append([value / seconds for value in row])
        targets.append(1.0)
    solution, _ = nnls(np.asarray(features), np.asarray(targets))
    fixed, per_gflop = float(solution[0]), float(solution[1])
    per_gb = float(solution[2]) if len(solution) > 2 else 0.0
    per_collective = float(solution[3]) if len(solution) > 3 else 0.0
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "this CPU"
    return Machine(
        name=device,
        flops=1e9 / max(per_gflop, 1e-12),
        seconds_per_forward=fixed,
        bytes_per_second=1e9 / max(per_gb, 1e-12),
        seconds_per_collective=per_collective,
        overlap=0.0,  # what overlaps is inside the measured terms
        memory=float(_memory()),
        source=f"measured: {len(rows)} sizes, {strategy}, {ranks} rank(s)",
    )


def _memory() -> int:
    import os

    import torch

    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def save_machine(machine: Machine, path: Path) -> Path:
    """Write a calibration for later plans; return its path."""
    return write_atomic(path, json.dumps(asdict(machine), indent=1, sort_keys=True) + "\n")


def load_machine(path: Path) -> Machine:
    """Read a calibration.

    Raises:
        ConfigurationError: it is missing or damaged.
    """
    try:
        return Machine(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"no usable calibration at {path}; make one with memaudit plan --calibrate"
        ) from error
