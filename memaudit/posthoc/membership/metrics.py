"""Metrics of one attack: AUC, TPR at low FPR, FPR at high TPR, each with its interval; by length and by source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from memaudit.stats.roc import auc, delong_interval, fpr_at_tpr, tpr_at_fpr

MIN_SIDE = 2
"""Members and non-members below which no metric is made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """What one attack's scores say about labels; every rate with the limits of its interval.

    TPR at an FPR takes its threshold from the non-members by an order statistic whose mean FPR is at most that
    rate; ``tpr_at_1_resolved`` is False where there are too few non-members for it. FPR is taken at the highest
    threshold that detects 95% of the members.
    """

    auc: float
    auc_low: float
    auc_high: float
    tpr_at_1: float
    tpr_at_1_low: float
    tpr_at_1_high: float
    tpr_at_1_resolved: bool
    tpr_at_5: float
    tpr_at_5_low: float
    tpr_at_5_high: float
    tpr_at_5_resolved: bool
    fpr_at_95: float
    fpr_at_95_low: float
    fpr_at_95_high: float
    n_members: int
    n_nonmembers: int
    n_unscorable: int = 0

    @property
    def inverted(self) -> bool:
        """Whether the attack orders labels the wrong way round beyond chance: that leaks as well."""
        return self.auc_high < 0.5

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary."""
        return {**asdict(self), "inverted": self.inverted}


def metrics_of(
    scores: Mapping[str, float],
    labels: Mapping[str, int],
    *,
    level: float = 0.95,
    unscorable: int = 0,
    only: Sequence[str] | None = None,
) -> Metrics | None:
    """Compute the metrics of one attack; None with fewer than two members or two non-members.

    Args:
        scores: by record id, higher for more member-like.
        labels: 1 for members, 0 for non-members; records without one are left out.
        level: confidence of each interval.
        unscorable: labelled records without a score.
        only: ids that count; None for all.

    Example:
        >>> found = metrics_of({"a": 2.0, "b": 1.0, "c": 0.0, "d": -1.0}, {"a": 1, "b": 1, "c": 0, "d": 0})
        >>> found.auc, found.tpr_at_1_resolved
        (1.0, False)
    """
    ids = [id for id in (scores if only is None else only) if id in scores and id in labels]
    members = np.array([scores[id] for id in ids if labels[id] == 1])
    nonmembers = np.array([scores[id] for id in ids if labels[id] == 0])
    if min(len(members), len(nonmembers)) < MIN_SIDE:
        return None
    low, high = delong_interval(members, nonmembers, level)
    at_1 = tpr_at_fpr(members, nonmembers, 0.01, level=level)
    at_5 = tpr_at_fpr(members, nonmembers, 0.05, level=level)
    at_95 = fpr_at_tpr(members, nonmembers, 0.95, level=level)
    return Metrics(
        auc=auc(members, nonmembers),
        auc_low=low,
        auc_high=high,
        tpr_at_1=at_1.tpr,
        tpr_at_1_low=at_1.ci_low,
        tpr_at_1_high=at_1.ci_high,
        tpr_at_1_resolved=at_1.identified,
        tpr_at_5=at_5.tpr,
        tpr_at_5_low=at_5.ci_low,
        tpr_at_5_high=at_5.ci_high,
        tpr_at_5_resolved=at_5.identified,
        fpr_at_95=at_95.fpr,
        fpr_at_95_low=at_95.ci_low,
        fpr_at_95_high=at_95.ci_high,
        n_members=len(members),
        n_nonmembers=len(nonmembers),
        n_unscorable=unscorable,
    )


def length_groups(tokens: Mapping[str, int]) -> dict[str, list[str]]:
    """Cut records into thirds by their number of scored tokens; fewer groups where lengths are equal.

    Example:
        >>> sorted(length_groups({"a": 1, "b": 5, "c": 9}))
        ['tokens 1-1', 'tokens 5-5', 'tokens 9-9']
    """
    if not tokens:
        return {}
    values = np.array(list(tokens.values()))
    edges = np.unique(np.quantile(values, [1 / 3, 2 / 3], method="lower"))
    part = np.searchsorted(edges, values, side="left")
    groups: dict[str, list[str]] = {}
    ids = np.array(list(tokens))
    for one in sorted(set(part.tolist())):
        inside = part == one
        name = f"tokens {values[inside].min()}-{values[inside].max()}"
        groups[name] = ids[inside].tolist()
    return groups
