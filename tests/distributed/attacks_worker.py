"""Run under torchrun: every kind of attack on a sharded model. Rank 0 writes scores and facts as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tests.distributed import cpu_backends


def main(kind: str, output: str) -> None:
    if kind not in ("ddp", "bare"):
        cpu_backends.accelerate_on_cpu()
    if kind.startswith("zero"):
        cpu_backends.deepspeed_on_cpu()
    else:
        dist.init_process_group("gloo")
    from memaudit import attack
    from memaudit.strategies.resolve import resolve
    from tests.attacks.sharded import ATTACKS, LABELS, TEXTS, build, tokenizer
    from tests.distributed.wrapping import setup

    model, reference = build(0), build(7)
    given = model if kind == "bare" else setup(kind, model).target
    strategy = resolve(given)
    store = Path(output).with_suffix(".store")
    options = {"tokenizer": tokenizer(), "attacks": ATTACKS, "max_batch_size": 4, "store": store}
    result = attack(strategy, TEXTS, LABELS, reference=reference, **options)
    again = attack(strategy, TEXTS, LABELS, reference=reference, **options)
    everyone = strategy.gather([json.dumps(result.to_dict()["scores"], sort_keys=True)])
    if strategy.rank == 0:
        facts = strategy.facts()
        found = {
            "scores": result.to_dict()["scores"],
            "unscorable": result.to_dict()["unscorable"],
            "ranks_agree": len(set(everyone)) == 1 and len(everyone) == strategy.world_size,
            "forwards": list(result.cost.forwards["target"]),
            "forwarded": result.cost.forwarded,
            "again": again.cost.forwarded,
            "same": again.to_dict()["scores"] == result.to_dict()["scores"],
            "sharded": facts.sharded,
            "strategy": facts.strategy,
            "local": facts.local_parameters,
            "total": facts.total_parameters,
        }
        Path(output).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
