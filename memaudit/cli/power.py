"""memaudit power: what an audit of a given size could detect, before any GPU is spent on it."""

from __future__ import annotations

import json
import math

from memaudit.errors import ConfigurationError
from memaudit.stats.power import (
    AuditPower,
    audit_power,
    canaries_for_ceiling,
    canaries_for_detection,
    operating_point,
)


def power(
    canaries: int = 1000,
    alpha: float = 0.05,
    delta: float = 0.0,
    power: float = 0.8,
    epsilon: float | None = None,
    controls: int | None = None,
    fpr: float = 0.01,
    json_output: bool = False,
) -> int:
    """Say what an audit with so many canaries could detect, at which epsilon, and how many a given epsilon needs.

    Args:
        canaries: number of canaries whose coins are flipped; half of them are trained on, on average.
        alpha: significance of every bound.
        delta: the delta at which epsilon is bounded.
        power: probability with which a leak should be found.
        epsilon: also say how many canaries this epsilon needs.
        controls: records that are never trained on and calibrate the threshold; the coin's losers where not given.
        fpr: false-positive rate of the operating point.
        json_output: print JSON instead of a table.

    Returns:
        0.
    """
    found = audit_power(canaries, alpha, power=power, delta=delta)
    members = canaries // 2
    n_controls = controls if controls is not None else canaries - members
    if n_controls < 0:
        raise ConfigurationError(f"controls is {controls}; give at least 0")
    point = operating_point(fpr, n_controls, members)
    wanted = None
    if epsilon is not None:
        wanted = {
            "epsilon": epsilon,
            "canaries_to_detect": canaries_for_detection(epsilon, alpha, power=power),
            "canaries_to_show": canaries_for_ceiling(epsilon, alpha, delta),
        }
    if json_output:
        print(
            json.dumps(
                {"audit": found.to_dict(), "operating_point": point.to_dict(), "wanted": wanted}, indent=2
            )
        )
        return 0
    rows = _rows(found)
    rows += [
        (
            f"controls for a rate of {100 * fpr:g} %",
            f"{point.controls_needed} (mean rate), {point.controls_needed_pac} (95 % sure); here {n_controls}, "
            + ("enough" if point.resolvable else "too few"),
        ),
        ("TPR shown if every member is detected", f"at least {point.tpr_low_if_all_detected:.3f}"),
    ]
    if wanted is not None:
        rows.append((f"canaries to detect epsilon {epsilon:g}", f"{wanted['canaries_to_detect']:,}"))
        rows.append(
            (
                f"canaries to show epsilon >= {epsilon:g}",
                f"{wanted['canaries_to_show']:,} (every guess right)",
            )
        )
    _print(found, rows)
    return 0


def _rows(found: AuditPower) -> list[tuple[str, str]]:
    rows = [("correct guesses for a bound above 0", f"{found.critical_correct} of {found.m}")]
    accuracy, detectable = found.detectable_accuracy, found.detectable_epsilon
    if accuracy is None or detectable is None:
        rows[0] = ("correct guesses for a bound above 0", f"more than all {found.m}: nothing can be shown")
    else:
        by_plan = found.plan_detectable_epsilon
        plan = "nothing" if by_plan is None else f"{by_plan:.4f}"
        rows += [
            ("smallest accuracy found", f"{accuracy:.4f} with probability {found.power:g}"),
            ("as epsilon of randomised response", f"{detectable:.4f}"),
            ("the same by the default plan of pairs", plan),
            ("as mu of a Gaussian mechanism", f"{found.detectable_mu:.4f} (AUC {found.detectable_auc:.4f})"),
        ]
    rows.append(("largest epsilon that can be shown", f"{found.ceiling:.4f}"))
    if math.isfinite(found.ceiling_mu):
        rows.append(("largest mu that can be shown", f"{found.ceiling_mu:.4f}"))
    return rows


def _print(found: AuditPower, rows: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{found.m} canaries, significance {found.alpha:g}, delta {found.delta:g}",
        show_header=False,
        title_justify="left",
    )
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)
