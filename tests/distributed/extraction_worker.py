"""Run under torchrun: regurgitation read off sharded weights, beside plain greedy generation. Writes JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.distributed import cpu_backends


def main(kind: str, output: str) -> None:
    if kind != "ddp":  # accelerate knows plain data parallelism on the CPU
        cpu_backends.accelerate_on_cpu()
    if kind.startswith("zero"):
        cpu_backends.deepspeed_on_cpu()
    else:
        dist.init_process_group("gloo")
    from memaudit.engine import AuditEngine
    from memaudit.extraction import extract_all, prefix_tokens
    from memaudit.extraction.decide import SLACK, compare
    from memaudit.probes import Probe
    from memaudit.strategies.resolve import resolve
    from tests.distributed.wrapping import setup
    from tests.extraction.conftest import CONTEXT, SCHEMES, SECRET, greedy, make_records, overfit

    fractions = (0.25, 0.5, 0.8)
    records = make_records()
    model = overfit(records)
    # Plain generation before anything is sharded: under ZeRO-3 generate() would wait for the other ranks.
    real: dict[tuple[str, float], tuple[bool, bool]] = {}
    for name, record in records.items():
        for fraction in fractions:
            cut = CONTEXT + prefix_tokens(SECRET, fraction)
            suffix = list(record.ids[cut:])
            new = greedy(model, record.ids[:cut], len(suffix) + SLACK)
            real[name, fraction] = new[: len(suffix)] == suffix, compare(suffix, new).near
    made = setup(kind, model)
    strategy = resolve(made.target)
    probes = [Probe(name, record.ids, record.span) for name, record in records.items()]
    signals = AuditEngine(strategy=strategy, decodings=SCHEMES).score(probes).signals
    found = extract_all(
        records, signals, strategy=strategy, fractions=fractions, decodings=SCHEMES, max_batch_size=4
    )
    wrong = [
        (name, result.fraction)
        for name, one in found.by_id.items()
        for result in one.by_prefix
        if (result.verbatim, result.near_verbatim) != real[name, result.fraction]
    ]
    everyone = strategy.gather([json.dumps(found.to_dict(), sort_keys=True)])
    facts = strategy.facts()
    if strategy.rank == 0:
        out: dict[str, Any] = {
            "strategy": facts.strategy,
            "sharded": facts.sharded,
            "local": facts.local_parameters,
            "total": facts.total_parameters,
            "world": strategy.world_size,
            "wrong": wrong,
            "verbatim": sum(verbatim for verbatim, _ in real.values()),
            "near": sum(near and not verbatim for verbatim, near in real.values()),
            "judged": sum(len(one.by_prefix) for one in found.by_id.values()),
            "ranks_agree": len(set(everyone)) == 1 and len(everyone) == strategy.world_size,
            "counts": found.counts.to_dict(),
        }
        Path(output).write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
