"""The folder of results of a run, and the table at its end."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memaudit import __version__
from memaudit.files import PRIVATE, write_atomic
from memaudit.posthoc.membership.plots import distribution_figure, roc_figure, save

if TYPE_CHECKING:
    from memaudit.posthoc.membership.metrics import Metrics
    from memaudit.posthoc.membership.result import AttackResult


def write(result: AttackResult, folder: str | Path) -> Path:
    """Write a run into a new sub-folder named by the time.

    metrics.json and metrics.csv, by_group.csv where there are groups, scores.csv (mode 0600: one row a record),
    metadata.json, and the figures roc and distributions as SVG and PNG.

    Returns:
        The new folder.
    """
    target = _fresh(Path(folder))
    found = result.to_dict()
    scores = found.pop("scores")
    for name in ("labels", "tokens", "groups"):
        found.pop(name)
    metrics, by_group = found.pop("metrics"), found.pop("by_group")
    write_atomic(target / "metrics.json", _json({"metrics": metrics, "by_group": by_group}))
    write_atomic(target / "metrics.csv", _csv([{"attack": name, **row} for name, row in metrics.items()]))
    groups = [
        {"attack": name, "group": group, **row}
        for name, rows in by_group.items()
        for group, row in rows.items()
    ]
    if groups:
        write_atomic(target / "by_group.csv", _csv(groups))
    if scores:
        write_atomic(target / "scores.csv", _csv(result.rows()), mode=PRIVATE)
    write_atomic(target / "metadata.json", _json({"memaudit": __version__, "finished": _now(), **found}))
    if result.metrics:
        for name, figure in (("roc", roc_figure(result)), ("distributions", distribution_figure(result))):
            for ending in (".svg", ".png"):
                save(figure, target / (name + ending))
    return target


def table(result: AttackResult) -> Any:
    """Return a rich table of the metrics, best AUC first, and the unscored counts."""
    from rich.table import Table

    ones = list(result.metrics.values())
    sides = {f"{one.n_members} members, {one.n_nonmembers} non-members" for one in ones}
    unscored = any(one.n_unscorable for one in ones)
    unresolved = not all(one.tpr_at_1_resolved and one.tpr_at_5_resolved for one in ones)
    made = Table(
        title="membership attacks: " + (sides.pop() if len(sides) == 1 else "records differ by attack")
    )
    # On a narrow screen names fold and intervals go below their figures; a figure that is cut off is none.
    made.add_column("attack", overflow="fold", min_width=8)
    for name in (
        "AUC",
        "TPR at 1% FPR",
        "TPR at 5% FPR",
        "FPR at 95% TPR",
        *(["unscored"] if unscored else []),
    ):
        made.add_column(name, justify="right", min_width=len("[0.00-1.00]"))
    for name, one in sorted(result.metrics.items(), key=lambda item: -item[1].auc):
        made.add_row(
            name,
            _interval(one.auc, one.auc_low, one.auc_high),
            _rate(one, "tpr_at_1"),
            _rate(one, "tpr_at_5"),
            _interval(one.fpr_at_95, one.fpr_at_95_low, one.fpr_at_95_high),
            *([str(one.n_unscorable)] if unscored else []),
        )
    if unresolved:
        made.caption = "-: too few non-members to resolve that rate (99 for 1%, 19 for 5%)"
    return made


def cost_line(result: AttackResult) -> str:
    """Say in one line what was forwarded and what was saved by what."""
    cost = result.cost
    return (
        f"{cost.requested} probes asked for, {cost.forwarded} forwarded; saved {cost.saved_by_sharing} by sharing "
        f"between attacks and equal texts, {cost.reused} by the signal store, {cost.prefix_tokens_saved} prefix "
        "tokens by the shared cache"
    )


def _rate(one: Metrics, name: str) -> str:
    if not getattr(one, f"{name}_resolved"):
        return "-"
    return _interval(getattr(one, name), getattr(one, f"{name}_low"), getattr(one, f"{name}_high"))


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.2f}-{high:.2f}]"


def _fresh(folder: Path) -> Path:
    """Return a new folder under ``folder``; two runs in one second do not share one."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in range(1000):
        target = folder / (stamp if number == 0 else f"{stamp}-{number}")
        try:
            target.mkdir(parents=True)
        except FileExistsError:
            continue
        return target
    raise FileExistsError(folder)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=False, allow_nan=False, default=str) + "\n"


def _csv(rows: list[dict[str, Any]]) -> str:
    buffer = io.StringIO()
    if rows:
        writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return buffer.getvalue()
