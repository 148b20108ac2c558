"""One rank of a two-rank audit in which rank 1 fails in a named way: started without a launcher, as srun does."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import memaudit.engine as engine_module
from memaudit.engine import AuditEngine
from memaudit.errors import AuditError
from memaudit.probes import Probe
from memaudit.store import SignalStore
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_llama


def sharded() -> Any:
    """A tiny Llama under FSDP2 on two ranks."""
    model = tiny_llama(96, 2, 32)
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert isinstance(model, FSDPModule)
    assert model.lm_head.weight.to_local().shape[0] == 48  # really sharded
    return model


def main(mode: str, store: str) -> None:
    """Audit once; rank 1 fails at its second batch."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    model = sharded()
    rng = random.Random(0)
    probes = [Probe(f"p{i}", tuple(rng.randrange(96) for _ in range(8)), (2, 8)) for i in range(16)]
    engine = AuditEngine(
        strategy=resolve(model),
        store=SignalStore(store),
        fingerprint="weights",
        max_batch_size=2,
        failure_timeout=5.0,
    )
    calls = 0
    original = engine_module.token_statistics

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if rank == 1 and calls == 2:
            if mode == "raise":
                raise RuntimeError("no room on this rank")
            if mode == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    if mode == "stuck" and rank == 1:

        def stopping(*args: Any, **kwargs: Any) -> Any:
            # The process lives on, its heartbeat too stops: as a host that swaps, or a debugger, would.
            os.kill(os.getpid(), signal.SIGSTOP)
            return original(*args, **kwargs)

        engine_module.token_statistics = stopping  # type: ignore[assignment]
    elif mode != "none":
        engine_module.token_statistics = failing  # type: ignore[assignment]
    started = time.monotonic()
    try:
        result = engine.score(probes)
    except AuditError as error:
        print(f"AuditError: {error}", flush=True)
        print(f"after {time.monotonic() - started:.1f} s", flush=True)
        if mode == "raise":
            # Every rank has the same error at the same place: training can go on.
            total = torch.ones(1)
            dist.all_reduce(total)
            print(f"ranks still in step: {int(total)}", flush=True)
            dist.destroy_process_group()
        os._exit(3)
    print(f"needed {result.needed} reused {result.reused}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
