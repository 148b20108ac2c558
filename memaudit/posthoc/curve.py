"""The memorisation curve: detection, extraction and epsilon of one run's checkpoints against the step."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

import memaudit
from memaudit.errors import ReportError
from memaudit.files import write_atomic
from memaudit.report.build import load_report

CURVE_VERSION = 1
CURVE_NAME = "memaudit-curve"

SERIES = (
    ("tpr", "TPR at the target FPR", "tpr_low", "tpr_high"),
    ("auc", "AUC", None, None),
    ("extraction_rate", "inserted canaries emitted", "extraction_low", "extraction_high"),
    ("epsilon", "epsilon, lower bound", None, None),
)


class Point(BaseModel):
    """One checkpoint's headline figures; null where the report has none, for the reason that it gives.

    Rates are shares in [0, 1] with their exact 95% limits; ``epsilon`` is a lower bound at
    ``epsilon_delta``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int | None
    report: str
    report_sha256: str | None
    weights: str | None
    tpr: float | None
    tpr_low: float | None
    tpr_high: float | None
    auc: float | None
    extraction_rate: float | None
    extraction_low: float | None
    extraction_high: float | None
    epsilon: float | None
    epsilon_delta: float | None
    n_members: int
    headline_valid: bool


class Curve(BaseModel):
    """A sweep over checkpoints: points in order of step, and the checkpoints that are missing, by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = CURVE_VERSION
    tool_version: str
    manifest_sha256: str
    target_fpr: float
    headline_attack: str
    points: tuple[Point, ...]
    missing: tuple[str, ...] = ()


def build_curve(reports: Sequence[Path], missing: Sequence[str] = ()) -> Curve:
    """Join reports into a curve.

    Args:
        reports: paths of reports of one manifest, target rate and headline attack.
        missing: names of checkpoints that have no report.

    Raises:
        ReportError: there are none, one is damaged, or they are not of one audit design.
    """
    if not reports:
        raise ReportError("no reports to join; audit at least one checkpoint first")
    loaded = [(path, load_report(path)) for path in reports]
    first_path, first = loaded[0]
    for path, report in loaded:
        for name, one, other in (
            ("manifests", first.canary_manifest_hash, report.canary_manifest_hash),
            ("target rates", first.target_fpr, report.target_fpr),
            ("headline attacks", first.membership.headline_attack, report.membership.headline_attack),
            ("versions of memaudit", first.tool_version, report.tool_version),
        ):
            if one != other:
                raise ReportError(
                    f"reports of different {name} do not make a curve: {first_path} has {str(one)[:16]}, "
                    f"{path} has {str(other)[:16]}; audit them alike"
                )
    points = sorted((_point(path, report.to_json()) for path, report in loaded), key=_by_step)
    return Curve(
        tool_version=memaudit.__version__,
        manifest_sha256=first.canary_manifest_hash,
        target_fpr=first.target_fpr,
        headline_attack=first.membership.headline_attack,
        points=tuple(points),
        missing=tuple(missing),
    )


def _by_step(point: Point) -> tuple[bool, int, str]:
    return (point.step is None, point.step or 0, point.report)


def _point(path: Path, report: Mapping[str, Any]) -> Point:
    found, emitted = report["membership"], report["regurgitation"]
    overall = emitted.get("overall") or {}
    epsilon, delta = epsilon_of(report.get("privacy") or {})
    return Point(
        step=report["step"],
        report=str(path),
        report_sha256=report.get("report_sha256"),
        weights=(report.get("model") or {}).get("fingerprint"),
        tpr=found.get("tpr_at_target_fpr"),
        tpr_low=found.get("ci_low"),
        tpr_high=found.get("ci_high"),
        auc=found.get("auc"),
        extraction_rate=overall.get("rate"),
        extraction_low=overall.get("ci_low"),
        extraction_high=overall.get("ci_high"),
        epsilon=epsilon,
        epsilon_delta=delta,
        n_members=int(found.get("n_members") or 0),
        headline_valid=bool(found.get("headline_valid")),
    )


def epsilon_of(privacy: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the report's lower bound on epsilon and its delta: the largest delta below 1e-4 that it has.

    Example:
        >>> epsilon_of({"result": {"epsilon": [{"delta": 0.0, "value": 0.5}, {"delta": 1e-5, "value": 0.6}]}})
        (0.6, 1e-05)
        >>> epsilon_of({"result": None})
        (None, None)
    """
    bounds = (privacy.get("result") or {}).get("epsilon") or []
    usable = [one for one in bounds if one.get("value") is not None and float(one.get("delta", 1.0)) < 1e-4]
    if not usable:
        return None, None
    chosen = max(usable, key=lambda one: float(one["delta"]))
    return float(chosen["value"]), float(chosen["delta"])


def write_curve(curve: Curve, folder: Path) -> tuple[Path, Path]:
    """Write the curve as JSON and as one HTML page without anything fetched; return both paths."""
    document = json.dumps(curve.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"
    as_json = write_atomic(folder / f"{CURVE_NAME}.json", document)
    as_html = write_atomic(folder / f"{CURVE_NAME}.html", render_html(curve))
    return as_json, as_html


def render_html(curve: Curve) -> str:
    """Return the curve as one HTML page with its plots inlined as SVG."""
    import jinja2

    source = resources.files("memaudit.posthoc").joinpath("curve.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    plots = [(title, _plot(curve, name, title, low, high)) for name, title, low, high in SERIES]
    return environment.from_string(source).render(curve=curve, plots=plots)


def _plot(curve: Curve, name: str, title: str, low: str | None, high: str | None) -> str:
    """Draw one series with its limits; empty where no checkpoint has it."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    points = [p for p in curve.points if p.step is not None and getattr(p, name) is not None]
    if not points:
        return ""
    steps = [float(p.step or 0) for p in points]
    values = [getattr(p, name) for p in points]
    figure, axes = pyplot.subplots(figsize=(5.2, 2.8))
    if low is not None and high is not None:
        floor = [getattr(p, low) if getattr(p, low) is not None else getattr(p, name) for p in points]
        roof = [getattr(p, high) if getattr(p, high) is not None else getattr(p, name) for p in points]
        axes.fill_between(steps, floor, roof, alpha=0.2, linewidth=0)
    axes.plot(steps, values, marker="o")
    axes.set_xlabel("step")
    axes.set_ylabel(title)
    axes.set_ylim(bottom=0.0)
    if name != "epsilon":
        axes.set_ylim(top=1.02)
    axes.grid(alpha=0.3)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "memaudit"}):  # the same curve gives the same bytes
        figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    text = drawn.getvalue()
    return text[text.index("<svg") :]
