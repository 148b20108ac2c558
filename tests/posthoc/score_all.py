"""Run plain or by torchrun: loads every checkpoint under each strategy asked for, scores it with the engine.

torchrun --nproc-per-node N tests/posthoc/score_all.py OUT RESULT.json STRATEGY...
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from memaudit.engine import AuditEngine
from memaudit.posthoc.checkpoints import detect, fingerprint, load
from memaudit.posthoc.ranks import process_group, world_size
from memaudit.probes import Probe
from memaudit.strategies.resolve import resolve
from tests.posthoc.records import RECORDS


def score(path: Path, strategy: str, config_from: str | None) -> dict[str, Any]:
    loaded = load(path, strategy=strategy, config_from=config_from)
    found = resolve(loaded.model)
    probes = [Probe(str(i), tuple(ids), (1, len(ids))) for i, ids in enumerate(RECORDS)]
    result = AuditEngine(strategy=found, max_batch_size=1).score(probes)
    facts = found.facts()
    return {
        "scores": [result.signals[str(i)].logprob.tolist() for i in range(len(RECORDS))],
        "kind": loaded.checkpoint.kind,
        "strategy": facts.strategy,
        "wrapper": facts.wrapper,
        "local": facts.local_parameters,
        "total": facts.total_parameters,
        "fingerprint": fingerprint(detect(path)),
    }


def main(out: Path, target: Path, strategies: list[str]) -> None:
    names = sorted(json.loads((out / "in-loop.json").read_text()))
    results: dict[str, Any] = {}
    with process_group() as rank:
        for name in names:
            for strategy in strategies:
                config_from = str(out / "config") if name.startswith("lightning") else None
                try:
                    results[f"{name}|{strategy}"] = score(out / name, strategy, config_from)
                except Exception as error:
                    results[f"{name}|{strategy}"] = {"error": str(error), "trace": traceback.format_exc()}
                gc.collect()
        if rank == 0:
            target.write_text(json.dumps({"world": world_size(), "results": results}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
