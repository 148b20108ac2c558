"""One-run estimates side by side with opake 0.16.1: time, memory, and how often a bound exceeds the truth.

    python benchmarks/estimates.py --output estimates.md

Makes a virtual environment with opake[auditing]==0.16.1 from PyPI (torch included: minutes, gigabytes), unless
``--environment`` names one that has it. Every measurement runs in a fresh process, one thread, in either
environment, on the same scores and coins; CPU time too, because a shared machine stretches the wall clock. opake's
default epsilon_at is its mu-GDP bound; ours at delta > 0 is Steinke's certified bound, so its mu-GDP bounds stand
beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPAKE = "opake[auditing]==0.16.1"
DELTA = 1e-5


def make_environment(folder: Path) -> Path:
    """Return the Python of an environment that has opake, made where it is missing."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    if subprocess.run([str(python), "-c", "import opake.auditing"], capture_output=True).returncode:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", OPAKE], check=True)
    return python


def inputs(m: int, mu: float, seed: int) -> tuple[Any, Any]:
    """Scores N(mu coin, 1) and fair coins."""
    import numpy as np

    rng = np.random.default_rng([seed, m])
    included = rng.random(m) < 0.5
    return rng.standard_normal(m) + mu * included, included


def opake_estimate(scores: Any, included: Any) -> Any:
    """opake's estimate of the same scores and coins."""
    import numpy as np
    from opake import auditing
    from opake.auditing.types import CoinFlip

    names = np.arange(len(scores))
    flip = CoinFlip(
        num_canaries=len(names),
        canary_indices=names,
        _in_mask=included,
        in_indices=names[included],
        out_indices=names[~included],
        dataset_size=len(names),
    )
    return auditing.one_run(auditing.canary_scores(scores, canary_indices=names), coin_flip=flip)


def our_estimate(scores: Any, included: Any) -> Any:
    """memaudit's estimate of the same scores and coins."""
    import numpy as np

    from memaudit.privacy import CoinFlip, canary_scores, one_run

    names = np.arange(len(scores))
    return one_run(
        canary_scores(scores, canary_indices=names),
        coin_flip=CoinFlip(names, included, dataset_size=len(names)),
    )


TASKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "opake: eps_delta().epsilon_at": (
        "opake",
        lambda e: e.eps_delta().epsilon_at(delta=DELTA),
    ),
    "opake: epsilon_at (mu-GDP, its default)": ("opake", lambda e: e.epsilon_at(delta=DELTA)),
    "memaudit: epsilon_at (certified, default)": ("memaudit", lambda e: e.epsilon_at(delta=DELTA)),
    "memaudit: gdp().epsilon_at (certified)": ("memaudit", lambda e: e.gdp().epsilon_at(delta=DELTA)),
    "memaudit: epsilon_at(method='xiang') (model-based)": (
        "memaudit",
        lambda e: e.epsilon_at(delta=DELTA, method="xiang"),
    ),
}
"""What is measured: the library, and the call on its estimate."""


def worker(task: str, m: int, mu: float, seed: int, trials: int) -> dict[str, Any]:
    """Run one task in this process; with ``trials`` on fresh inputs each, counting positive bounds."""
    import resource

    library, call = TASKS[task]
    build = opake_estimate if library == "opake" else our_estimate
    build(*inputs(50, mu, seed))  # imports and first-call costs are no part of the time
    if trials:
        found = [float(call(build(*inputs(m, mu, seed + 1 + trial)))) for trial in range(trials)]
        return {"positive": sum(value > 0 for value in found) / trials}
    scores, included = inputs(m, mu, seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu_start = time.perf_counter(), time.process_time()
    estimate = build(scores, included)
    built, cpu_built = time.perf_counter(), time.process_time()
    value = float(call(estimate))
    end, cpu_end = time.perf_counter(), time.process_time()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "one_run_s": built - start,
        "one_run_cpu_s": cpu_built - cpu_start,
        "call_s": end - built,
        "call_cpu_s": cpu_end - cpu_built,
        "value": value,
        "rss_mb": after / 1024,
        "grown_mb": (after - before) / 1024,
    }


def measure(python: Path, task: str, m: int, mu: float, seed: int, trials: int = 0) -> dict[str, Any]:
    """Run :func:`worker` in a fresh process of the right environment."""
    own = TASKS[task][0] == "memaudit"
    command = [
        sys.executable if own else str(python),
        __file__,
        "--worker",
        json.dumps({"task": task, "m": m, "mu": mu, "seed": seed, "trials": trials}),
    ]
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
    root = str(Path(__file__).resolve().parents[1])
    if own:
        environment["PYTHONPATH"] = root
    else:
        environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{task} failed at m = {m}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 10 else f"{seconds:.0f} s"


def main() -> None:
    """Measure everything and print the two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--environment", type=Path, default=Path(tempfile.gettempdir()) / "memaudit-opake-0.16.1"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--trials", type=int, default=1000, help="null runs of the quick bounds")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(**json.loads(options.worker))))
        return
    python = make_environment(options.environment)
    lines = [
        "| m | call | CPU time, wall | one_run, CPU | bound (true epsilon 4.377) | peak memory, growth |",
        "|---|---|---|---|---|---|",
    ]
    for m in options.sizes:
        for task in TASKS:
            found = measure(python, task, m, 1.0, 0)
            lines.append(
                f"| {m:,} | {task} | {_ms(found['call_cpu_s'])}, {_ms(found['call_s'])} | "
                f"{_ms(found['one_run_cpu_s'])} | {found['value']:.3f} | "
                f"{found['rss_mb']:.0f} MB, +{found['grown_mb']:.0f} MB |"
            )
            print(lines[-1], flush=True)
    lines += ["", f"| bound, no leak, m = 1,000, {options.trials} runs at 5 % | above 0 |", "|---|---|"]
    for task in TASKS:
        if task == "opake: epsilon_at (mu-GDP, its default)":
            continue  # seconds a call
        found = measure(python, task, 1000, 0.0, 1, options.trials)
        lines.append(f"| {task} | {100 * found['positive']:.1f} % |")
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
