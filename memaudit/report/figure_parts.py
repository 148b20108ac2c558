"""What the report's figures share: how one is drawn, its table, its colours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memaudit.report.svg import STYLE, figure_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEMBER, HELD_OUT, CONTROL, TARGET = "#c2410c", "#1d4ed8", "#52525b", "#111827"


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


def draw_figure(
    name: str,
    title: str,
    words: str,
    caption: str,
    table: Table,
    draw: Callable[[Axes], None],
    height: float = 3.5,
) -> ReportFigure:
    """Draw one figure and put title, words, caption and table beside it; matplotlib is imported here alone."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        # 5.4 inches are about as wide as a phone at the page's text size, so labels stay readable there.
        figure = Figure(figsize=(5.4, height), layout="constrained")
        draw(figure.add_subplot())
        drawn = figure_svg(figure, name, title, words)
    return ReportFigure(name, title, drawn, caption, table)


def value_text(value: float | None) -> str:
    """Three significant digits, a dash for None."""
    return "–" if value is None else f"{value:.3g}"


def range_text(low: float | None, high: float | None) -> str:
    """Both limits, a dash where one is None."""
    return "–" if low is None or high is None else f"{low:.3g} to {high:.3g}"
