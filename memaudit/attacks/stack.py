"""stack: a logistic combination of attacks, cross-fitted so that no record's score saw its own label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from memaudit.errors import ConfigurationError
from memaudit.seeds import derive_seed

Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacked:
    """Cross-fitted scores (log-odds) by id, each record's fold, the folds' seed, and weights by attack and fold."""

    scores: dict[str, float]
    folds: dict[str, int]
    seed: int
    weights: dict[str, tuple[float, ...]]


def stack(
    scores: Mapping[str, Mapping[str, float]],
    labels: Mapping[str, int],
    *,
    folds: int = 5,
    seed: int = 0,
    ridge: float = 1.0,
) -> Stacked:
    """Combine attacks by ridge-penalised logistic regression, each fold scored by a fit on the others.

    Records that lack a label or a score of some attack are left out. Features are standardised by the records
    that are fitted on, and each fold's log-odds by the mean and spread of its fit, so that folds compare.

    Args:
        scores: by attack and record id.
        labels: 1 for members, 0 for non-members, by id.
        folds: number of folds; each holds members and non-members in the same share.
        seed: root seed; a record's fold depends on its id and this alone.
        ridge: penalty, in units of the standardised features.

    Raises:
        ConfigurationError: fewer than two attacks, or fewer members or non-members than folds.

    Example:
        >>> values = {"a": {str(i): float(i % 2 + i / 100) for i in range(40)},
        ...           "b": {str(i): float(-i) for i in range(40)}}
        >>> found = stack(values, {str(i): i % 2 for i in range(40)})
        >>> min(found.scores[str(i)] for i in range(1, 40, 2)) > max(found.scores[str(i)] for i in range(0, 40, 2))
        True
    """
    names = sorted(scores)
    ids = sorted(id for id in labels if all(id in scores[name] for name in names))
    if len(names) < 2:
        raise ConfigurationError(f"stack combines at least two attacks; there is {names or 'none'}")
    seed_used = derive_seed(seed, "stack")
    place: dict[str, int] = {}
    for label in (0, 1):
        group = sorted((id for id in ids if labels[id] == label), key=lambda id: derive_seed(seed_used, id))
        if len(group) < folds:
            raise ConfigurationError(
                f"stack with {folds} folds needs {folds} records of label {label}; {len(group)} are scored"
            )
        place.update({id: i % folds for i, id in enumerate(group)})
    x = np.array([[scores[name][id] for name in names] for id in ids])
    y = np.array([labels[id] for id in ids], dtype=np.float64)
    fold = np.array([place[id] for id in ids])
    result = np.zeros(len(ids))
    weights = []
    for one in range(folds):
        inside = fold != one
        centre, spread = _scale(x[inside])
        beta = _fit((x[inside] - centre) / spread, y[inside], ridge)
        odds = _odds((x - centre) / spread, beta)
        around, width = odds[inside].mean(), odds[inside].std() or 1.0
        result[fold == one] = (odds[fold == one] - around) / width
        weights.append(beta[1:])
    return Stacked(
        scores=dict(zip(ids, result.tolist(), strict=True)),
        folds=place,
        seed=seed_used,
        weights={name: tuple(float(w[i]) for w in weights) for i, name in enumerate(names)},
    )


def _scale(x: Matrix) -> tuple[Matrix, Matrix]:
    """Centre and spread of each feature, robust to the huge scores that ratios of losses can take."""
    centre = np.median(x, axis=0)
    spread = np.percentile(x, 90, axis=0) - np.percentile(x, 10, axis=0)
    return centre, np.where(spread > 0, spread, 1.0)


def _odds(x: Matrix, beta: Matrix) -> Matrix:
    odds: Matrix = beta[0] + np.clip(x, -10, 10) @ beta[1:]
    return odds


def _fit(x: Matrix, y: Matrix, ridge: float) -> Matrix:
    balance = np.where(y == 1, 0.5 / max(y.sum(), 1), 0.5 / max((1 - y).sum(), 1))

    def loss(beta: Matrix) -> tuple[float, Matrix]:
        odds = _odds(x, beta)
        error = balance * (expit(odds) - y)
        penalty = ridge / len(y)
        value = float(
            (balance * (np.logaddexp(0, odds) - y * odds)).sum() + 0.5 * penalty * (beta[1:] ** 2).sum()
        )
        slope = np.concatenate([[error.sum()], np.clip(x, -10, 10).T @ error + penalty * beta[1:]])
        return value, slope

    found = minimize(loss, np.zeros(x.shape[1] + 1), jac=True, method="L-BFGS-B")
    return np.asarray(found.x, dtype=np.float64)


def usable(scores: Mapping[str, Mapping[str, float]], labels: Mapping[str, int], folds: int = 5) -> bool:
    """Whether there are attacks and labelled records enough to stack."""
    ids = [id for id in labels if all(id in column for column in scores.values())]
    counts: Sequence[int] = [sum(labels[id] == label for id in ids) for label in (0, 1)]
    return len(scores) >= 2 and min(counts) >= 2 * folds
