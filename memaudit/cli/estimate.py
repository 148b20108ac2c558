"""memaudit estimate: lower bounds on epsilon from a file of scores and coins."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from memaudit.errors import ConfigurationError

_TRUE = {"1", "1.0", "true", "yes", "in"}
_FALSE = {"0", "0.0", "false", "no", "out"}


def estimate(
    scores: str,
    delta: list[float] | None = None,
    significance: float = 0.05,
    method: str = "certified",
    guesses: list[tuple[int, int]] | None = None,
    draws: int = 9999,
    seed: int = 0,
    json_output: bool = False,
) -> int:
    """Bound epsilon from below, from a CSV file with a score and a coin for each canary.

    Columns: ``score`` (higher = more member-like), ``included`` (1 or 0: the fair coin that was flipped before
    training) and, if there is one, ``id`` (breaks ties). Other columns are ignored.

    Args:
        scores: path of the CSV file.
        delta: values of delta at which epsilon is bounded; 0 and 1e-5 where not given.
        significance: probability that a bound exceeds the truth.
        method: certified (any mechanism), mahloujifar (certified for Gaussian mechanisms, delta > 0) or xiang
            (model-based: independent canaries).
        guesses: pairs [k_plus, k_minus] that were fixed beforehand; the default plan where not given.
        draws: redraws of the randomisation test.
        seed: root seed of the redraws.
        json_output: print JSON instead of a table.

    Returns:
        0.
    """
    from memaudit.privacy.estimate import make_estimate
    from memaudit.privacy.summary import CAUTION
    from memaudit.stats.roc import auc, delong_interval

    values, coins, ids = read_scores(scores)
    run = make_estimate(values, coins, ids)
    bounds = [
        run.epsilon_at(delta=d, significance=significance, method=method, guesses=guesses)
        for d in (delta or [0.0, 1e-5])
    ]
    test = run.randomization(draws=draws, key=seed)
    attack: dict[str, float] | None = None
    if run.n_in and run.n_out:
        members, others = run.scores[run.included], run.scores[~run.included]
        low, high = delong_interval(members, others)
        attack = {"auc": auc(members, others), "low": low, "high": high}
    if json_output:
        content: dict[str, Any] = {
            "m": run.m,
            "n_in": run.n_in,
            "n_out": run.n_out,
            "bounds": [bound.to_dict() for bound in bounds],
            "randomization": test.to_dict(),
            "attack": attack,
            "caution": CAUTION,
        }
        print(json.dumps(content, indent=2))
        return 0

    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"{run.m} canaries: {run.n_in} in, {run.n_out} out", title_justify="left")
    for heading in ("delta", "epsilon at least", "at most shown", "guarantee", "method", "right guesses"):
        table.add_column(heading)
    for bound, d in zip(bounds, delta or [0.0, 1e-5], strict=True):
        claim = bound.claim
        made = claim.k_plus + claim.k_minus
        table.add_row(
            f"{d:g}",
            f"{float(bound):.4f}",
            f"{claim.ceiling:.4f}",
            claim.guarantee,
            claim.method,
            f"{claim.correct} of {made}",
        )
    console.print(table)
    if attack is not None:
        console.print(
            f"attack AUC {attack['auc']:.4f} [{attack['low']:.4f}, {attack['high']:.4f}]", highlight=False
        )
    console.print(
        f"randomisation test: p = {test.pvalue:.4g}, the share of redrawn coins that fit the scores as well",
        highlight=False,
    )
    console.print(f"assumes {'; '.join(bounds[0].claim.assumptions)}", highlight=False)
    console.print(CAUTION, highlight=False)
    return 0


def read_scores(path: str) -> tuple[list[float], list[bool], list[str]]:
    """Return scores, coins and ids of a CSV file with columns ``score``, ``included`` and perhaps ``id``.

    Raises:
        ConfigurationError: no such file, a column or a value that is missing or cannot be read.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"cannot read {path}: {error}; give a CSV file of score and included"
        ) from error
    reader = csv.DictReader(text.splitlines())
    columns = [name.strip() for name in reader.fieldnames or []]
    reader.fieldnames = columns
    absent = [name for name in ("score", "included") if name not in columns]
    if absent:
        raise ConfigurationError(
            f"{path} has columns {', '.join(columns) or 'none'} and lacks {', '.join(absent)}; "
            "name them score and included"
        )
    values: list[float] = []
    coins: list[bool] = []
    ids: list[str] = []
    for number, row in enumerate(reader, start=2):
        score, coin = (row["score"] or "").strip(), (row["included"] or "").strip().lower()
        try:
            values.append(float(score))
        except ValueError as error:
            raise ConfigurationError(f"{path} line {number}: score {score!r} is no number") from error
        if coin not in _TRUE | _FALSE:
            raise ConfigurationError(f"{path} line {number}: included {coin!r}; give 1 or 0")
        coins.append(coin in _TRUE)
        # Zero-padded so that ids without a name of their own break ties in the order of the file.
        ids.append((row.get("id") or "").strip() if "id" in columns else f"{number:012d}")
    return values, coins, ids
