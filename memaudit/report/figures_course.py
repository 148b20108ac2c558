"""Figures over an axis of their own: audits over training steps, extraction over the number of samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from memaudit.report.figure_parts import (
    CONTROL,
    HELD_OUT,
    MEMBER,
    ReportFigure,
    Table,
    draw_figure,
    range_text,
    value_text,
)
from memaudit.report.numbers import percent
from memaudit.report.schema import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def timeline(report: Report) -> ReportFigure | None:
    """TPR, AUC and regurgitation over the audits during training."""
    entries = [entry for entry in report.timeline if isinstance(entry.get("step"), int | float)]
    if not entries:
        return None
    lines = [
        ("TPR", "tpr_at_target_fpr", MEMBER, "-", "o"),
        ("AUC", "auc", HELD_OUT, "--", "s"),
        ("regurgitated", "regurgitation_rate", CONTROL, ":", "^"),
    ]

    def draw(axes: Axes) -> None:
        for name, key, colour, style, marker in lines:
            points = [(_float(entry["step"]), _float(entry.get(key))) for entry in entries]
            kept = [(x, y) for x, y in points if x is not None and y is not None]
            if kept:
                x, y = zip(*kept, strict=True)
                axes.plot(x, y, color=colour, linestyle=style, marker=marker, markersize=4.5, label=name)
        band = [(_float(e["step"]), _float(e.get("ci_low")), _float(e.get("ci_high"))) for e in entries]
        whole = [(x, lo, hi) for x, lo, hi in band if x is not None and lo is not None and hi is not None]
        if whole:
            x, low, high = zip(*whole, strict=True)
            axes.fill_between(x, low, high, color=MEMBER, alpha=0.13, linewidth=0)
        axes.set(ylim=(-0.03, 1.05), xlabel="training step", ylabel="rate")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")

    table = tuple(
        (
            f"{_float(entry['step']) or 0:g}",
            value_text(_float(entry.get("epoch"))),
            value_text(_float(entry.get("tpr_at_target_fpr"))),
            range_text(_float(entry.get("ci_low")), _float(entry.get("ci_high"))),
            value_text(_float(entry.get("auc"))),
            value_text(_float(entry.get("regurgitation_rate"))),
            value_text(_float(entry.get("seconds"))),
        )
        for entry in entries
    )
    return draw_figure(
        "timeline",
        "Memorisation over training",
        f"{len(entries)} audits; last: step {table[-1][0]}, TPR {table[-1][2]}, AUC {table[-1][4]}.",
        f"Each mark is one audit inside the training loop; shaded: the TPR's interval. TPR at "
        f"{percent(report.target_fpr)} FPR. A rate that was refused or not measured is left out.",
        Table(("step", "epoch", "TPR", "interval", "AUC", "regurgitated", "seconds"), table),
        draw,
    )


def extraction(report: Report) -> ReportFigure | None:
    """Share of canaries that n samples emit with even odds, over n."""
    curves = [curve for curve in report.extraction.curves if curve.p == 0.5] or report.extraction.curves
    if not curves:
        return None
    schemes = list(dict.fromkeys(curve.scheme for curve in curves))
    chosen = [curve for curve in curves if curve.scheme == schemes[0]]
    styles = ("-", "--", ":", "-.")

    def draw(axes: Axes) -> None:
        for index, curve in enumerate(chosen):
            style = styles[index % len(styles)]
            axes.plot(
                curve.n,
                curve.members,
                color=MEMBER,
                linestyle=style,
                label=f"members, {_prefix(curve.prefix)}",
            )
        last = chosen[-1]
        axes.plot(last.n, last.controls, color=CONTROL, label=f"never inserted, {_prefix(last.prefix)}")
        axes.set(xscale="log", ylim=(-0.03, 1.05), xlabel="samples n", ylabel="share extracted")
        axes.legend(loc="best")

    at = [index for index, n in enumerate(curves[0].n) if n in (1, 1e2, 1e4, 1e6, 1e9)]
    table = tuple(
        (curve.scheme, _prefix(curve.prefix), who, *(percent(values[index]) for index in at))
        for curve in curves
        for who, values in (("members", curve.members), ("never inserted", curve.controls))
    )
    words = "; ".join(
        f"{_prefix(curve.prefix)}: {percent(curve.members[at[0]])} in 1 sample, {percent(curve.members[at[-1]])} in "
        f"{curve.n[at[-1]]:.0e}"
        for curve in chosen
    )
    return draw_figure(
        "extraction",
        "Probabilistic extraction",
        f"Share of inserted canaries extracted, scheme {schemes[0]}: {words}.",
        f"Share of canaries that n independent samples contain with probability {chosen[0].p:g} or more, scheme "
        f"{schemes[0]} (temperature, top-k, top-p), read off the scoring forward. The table has the other schemes.",
        Table(("scheme", "given", "canaries", *(f"n = {curves[0].n[index]:g}" for index in at)), table),
        draw,
    )


def _prefix(prefix: str) -> str:
    return "context alone" if prefix == "context" else f"{percent(float(prefix))} of the secret"


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
