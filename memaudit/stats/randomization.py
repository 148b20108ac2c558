"""Randomisation test: do the scores depend on the coins? Exact because the coins were drawn by the auditor.

Needs no model of the scores and no independence between records: under the null hypothesis that the canaries
left no trace, the coins that were drawn are as likely as any others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.seeds import generator
from memaudit.stats.arrays import Bools, Floats, as_coins, as_scores

Statistic = Callable[[Floats, Bools], float]
_CHUNK_CELLS = 4_000_000


@dataclass(frozen=True)
class RandomizationResult:
    """Outcome of a randomisation test: the p-value, the statistic and how it was obtained."""

    pvalue: float
    statistic: float
    draws: int
    n_units: int
    name: str
    alternative: str
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary for a report."""
        return asdict(self)


def randomization_test(
    scores: Any,
    coins: Any,
    draws: int = 9999,
    seed: int = 0,
    statistic: str | Statistic = "auc",
    *,
    clusters: Any = None,
    alternative: str = "greater",
) -> RandomizationResult:
    """Test that the scores do not depend on the coins, by drawing the fair coins again.

    p = (1 + number of redraws at least as extreme)/(draws + 1) (Phipson and Smyth 2010): valid for any dependence
    between scores, because only the coins are random.

    Args:
        scores: one score per canary, shape (m,), higher = more member-like.
        coins: 1 where the canary was included, shape (m,); independent and fair.
        draws: number of redraws.
        seed: root seed of the redraws.
        statistic: ``auc``, or a function of (scores, coins) that returns a number.
        clusters: label of the group that shares one coin, shape (m,), when coins were flipped per document.
        alternative: ``greater``, or ``two-sided`` (distance of the AUC from one half; only with ``auc``).

    Returns:
        A RandomizationResult.

    Raises:
        ConfigurationError: lengths that differ, NaN scores, a cluster with two different coins.

    Example:
        >>> randomization_test([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1], draws=999).statistic
        1.0
    """
    values, included = as_scores(scores, "scores", minimum=1), as_coins(coins)
    if values.size != included.size:
        raise ConfigurationError(f"{values.size} scores and {included.size} coins; give one coin per score")
    if draws < 1:
        raise ConfigurationError(f"draws is {draws}; give at least 1")
    if alternative not in ("greater", "two-sided"):
        raise ConfigurationError(f"alternative is {alternative!r}; give 'greater' or 'two-sided'")
    unit_of, n_units = _units(included, clusters)
    rng = generator(seed, "randomization-test")
    if callable(statistic):
        if alternative != "greater":
            raise ConfigurationError(
                "alternative is 'two-sided' with a function; let the function fold its sign"
            )
        observed = float(statistic(values, included))
        extreme = sum(
            float(statistic(values, _flips(rng, 1, n_units)[0][unit_of])) >= observed for _ in range(draws)
        )
        name = getattr(statistic, "__name__", "function")
    elif statistic == "auc":
        observed, extreme = _auc_draws(values, included, unit_of, n_units, draws, rng, alternative)
        name = "auc"
    else:
        raise ConfigurationError(f"statistic is {statistic!r}; give 'auc' or a function of (scores, coins)")
    return RandomizationResult((1 + extreme) / (draws + 1), observed, draws, n_units, name, alternative, seed)


def _units(included: Bools, clusters: Any) -> tuple[np.ndarray[Any, np.dtype[np.intp]], int]:
    if clusters is None:
        return np.arange(included.size), included.size
    labels = np.asarray(clusters)
    if labels.shape != included.shape:
        raise ConfigurationError(
            f"{labels.size} cluster labels and {included.size} coins; give one per canary"
        )
    names, unit_of = np.unique(labels, return_inverse=True)
    unit_of = unit_of.reshape(-1)
    heads = np.bincount(unit_of, weights=included, minlength=names.size)
    if not bool(np.all((heads == 0) | (heads == np.bincount(unit_of, minlength=names.size)))):
        raise ConfigurationError(
            "a cluster holds included and excluded canaries; its members must share one coin"
        )
    return unit_of, int(names.size)


def _flips(rng: np.random.Generator, rows: int, columns: int) -> Bools:
    packed = np.frombuffer(rng.bytes(rows * ((columns + 7) // 8)), dtype=np.uint8).reshape(rows, -1)
    return np.unpackbits(packed, axis=1, count=columns).astype(np.bool_)


def _auc_draws(
    values: Floats,
    included: Bools,
    unit_of: np.ndarray[Any, np.dtype[np.intp]],
    n_units: int,
    draws: int,
    rng: np.random.Generator,
    alternative: str,
) -> tuple[float, int]:
    m = values.size
    order = np.sort(values)
    # Twice the midrank is an integer, so equal statistics compare equal and ties count as extreme.
    ranks = np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right") + 1
    rank_of_unit = np.bincount(unit_of, weights=ranks, minlength=n_units)
    size_of_unit = np.bincount(unit_of, minlength=n_units).astype(np.float64)

    def statistic(heads: Any) -> Any:
        sums, n1 = heads @ rank_of_unit, heads @ size_of_unit
        pairs = n1 * (m - n1)
        with np.errstate(divide="ignore", invalid="ignore"):
            area = np.where(pairs > 0, (sums / 2.0 - n1 * (n1 + 1) / 2.0) / pairs, 0.5)
        return area if alternative == "greater" else np.abs(area - 0.5)

    first = np.zeros(n_units, dtype=np.float64)
    first[unit_of] = included
    observed = float(statistic(first[None, :])[0])
    extreme, left = 0, draws
    rows = max(1, _CHUNK_CELLS // max(1, n_units))
    while left > 0:
        heads = _flips(rng, min(rows, left), n_units).astype(np.float64)
        extreme += int(np.count_nonzero(statistic(heads) >= observed))
        left -= heads.shape[0]
    return observed, extreme
