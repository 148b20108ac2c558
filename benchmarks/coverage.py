"""How often does each bound exceed the truth? Simulated mechanisms whose privacy is known, many runs of each.

    python benchmarks/coverage.py --trials 2000 --output coverage.md

A bound at significance 5 % may exceed the truth in at most 5 % of the runs. Every run draws fresh coins and scores
and is seeded by its number, so a table can be made again exactly.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from memaudit.privacy.estimate import OneRunEstimate, make_estimate
from memaudit.seeds import generator
from memaudit.stats.gdp import gdp_epsilon
from memaudit.stats.intervals import clopper_pearson

Draw = Callable[[np.random.Generator, int], tuple[Any, Any]]
DELTA = 1e-5
MIX_FIRES, MIX_ACCURACY, MIX_MU = 0.1, 0.9, 0.9855928403506242


@dataclass(frozen=True)
class Mechanism:
    """A way to make scores from coins, with its true epsilon at delta 0, at another delta, and its true mu.

    ``mu`` is None where the mechanism is no Gaussian trade-off: bounds under that family are then not judged.
    """

    name: str
    draw: Draw
    epsilon: float
    epsilon_at_delta: float
    mu: float | None
    m: int = 1000
    delta: float = DELTA
    significance: float = 0.05


def coins(rng: np.random.Generator, m: int) -> Any:
    """Fair coins, shape (m,)."""
    return rng.random(m) < 0.5


def gaussian(mu: float) -> Draw:
    """Scores N(mu coin, 1): exactly mu-GDP per canary."""

    def draw(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
        included = coins(rng, m)
        return rng.standard_normal(m) + mu * included, included

    return draw


def randomised_response(epsilon: float) -> Draw:
    """Each coin is told truly with probability sigma(epsilon), with a confidence that means nothing."""

    def draw(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
        included = coins(rng, m)
        told = np.where(rng.random(m) < 1.0 / (1.0 + math.exp(-epsilon)), included, ~included)
        return np.where(told, 1.0, -1.0) * rng.random(m), included

    return draw


def laplace(epsilon: float) -> Draw:
    """Coin plus Laplace noise of scale 1/epsilon."""

    def draw(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
        included = coins(rng, m)
        return included + rng.laplace(scale=1.0 / epsilon, size=m), included

    return draw


def mixed_response(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
    """One public coin: with probability 0.1 every bit passes randomised response of accuracy 0.9, else pure noise."""
    included = coins(rng, m)
    if rng.random() >= MIX_FIRES:
        return rng.standard_normal(m), included
    told = np.where(rng.random(m) < MIX_ACCURACY, included, ~included)
    return np.where(told, 1.0, -1.0) * rng.random(m), included


def correlated_delta(revealed: int, delta: float) -> Draw:
    """(0, delta)-DP: with probability m delta/revealed so many bits are shown at once, else nothing."""

    def draw(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
        included = coins(rng, m)
        scores = rng.uniform(-1.0, 1.0, m)
        if rng.random() < m * delta / revealed:
            shown = rng.choice(m, revealed, replace=False)
            scores[shown] = np.where(included[shown], 2.0, -2.0) + rng.uniform(-0.1, 0.1, revealed)
        return scores, included

    return draw


def constant(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
    """Every score the same."""
    return np.zeros(m), coins(rng, m)


def tied(rng: np.random.Generator, m: int) -> tuple[Any, Any]:
    """Three values, independent of the coins."""
    return rng.integers(0, 3, m).astype(float), coins(rng, m)


def mechanisms() -> list[Mechanism]:
    """All simulated mechanisms with their truths."""
    one = 1.0
    found = [
        Mechanism("null", gaussian(0.0), 0.0, 0.0, 0.0),
        Mechanism("null, 1 %", gaussian(0.0), 0.0, 0.0, 0.0, significance=0.01),
        Mechanism("constant scores", constant, 0.0, 0.0, 0.0),
        Mechanism("three tied values", tied, 0.0, 0.0, 0.0),
        Mechanism(
            "randomised response, eps 1",
            randomised_response(one),
            one,
            math.log(math.e - DELTA * (1.0 + math.e)),
            None,
        ),
        Mechanism("Laplace, eps 1", laplace(one), one, one + 2.0 * math.log1p(-DELTA), None),
    ]
    found += [
        Mechanism(f"Gaussian, mu {mu:g}", gaussian(mu), math.inf, gdp_epsilon(mu, DELTA), mu)
        for mu in (0.5, 1.0, 2.0)
    ]
    odds = MIX_ACCURACY / (1.0 - MIX_ACCURACY)
    at_delta = math.log(odds - (DELTA / MIX_FIRES) * (1.0 + odds))
    found += [
        Mechanism("mixed response", mixed_response, math.log(odds), at_delta, MIX_MU),
        Mechanism("mixed response, 1 %", mixed_response, math.log(odds), at_delta, MIX_MU, significance=0.01),
        Mechanism(
            "correlated (0, 0.01)", correlated_delta(300, 0.01), math.inf, 0.0, None, m=10_000, delta=0.01
        ),
    ]
    return found


Bounds = Callable[[OneRunEstimate, Mechanism], float]


def methods() -> dict[str, tuple[str, Bounds, Callable[[Mechanism], float | None]]]:
    """Name to (guarantee, bound, truth): what is judged."""

    def truth0(mechanism: Mechanism) -> float | None:
        return mechanism.epsilon

    def truth(mechanism: Mechanism) -> float | None:
        return mechanism.epsilon_at_delta

    def mu(mechanism: Mechanism) -> float | None:
        return mechanism.mu

    def steinke(high: float, low: float, *, pure: bool) -> Bounds:
        def bound(estimate: OneRunEstimate, mechanism: Mechanism) -> float:
            pair = (int(high * mechanism.m), int(low * mechanism.m))
            return estimate.eps_delta().epsilon_at(
                delta=0.0 if pure else mechanism.delta, significance=mechanism.significance, guesses=[pair]
            )

        return bound

    def gdp(share: float | None, method: str) -> Bounds:
        def bound(estimate: OneRunEstimate, mechanism: Mechanism) -> float:
            half = None if share is None else int(share * mechanism.m / 2)
            pairs = None if half is None else [(half, half)]
            return estimate.gdp(method=method).mu(significance=mechanism.significance, guesses=pairs)

        return bound

    return {
        "default, delta 0": (
            "certified",
            lambda e, k: e.epsilon_at(delta=0.0, significance=k.significance),
            truth0,
        ),
        "default, delta": (
            "certified",
            lambda e, k: e.epsilon_at(delta=k.delta, significance=k.significance),
            truth,
        ),
        "Steinke all": ("certified", steinke(0.5, 0.5, pure=True), truth0),
        "Steinke 10 % + 10 %": ("certified", steinke(0.1, 0.1, pure=True), truth0),
        "Steinke top 5 %": ("certified", steinke(0.05, 0.0, pure=True), truth0),
        "gdp default": ("certified", gdp(None, "certified"), mu),
        "Mahloujifar all": ("certified", gdp(1.0, "certified"), mu),
        "Mahloujifar 25 %": ("certified", gdp(0.25, "certified"), mu),
        "Xiang all": ("model-based", gdp(1.0, "xiang"), mu),
        "Xiang 25 %": ("model-based", gdp(0.25, "xiang"), mu),
    }


@dataclass
class Cell:
    """Runs whose bound exceeded the truth, and every bound."""

    truth: float
    violations: int
    values: list[float]


def simulate(
    mechanism: Mechanism, trials: int, seed: int, only: Sequence[str] | None = None
) -> dict[str, Cell]:
    """Run one mechanism ``trials`` times and judge every method, or ``only`` some, that has a truth to be judged by."""
    cells = {}
    for name, (_, _, truth) in methods().items():
        if (limit := truth(mechanism)) is not None and (only is None or name in only):
            cells[name] = Cell(limit, 0, [])
    bounds = {name: bound for name, (_, bound, _) in methods().items()}
    for trial in range(trials):
        scores, included = mechanism.draw(generator(seed, "coverage", mechanism.name, trial), mechanism.m)
        estimate = make_estimate(scores, included)
        for name, cell in cells.items():
            value = float(bounds[name](estimate, mechanism))
            cell.values.append(value)
            cell.violations += value > cell.truth + 1e-9
    return cells


def table(results: dict[str, dict[str, Cell]], trials: int) -> str:
    """Markdown: share of runs above the truth, and the median bound in parentheses."""
    names = list(methods())
    lines = [
        "| mechanism | " + " | ".join(names) + " |",
        "|" + "---|" * (len(names) + 1),
        "| guarantee | " + " | ".join(guarantee for guarantee, _, _ in methods().values()) + " |",
    ]
    for mechanism, cells in results.items():
        row = []
        for name in names:
            if (cell := cells.get(name)) is None:
                row.append("")
                continue
            share = f"{100 * cell.violations / trials:.2f} %" if math.isfinite(cell.truth) else "no limit"
            row.append(f"{share} ({float(np.median(cell.values)):.2f})")
        lines.append(f"| {mechanism} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print the table and the certified cells that break their significance beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a mechanism's name")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, Cell]] = {}
    broken = []
    for mechanism in mechanisms():
        if options.only not in mechanism.name:
            continue
        start = time.perf_counter()
        results[mechanism.name] = simulate(mechanism, options.trials, options.seed)
        for name, cell in results[mechanism.name].items():
            low, _ = clopper_pearson(cell.violations, options.trials, 0.999)
            if methods()[name][0] == "certified" and low > mechanism.significance:
                broken.append(f"{mechanism.name}: {name}")
        print(f"{mechanism.name}: {time.perf_counter() - start:.0f} s", flush=True)
        if options.output:
            options.output.write_text(table(results, options.trials) + "\n")
    print(table(results, options.trials))
    print("certified bounds beyond their significance:", ", ".join(broken) or "none")


if __name__ == "__main__":
    main()
