"""The figures of the HTML report, each with its numbers as a table and a text alternative."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memaudit.report.numbers import percent
from memaudit.report.schema import Report
from memaudit.report.svg import STYLE, figure_svg
from memaudit.stats.arrays import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMBER, HELD_OUT, CONTROL, TARGET = "#c2410c", "#1d4ed8", "#52525b", "#111827"
MOST_DOTS = 300
"""Most dots a row of the score figure; of more scores evenly spaced quantiles are drawn."""

ROC_RATES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Table:
    """Column names and rows of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ReportFigure:
    """A figure with everything that stands beside it."""

    name: str
    title: str
    svg: str
    caption: str
    table: Table


def figures(report: Report) -> list[ReportFigure]:
    """Return the figures for which the report has numbers, in reading order."""
    drawn = (roc(report), scores(report), repetition(report), timeline(report), extraction(report))
    return [figure for figure in drawn if figure is not None]


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
        axes.axvline(
            report.target_fpr, color=TARGET, linewidth=1, linestyle=":", label=_rate_name(report.target_fpr)
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
    return _figure(
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
    return _figure(
        "scores",
        "Scores of members, held-out canaries and controls",
        f"{words}." + ("" if threshold is None else f" Threshold {threshold:.3g}."),
        "One dot a canary (of more than 300 a row: evenly spaced quantiles), a bar at the median. Right of the dotted "
        "line is detected. Held-out canaries and controls were not trained on.",
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
    label = f"TPR at {percent(report.target_fpr)} FPR" if shown else "AUC (no TPR: the headline is refused)"

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
        axes.axhline(level, color="#777777", linestyle="--", linewidth=1)
        axes.annotate(
            "chance",
            (len(known) - 0.35, level),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=9,
            ha="right",
            va="bottom",
            color="#555555",
        )
        axes.set_xticks(range(len(known)), [name for name, *_ in known])
        axes.set(
            xlim=(-0.5, len(known) - 0.3), ylim=(-0.03, 1.05), xlabel="repetitions in training", ylabel=label
        )

    table = tuple(
        (
            name,
            str(tier.n),
            "–" if tier.detected is None else str(tier.detected),
            _value(tier.tpr),
            _range(tier.ci_low, tier.ci_high),
            _value(tier.auc),
            _range(tier.auc_ci_low, tier.auc_ci_high),
        )
        for name, tier in tiers
    )
    words = "; ".join(f"{name}: {value:.2g} ({low:.2g} to {high:.2g})" for name, value, low, high in known)
    return _figure(
        "repetition",
        "Detection by repetition",
        f"{label}: {words}.",
        f"{label}, with {percent(found.ci_level)} intervals, all tiers at the pooled threshold. 1x is the closest to "
        "an ordinary record.",
        Table(("tier", "n", "detected", "TPR", "interval", "AUC", "interval"), table),
        draw,
    )


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
            _value(_float(entry.get("epoch"))),
            _value(_float(entry.get("tpr_at_target_fpr"))),
            _range(_float(entry.get("ci_low")), _float(entry.get("ci_high"))),
            _value(_float(entry.get("auc"))),
            _value(_float(entry.get("regurgitation_rate"))),
            _value(_float(entry.get("seconds"))),
        )
        for entry in entries
    )
    return _figure(
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
    return _figure(
        "extraction",
        "Probabilistic extraction",
        f"Share of inserted canaries extracted, scheme {schemes[0]}: {words}.",
        f"Share of canaries that n independent samples contain with probability {chosen[0].p:g} or more, scheme "
        f"{schemes[0]} (temperature, top-k, top-p), read off the scoring forward. The table has the other schemes.",
        Table(("scheme", "given", "canaries", *(f"n = {curves[0].n[index]:g}" for index in at)), table),
        draw,
    )


def _figure(
    name: str,
    title: str,
    words: str,
    caption: str,
    table: Table,
    draw: Callable[[Axes], None],
    height: float = 3.5,
) -> ReportFigure:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        # 5.4 inches are about as wide as a phone at the page's text size, so labels stay readable there.
        figure = Figure(figsize=(5.4, height), layout="constrained")
        draw(figure.add_subplot())
        drawn = figure_svg(figure, name, title, words)
    return ReportFigure(name, title, drawn, caption, table)


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


def _prefix(prefix: str) -> str:
    return "context alone" if prefix == "context" else f"{percent(float(prefix))} of the secret"


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _range(low: float | None, high: float | None) -> str:
    return "–" if low is None or high is None else f"{low:.3g} to {high:.3g}"


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
