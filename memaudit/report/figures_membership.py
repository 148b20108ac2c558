"""Figures of the membership verdict: the ROC, every score, detection by repetition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memaudit.report.figure_parts import (
    CONTROL,
    HELD_OUT,
    MEMBER,
    TARGET,
    ReportFigure,
    Table,
    draw_figure,
    range_text,
    value_text,
)
from memaudit.report.numbers import percent
from memaudit.report.schema import Report
from memaudit.stats.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_DOTS = 300
"""Most dots a row of the score figure; of more scores evenly spaced quantiles are drawn."""

ROC_RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def roc(report: Report) -> ReportFigure | None:
    """The ROC on logarithmic axes with its simultaneous band, and the target false-positive rate."""
    found = report.membership
    if not found.roc:
        return None
    fpr = np.array([point.fpr for point in found.roc])
    tpr = np.array([point.tpr for point in found.roc])
    low = np.array([point.tpr_low for point in found.roc])
    high = np.array([point.tpr_high for point in found.roc])
    left, floor = 0.5 / found.n_controls, 0.5 / found.n_members

    def draw(axes: Axes) -> None:
        x = np.maximum(fpr, left)
        axes.fill_between(
            x,
            np.maximum(low, floor),
            np.maximum(high, floor),
            step="post",
            color=MEMBER,
            alpha=0.14,
            linewidth=0,
        )
        axes.step(x, np.maximum(tpr, floor), where="post", color=MEMBER, linewidth=1.8, label="attack")
        grid = np.geomspace(left, 1, 60)
        axes.plot(grid, np.maximum(grid, floor), color="#777777", linewidth=1, linestyle="--", label="chance")
        if report.target_fpr >= left:
            axes.axvline(
                report.target_fpr,
                color=TARGET,
                linewidth=1,
                linestyle=":",
                label=_rate_name(report.target_fpr),
            )
        axes.set(xscale="log", yscale="log", xlim=(left, 1), ylim=(floor, 1.15))
        axes.set(xlabel="false-positive rate", ylabel="true-positive rate")
        _percent_axis(axes.xaxis, left)
        _percent_axis(axes.yaxis, floor)
        axes.legend(loc="lower right")

    rows = []
    for rate in sorted({*ROC_RATES, report.target_fpr}):
        if rate < 1.0 / found.n_controls:
            continue
        index = int(np.searchsorted(fpr, rate, side="right")) - 1
        rows.append((percent(rate), percent(tpr[index]), percent(low[index]), percent(high[index])))
    area = "not known" if found.auc is None else f"{found.auc:.3g}"
    words = f"True-positive rate over false-positive rate; AUC {area}."
    if rows:
        words += f" At {rows[0][0]} false positives {rows[0][1]} of the members lie above; at {rows[-1][0]} "
        f"{rows[-1][1]}."
    return draw_figure(
        "roc",
        "ROC of the headline attack",
        words,
        f"{found.n_members} members against {found.n_controls} canaries that were not trained on; shaded: "
        f"{found.roc_band}. Left end: fewer than one false positive. Descriptive: the headline's threshold comes from "
        "an order statistic, not from this curve.",
        Table(("FPR", "TPR", "band from", "to"), tuple(rows)),
        draw,
    )


def scores(report: Report) -> ReportFigure | None:
    """Every canary's headline score, a row a group, with the threshold."""
    rows = _score_groups(report)
    if not rows:
        return None
    threshold = report.membership.threshold

    def draw(axes: Axes) -> None:
        for place, (_, values, colour) in enumerate(reversed(rows)):
            shown = _thinned(values)
            spread = (np.arange(shown.size) * 0.61803398875) % 1.0 - 0.5
            axes.plot(
                shown, place + 0.6 * spread, "o", color=colour, markersize=3.6, alpha=0.65, markeredgewidth=0
            )
            axes.plot([np.median(values)] * 2, [place - 0.36, place + 0.36], color=colour, linewidth=2)
        if threshold is not None:
            axes.axvline(threshold, color=TARGET, linewidth=1, linestyle=":")
            axes.annotate(
                "threshold",
                (threshold, len(rows) - 0.45),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=9,
                va="bottom",
            )
        axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
        axes.set(ylim=(-0.6, len(rows) - 0.1), xlabel=f"score ({report.membership.headline_attack})")
        axes.grid(visible=False, axis="y")

    table = []
    for name, values, _ in rows:
        q = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0])
        above = "" if threshold is None else str(int((values > threshold).sum()))
        table.append((name, str(values.size), *(f"{value:.3g}" for value in q), above))
    words = "; ".join(f"{row[0]}: {row[1]} scores, median {row[4]}" for row in table)
    return draw_figure(
        "scores",
        "Scores of members, held-out canaries and controls",
        f"{words}." + ("" if threshold is None else f" Threshold {threshold:.3g}."),
        "One dot a canary (of more than 300 a row: evenly spaced quantiles), a bar at the median. "
        + ("No threshold is identified. " if threshold is None else "Right of the dotted line is detected. ")
        + "Held-out canaries and controls were not trained on.",
        Table(("group", "n", "min", "25%", "median", "75%", "max", "above"), tuple(table)),
        draw,
        height=1.3 + 0.42 * len(rows),
    )


def repetition(report: Report) -> ReportFigure | None:
    """TPR by repetition with exact intervals, at the one pooled threshold; AUC where there is no TPR."""
    found = report.membership
    tiers = [(name, tier) for name, tier in found.by_repetition.items() if tier.n]
    shown = found.headline_valid
    points = [
        (name, tier.tpr, tier.ci_low, tier.ci_high)
        if shown
        else (name, tier.auc, tier.auc_ci_low, tier.auc_ci_high)
        for name, tier in tiers
    ]
    known = [(n, v, lo, hi) for n, v, lo, hi in points if v is not None and lo is not None and hi is not None]
    if not known:
        return None
    label = f"TPR at {percent(report.target_fpr)} FPR" if shown else "AUC"

    def draw(axes: Axes) -> None:
        for place, (name, value, low, high) in enumerate(known):
            colour = TARGET if name == "pooled" else MEMBER
            axes.errorbar(
                place,
                value,
                yerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
                fmt="o",
                color=colour,
                capsize=4,
                markersize=6,
                linewidth=1.6,
            )
            axes.annotate(
                f"{value:.2g}",
                (place, value),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        level = report.target_fpr if shown else 0.5
        highest = max(high for *_, high in known)
        top = 1.0 if highest > 0.5 else 1.3 * max(highest, level)
        axes.axhline(level, color="#777777", linestyle="--", linewidth=1)
        axes.annotate(
            "chance",
            (-0.47, level),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=9,
            va="bottom",
            color="#555555",
        )
        axes.set_xticks(range(len(known)), [name for name, *_ in known])
        axes.set(
            xlim=(-0.5, len(known) - 0.3),
            ylim=(-0.03 * top, 1.05 * top),
            xlabel="repetitions in training",
            ylabel=label,
        )

    table = tuple(
        (
            name,
            str(tier.n),
            "–" if tier.detected is None else str(tier.detected),
            value_text(tier.tpr),
            range_text(tier.ci_low, tier.ci_high),
            value_text(tier.auc),
            range_text(tier.auc_ci_low, tier.auc_ci_high),
        )
        for name, tier in tiers
    )
    words = "; ".join(f"{name}: {value:.2g} ({low:.2g} to {high:.2g})" for name, value, low, high in known)
    return draw_figure(
        "repetition",
        "Detection by repetition",
        f"{label}: {words}.",
        f"{label}, with {percent(found.ci_level)} intervals, all tiers at the pooled threshold. 1x is the closest to "
        "an ordinary record." + ("" if shown else " No TPR is shown: the headline is refused."),
        Table(("tier", "n", "detected", "TPR", "interval", "AUC", "interval"), table),
        draw,
    )


def _score_groups(report: Report) -> list[tuple[str, Floats, str]]:
    attack = report.membership.headline_attack
    groups: dict[tuple[int, str], list[float]] = {}
    for row in report.per_canary:
        score = row.scores.get(attack)
        if score is None:
            continue
        key = (
            (row.repetitions, f"members {row.repetitions}x")
            if row.group == "member"
            else (-1, "held-out")
            if row.group == "held_out"
            else (-2, "controls")
        )
        groups.setdefault(key, []).append(score)
    colours = {-1: HELD_OUT, -2: CONTROL}
    return [
        (name, np.sort(np.array(values)), colours.get(rank, MEMBER))
        for (rank, name), values in sorted(groups.items(), key=lambda item: -item[0][0])
    ]


def _thinned(values: Floats) -> Floats:
    if values.size <= MOST_DOTS:
        return values
    kept = np.linspace(0, values.size - 1, MOST_DOTS).round().astype(int)
    return np.asarray(values[kept], dtype=np.float64)


def _percent_axis(axis: Any, lowest: float) -> None:
    ticks = [tick for tick in (1e-4, 1e-3, 1e-2, 1e-1, 1.0) if tick >= lowest]
    axis.set_ticks(ticks, [percent(tick) for tick in ticks])
    axis.set_minor_formatter(lambda value, position: "")


def _rate_name(rate: float) -> str:
    return f"{percent(rate)} FPR"
