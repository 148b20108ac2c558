"""The figures of the HTML report, each with its numbers as a table and a text alternative."""

from __future__ import annotations

from memaudit.report.figure_parts import ReportFigure, Table
from memaudit.report.figures_course import extraction, timeline
from memaudit.report.figures_membership import repetition, roc, scores
from memaudit.report.schema import Report

__all__ = ["ReportFigure", "Table", "figures"]


def figures(report: Report) -> list[ReportFigure]:
    """Return the figures for which the report has numbers, in reading order.

    Example:
        >>> from memaudit.report.build import build_report
        >>> from memaudit.report.examples import example_inputs
        >>> [figure.name for figure in figures(build_report(example_inputs()))]
        ['roc', 'scores', 'repetition']
    """
    drawn = (roc(report), scores(report), repetition(report), timeline(report), extraction(report))
    return [figure for figure in drawn if figure is not None]
