"""Figures of a run: ROC on log axes, and the distributions of scores; no secret's text in either."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.files import write_atomic
from memaudit.stats.roc import roc_curve

if TYPE_CHECKING:
    from memaudit.posthoc.membership.result import AttackResult

ENDINGS = (".svg", ".png", ".pdf")


def _split(result: AttackResult, name: str) -> tuple[Any, Any]:
    column = result.scores[name]
    scored = [(column[id], one) for id, one in result.labels.items() if id in column]
    return np.array([score for score, one in scored if one == 1]), np.array(
        [s for s, one in scored if one == 0]
    )


def roc_figure(result: AttackResult) -> Any:
    """Draw the ROC of every attack that has metrics, both axes logarithmic, best AUC first in the legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axes = figure.add_subplot()
    names = sorted(result.metrics, key=lambda name: -result.metrics[name].auc)
    floor = 1.0
    for i, name in enumerate(names):
        members, nonmembers = _split(result, name)
        curve = roc_curve(members, nonmembers)
        floor = min(floor, 0.5 / max(len(members), len(nonmembers)))
        axes.step(
            np.maximum(curve.fpr, floor),
            np.maximum(curve.tpr, floor),
            where="post",
            linestyle=("-", "--", ":", "-.")[i // 10 % 4],
            label=f"{name} ({result.metrics[name].auc:.3f})",
        )
    axes.plot([floor, 1], [floor, 1], color="0.7", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1.05))
    axes.set(xlabel="false-positive rate", ylabel="true-positive rate", title="ROC (AUC)")
    axes.legend(fontsize=7, loc="lower right")
    return figure


def distribution_figure(result: AttackResult) -> Any:
    """Draw a histogram of the scores of members and non-members for each attack, the extreme 1% clipped."""
    from matplotlib.figure import Figure

    names = list(result.metrics)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.4 * rows), layout="constrained")
    for i, name in enumerate(names):
        members, nonmembers = _split(result, name)
        axes = figure.add_subplot(rows, columns, i + 1)
        low, high = np.percentile(np.concatenate([members, nonmembers]), [1, 99])
        bins = np.linspace(low, high if high > low else low + 1, 31).tolist()
        for scores, label in ((nonmembers, "non-members"), (members, "members")):
            axes.hist(np.clip(scores, bins[0], bins[-1]), bins=bins, density=True, alpha=0.55, label=label)
        axes.set_title(name, fontsize=8)
        axes.tick_params(labelsize=6)
        if i == 0:
            axes.legend(fontsize=6)
    return figure


def save(figure: Any, path: str | Path) -> Path:
    """Write a figure to a file, whole or not at all.

    Raises:
        ConfigurationError: the ending is none of .svg, .png, .pdf.
    """
    target = Path(path)
    if target.suffix not in ENDINGS:
        raise ConfigurationError(
            f"cannot write a figure to {target}; end the name in one of {', '.join(ENDINGS)}"
        )
    buffer = io.BytesIO()
    undated = {"Date": None} if target.suffix == ".svg" else None
    figure.savefig(buffer, format=target.suffix[1:], dpi=150, metadata=undated)
    return write_atomic(target, buffer.getvalue())
