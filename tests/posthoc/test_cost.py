"""The cost model: counts as the engine plans them, arithmetic that can be done by hand, calibration that fits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from memaudit.cli import main
from memaudit.errors import ConfigurationError
from memaudit.posthoc.calibrate import _fit
from memaudit.posthoc.cost import (
    MACHINES,
    Machine,
    Shape,
    Work,
    forecast,
    forward_flops,
    forward_seconds,
    gathered_bytes,
)
from memaudit.probes import Probe, plan
from tests.helpers import tiny_llama


@pytest.mark.parametrize("canaries", [1, 7, 132, 1000])
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("length", [40, 300])
def test_forwards_are_those_of_the_plan(canaries: int, ranks: int, length: int) -> None:
    work = Work(canaries=canaries, length=length, secret=32, reference=False)
    probes = [Probe(str(i), (i, *range(1, length)), (length - 32, length)) for i in range(canaries)]
    planned = plan(probes, ranks=ranks, lockstep=True, fixed_batches=True)
    strategy = "fsdp2" if ranks > 1 else "single"
    found = forecast(Shape.guess(1e9), work, MACHINES["h100"], strategy=strategy, ranks=ranks)
    assert found.forwards == max(planned.forwards)
    assert found.tokens_total == canaries * length
    both = forecast(
        Shape.guess(1e9),
        Work(canaries=canaries, length=length),
        MACHINES["h100"],
        strategy=strategy,
        ranks=ranks,
    )
    assert both.forwards == 2 * found.forwards


def test_operations_are_those_that_torch_counts() -> None:
    """torch's own counter over a real forward, whose head takes every row."""
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny_llama(512, layers=3, hidden=64)
    config = model.config
    rows, length = 2, 48
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.ones((rows, length), dtype=torch.long))
    shape = Shape(
        params=sum(p.numel() for p in model.parameters()), layers=3, hidden=64, vocab=512, bytes_per_param=4
    )
    counted = counter.get_total_flops()
    foreseen = forward_flops(shape, rows, length, secret=length)
    # Norms count as parameters here and as no operations there; the causal half is a convention of kernels.
    assert config.hidden_size == 64 and foreseen == pytest.approx(counted, rel=0.1)


def test_bytes_and_memory_by_hand() -> None:
    shape = Shape(params=8e9, layers=32, hidden=4096, vocab=128_000, bytes_per_param=2)
    work = Work(canaries=64, batch_size=8, reference=False)
    found = forecast(shape, work, MACHINES["h100"], strategy="zero3", ranks=4)
    assert found.forwards == 2
    assert gathered_bytes(shape, 4) == 2 * 8e9 * 3 / 4
    assert found.bytes_received == pytest.approx(2 * 12e9, rel=1e-4)
    assert found.bytes_weights == 4e9
    whole = forecast(shape, work, MACHINES["h100"], strategy="ddp", ranks=4)
    assert whole.bytes_weights == 16e9 and whole.bytes_transient == 0
    assert whole.bytes_received < 1e7
    assert not forecast(Shape.guess(70e9), work, MACHINES["h100"], strategy="single", ranks=1).fits


def test_more_ranks_never_cost_more_weights_nor_more_time_of_compute() -> None:
    shape, work = Shape.guess(70e9, layers=80), Work(canaries=10_000)
    some = [forecast(shape, work, MACHINES["h100"], strategy="fsdp2", ranks=n) for n in (64, 256, 1024)]
    assert some[0].bytes_memory > some[1].bytes_memory > some[2].bytes_memory
    assert some[0].seconds > some[1].seconds > some[2].seconds


@pytest.mark.parametrize("params", [1e8, 1e9, 7e9, 7e10])
def test_guessed_shapes_have_the_size_that_was_asked_for(params: float) -> None:
    shape = Shape.guess(params)
    assert 12 * shape.layers * shape.hidden**2 + 2 * shape.vocab * shape.hidden == pytest.approx(
        params, rel=0.15
    )


def test_the_fit_finds_the_constants_that_made_the_data() -> None:
    truth = Machine(
        name="x", flops=2e10, seconds_per_forward=0.01, bytes_per_second=5e8, seconds_per_collective=2e-3
    )
    points = [(2, 128, 512, 2, 32), (2, 256, 2048, 8, 64), (4, 256, 2048, 4, 64), (8, 256, 2048, 2, 32),
              (4, 512, 4096, 2, 64), (16, 512, 4096, 8, 64)]  # fmt: skip
    rows = []
    for point in points:
        layers, hidden, vocab, batch, length = point
        params = 12 * layers * hidden**2 + 2 * vocab * hidden
        shape = Shape(params=params, layers=layers, hidden=hidden, vocab=vocab, bytes_per_param=4)
        rows.append(
            (
                shape,
                point,
                forward_seconds(
                    shape, truth, rows=batch, length=length, secret=16, strategy="fsdp2", ranks=2
                ),
            )
        )
    fitted = _fit(rows, "fsdp2", 2)
    assert fitted.flops == pytest.approx(2e10, rel=0.02)
    assert fitted.bytes_per_second == pytest.approx(5e8, rel=0.02)
    assert fitted.seconds_per_forward == pytest.approx(0.01, rel=0.05)
    assert fitted.seconds_per_collective == pytest.approx(2e-3, rel=0.05)


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["plan", "--params", "7e9", "--gpus", "8", "--canaries", "1000", "--strategy", "fsdp2"]
    assert main([*arguments, "--json", "true"]) == 0
    found = json.loads(capsys.readouterr().out)["forecast"]
    assert found["forwards"] == 2 * math.ceil(math.ceil(1000 / 32) / 8) and found["fits"]
    assert main(arguments) == 0
    assert "forwards of each rank" in capsys.readouterr().out
    for wrong, word in (
        (["plan"], "--params"),
        ([*arguments, "--calibration", str(tmp_path / "no")], "calibration"),
    ):
        assert main(wrong) == 2
        assert word in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="strategy"):
        forecast(Shape.guess(1e9), Work(canaries=1), MACHINES["h100"], strategy="pipeline", ranks=2)
