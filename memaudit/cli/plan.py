"""memaudit plan: forwards, time, communication and memory of an audit that is still to come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal


def plan(
    *,
    params: float = 0.0,
    gpus: int = 1,
    canaries: int = 132,
    strategy: Literal["single", "ddp", "fsdp2", "zero3"] | None = None,
    length: int = 128,
    secret: int = 32,
    batch_size: int = 32,
    batch_tokens: int = 8192,
    reference: bool = True,
    open_share: float = 0.0,
    layers: int | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
    bytes_per_param: int = 2,
    tied: bool = False,
    device: Literal["h100", "a100"] = "h100",
    calibration: str | None = None,
    calibrate: bool = False,
    flops: float | None = None,
    bandwidth: float | None = None,
    memory: float | None = None,
    json: bool = False,
) -> int:
    """Foresee what an audit costs; with --calibrate, measure this machine first.

    Args:
        params: parameters of the model, for example 7e9.
        gpus: ranks.
        canaries: canaries in all, controls included.
        strategy: how the model lies on the ranks; by default single on one and fsdp2 on several.
        length: tokens of a canary's record.
        secret: tokens of its secret.
        batch_size: records of a forward at most.
        batch_tokens: padded tokens of a forward at most.
        reference: whether reference scores are taken too.
        open_share: share of (canary, prefix) pairs that need a generation; 1 is the worst case.
        layers: layers of the model; guessed from its size by default.
        hidden: width of the model; guessed from its size by default.
        vocab: entries of the vocabulary; 32,000 by default.
        bytes_per_param: 2 for bf16, 4 for fp32.
        tied: whether the head is the embedding.
        device: assumed speeds, where there is no calibration.
        calibration: file of measured speeds.
        calibrate: measure this machine, write memaudit-calibration.json and use it; on several ranks under torchrun.
        flops: operations per second that a forward reaches on a rank; overrides.
        bandwidth: bytes per second that a rank receives; overrides.
        memory: bytes of a rank's device; overrides.
        json: print JSON instead of tables.
    """
    import json as json_lib

    from memaudit.errors import ConfigurationError
    from memaudit.posthoc.calibrate import CALIBRATION_NAME, load_machine, save_machine
    from memaudit.posthoc.cost import MACHINES, Shape, Work, forecast, with_speed

    chosen = strategy or ("single" if gpus == 1 else "fsdp2")
    machine, rank = MACHINES[device], 0
    measured: list[dict[str, Any]] = []
    if calibrate:
        machine, measured, rank = _calibrate()
        if rank == 0:
            save_machine(machine, Path(calibration or CALIBRATION_NAME))
    elif calibration is not None:
        machine = load_machine(Path(calibration))
    if rank != 0:
        return 0
    machine = with_speed(machine, flops=flops, bytes_per_second=bandwidth, memory=memory)
    document: dict[str, Any] = {"machine": machine.name, "source": machine.source}
    if measured:
        document["measured"] = measured
    if params > 0:
        shape = Shape.guess(
            params, layers=layers, hidden=hidden, vocab=vocab, bytes_per_param=bytes_per_param, tied=tied
        )
        work = Work(
            canaries=canaries,
            length=length,
            secret=secret,
            batch_size=batch_size,
            batch_tokens=batch_tokens,
            reference=reference,
            open_share=open_share,
        )
        document["forecast"] = forecast(shape, work, machine, strategy=chosen, ranks=gpus).to_dict()
    elif not calibrate:
        raise ConfigurationError(
            "give the model's size: --params 7e9, or --calibrate to measure this machine"
        )
    if json:
        print(json_lib.dumps(document, indent=1, sort_keys=True))
    else:
        _print(document)
    return 0


def _calibrate() -> tuple[Any, list[dict[str, Any]], int]:
    from dataclasses import asdict

    from memaudit.posthoc.calibrate import calibrate
    from memaudit.posthoc.ranks import process_group, world_size

    with process_group() as rank:
        machine, measured = calibrate("fsdp2" if world_size() > 1 else "single")
    return machine, [asdict(one) for one in measured], rank


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    print(f"{document['machine']}: {document['source']}")
    if "measured" in document:
        table = Table(
            "layers", "hidden", "parameters", "batch", "measured s", "foreseen s", "ratio", "fitted on"
        )
        for one in document["measured"]:
            table.add_row(
                str(one["layers"]),
                str(one["hidden"]),
                f"{one['params']:,.0f}",
                f"{one['rows']} x {one['length']}",
                f"{one['seconds']:.4f}",
                f"{one['predicted']:.4f}",
                f"{one['predicted'] / one['seconds']:.2f}",
                "no" if one["held_out"] else "yes",
            )
        console.print(table)
    if "forecast" in document:
        found = document["forecast"]
        table = Table("what", "how much")
        for name, value in _lines(found):
            table.add_row(name, value)
        console.print(table)


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    gib = 2**30
    return [
        ("strategy, ranks", f"{found['strategy']}, {found['ranks']}"),
        ("batches in all", f"{found['batches']:,}"),
        ("forwards of each rank", f"{found['forwards']:,}"),
        ("tokens in all", f"{found['tokens_total']:,}"),
        ("operations in all", f"{found['flops_total']:.3g}"),
        (
            "seconds",
            f"{found['seconds']:.1f} (scoring {found['seconds_scoring']:.1f}, "
            f"generation {found['seconds_generation']:.1f})",
        ),
        ("received by each rank", f"{found['bytes_received'] / gib:.2f} GiB"),
        (
            "memory of each rank",
            f"{found['bytes_memory'] / gib:.2f} GiB (weights {found['bytes_weights'] / gib:.2f}, "
            f"gathered {found['bytes_transient'] / gib:.2f}, "
            f"activations {found['bytes_activations'] / gib:.2f})",
        ),
        ("fits", "yes" if found["fits"] else "no: more ranks, a sharded strategy or smaller batches"),
    ]
