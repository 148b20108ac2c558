"""Two reports side by side: what changed, and whether by more than chance explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy import stats

from memaudit.report.schema import Report
from memaudit.stats.intervals import clopper_pearson

SIGNIFICANCE = 0.05
Judgement = Literal["higher", "lower", "within", "same", "not_measured"]


@dataclass(frozen=True)
class Change:
    """One figure in both reports.

    ``judgement`` is ``higher`` or ``lower`` when the change is beyond chance, ``within`` when it is not, ``same``
    when nothing changed, ``not_measured`` when a side has no value. ``pvalue`` is McNemar's exact test for counts
    over the same canaries, Fisher's for others, a normal test on the intervals' widths for AUCs.
    """

    name: str
    first: float | None
    second: float | None
    first_interval: tuple[float, float] | None
    second_interval: tuple[float, float] | None
    judgement: Judgement
    pvalue: float | None
    note: str | None = None

    @property
    def difference(self) -> float | None:
        """Second minus first, None where a side has no value."""
        return None if self.first is None or self.second is None else self.second - self.first

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "difference": self.difference}


@dataclass(frozen=True)
class Comparison:
    """What changed between two reports, and in what they are not alike."""

    first: str
    second: str
    changes: tuple[Change, ...]
    cautions: tuple[str, ...]

    @property
    def beyond_chance(self) -> tuple[Change, ...]:
        """The changes that chance does not explain, each judged by itself."""
        return tuple(change for change in self.changes if change.judgement in ("higher", "lower"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "significance": SIGNIFICANCE,
            "correction": "none: each figure is judged by itself",
            "changes": [change.to_dict() for change in self.changes],
            "cautions": list(self.cautions),
        }


def compare(first: Report, second: Report) -> Comparison:
    """Compare two reports figure by figure.

    Args:
        first: the earlier one.
        second: the later one.

    Returns:
        A Comparison. Figures of one report that the other lacks are ``not_measured``, never 0.

    Example:
        >>> from memaudit.report.build import build_report
        >>> from memaudit.report.examples import example_inputs
        >>> weak, strong = (build_report(example_inputs(effect=effect)) for effect in (0.0, 2.0))
        >>> [change.judgement for change in compare(weak, strong).changes][:2]
        ['higher', 'higher']
    """
    return Comparison(
        _name(first), _name(second), tuple(_changes(first, second)), tuple(_cautions(first, second))
    )


Count = tuple[int | None, int]
Flags = dict[str, bool]


def _changes(first: Report, second: Report) -> Iterator[Change]:
    a, b = first.membership, second.membership
    paired = first.canary_manifest_hash == second.canary_manifest_hash
    apart = None
    if first.target_fpr != second.target_fpr:
        apart = f"at different false-positive rates ({first.target_fpr:g} and {second.target_fpr:g})"
    both = (_detected(first), _detected(second)) if paired else None
    yield _counts("TPR (headline)", (a.n_detected, a.n_members), (b.n_detected, b.n_members), both, apart)
    yield _areas("AUC", (a.auc, a.auc_ci_low, a.auc_ci_high), (b.auc, b.auc_ci_low, b.auc_ci_high))
    for tier in dict.fromkeys([*a.by_repetition, *b.by_repetition]):
        if tier == "pooled":
            continue
        one, two = a.by_repetition.get(tier), b.by_repetition.get(tier)
        yield _counts(
            f"TPR, {tier}",
            (one.detected, one.n) if one else (None, 0),
            (two.detected, two.n) if two else (None, 0),
            (_detected(first, tier), _detected(second, tier)) if paired else None,
            apart,
        )
    x, y = first.regurgitation, second.regurgitation
    yield _counts(
        "Verbatim regurgitation",
        (x.detected.n_detected, x.detected.n),
        (y.detected.n_detected, y.detected.n),
        (_verbatim(first), _verbatim(second)) if paired else None,
    )
    yield _counts(
        "Regurgitation by any rule",
        (x.overall.count, x.overall.n),
        (y.overall.count, y.overall.n),
        (_regurgitated(first), _regurgitated(second)) if paired else None,
    )
    for attack in dict.fromkeys([*first.attacks, *second.attacks]):
        p, q = first.attacks.get(attack), second.attacks.get(attack)
        yield _areas(
            f"AUC, {attack}",
            (p.auc, p.auc_ci_low, p.auc_ci_high) if p else (None, None, None),
            (q.auc, q.auc_ci_low, q.auc_ci_high) if q else (None, None, None),
        )


def _detected(report: Report, tier: str | None = None) -> Flags:
    return {
        row.id: row.detected
        for row in report.per_canary
        if row.included and row.detected is not None and tier in (None, f"{row.repetitions}x")
    }


def _verbatim(report: Report) -> Flags:
    found: Flags = {}
    for row in report.per_canary:
        parts = (row.extraction or {}).get("by_prefix")
        if row.included and isinstance(parts, list):
            found[row.id] = any(isinstance(part, dict) and part.get("verbatim") is True for part in parts)
    return found


def _regurgitated(report: Report) -> Flags:
    return {
        row.id: row.regurgitated for row in report.per_canary if row.included and row.regurgitated is not None
    }


def _counts(
    name: str,
    first: Count,
    second: Count,
    paired: tuple[Flags, Flags] | None = None,
    apart: str | None = None,
) -> Change:
    """Fisher's exact test, or McNemar's on the canaries that changed where both audits had the same ones."""
    (x, n), (y, m) = first, second
    p = x / n if x is not None and n else None
    q = y / m if y is not None and m else None
    p_range = clopper_pearson(x, n) if x is not None and n else None
    q_range = clopper_pearson(y, m) if y is not None and m else None
    if x is None or y is None or p is None or q is None:
        return Change(name, p, q, p_range, q_range, "not_measured", None)
    if apart is not None:
        return Change(name, p, q, p_range, q_range, "not_measured", None, f"{apart}: not comparable")
    if paired is not None and paired[0].keys() == paired[1].keys() and paired[0]:
        gained = sum(paired[1][one] and not paired[0][one] for one in paired[0])
        lost = sum(paired[0][one] and not paired[1][one] for one in paired[0])
        pvalue = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
        note = f"paired (McNemar): {gained} canaries gained, {lost} lost"
        # As many gained as lost leaves the rate as it was, though not the canaries.
        return Change(name, p, q, p_range, q_range, _judge(q - p, pvalue), pvalue, note)
    pvalue = float(stats.fisher_exact([[x, n - x], [y, m - y]]).pvalue)
    return Change(name, p, q, p_range, q_range, _judge(q - p, pvalue), pvalue, "independent (Fisher)")


Area = tuple[float | None, float | None, float | None]


def _areas(name: str, first: Area, second: Area) -> Change:
    p, p_low, p_high = first
    q, q_low, q_high = second
    p_range = (p_low, p_high) if p_low is not None and p_high is not None else None
    q_range = (q_low, q_high) if q_low is not None and q_high is not None else None
    if p is None or q is None or p_range is None or q_range is None:
        return Change(name, p, q, p_range, q_range, "not_measured", None)
    # The limits that face each other carry the width: the intervals are skewed near 0 and 1.
    gap = abs(q - p)
    low, high = (p_range, q_range) if q >= p else (q_range, p_range)
    reach_up, reach_down = low[1] - min(p, q), max(p, q) - high[0]
    spread = (reach_up**2 + reach_down**2) ** 0.5 / float(stats.norm.ppf(0.975))
    pvalue = float(2 * stats.norm.sf(gap / spread)) if spread > 0 else (1.0 if gap == 0 else 0.0)
    return Change(name, p, q, p_range, q_range, _judge(q - p, pvalue), pvalue)


def _judge(difference: float, pvalue: float) -> Judgement:
    if difference == 0:
        return "same"
    if pvalue > SIGNIFICANCE:
        return "within"
    return "higher" if difference > 0 else "lower"


def _cautions(first: Report, second: Report) -> Iterator[str]:
    """What keeps the two from being alike, so that a difference may have another cause than the model."""
    pairs = (
        (
            "different canaries (manifest hashes differ)",
            first.canary_manifest_hash,
            second.canary_manifest_hash,
        ),
        ("different headline attacks", first.membership.headline_attack, second.membership.headline_attack),
        ("different reference modes", first.reference.mode, second.reference.mode),
        ("different target false-positive rates", first.target_fpr, second.target_fpr),
        ("different base models", first.model.name_or_path, second.model.name_or_path),
        ("different tokenizers", first.provenance.tokenizer, second.provenance.tokenizer),
        ("different memaudit versions", first.tool_version, second.tool_version),
    )
    for text, one, two in pairs:
        if one != two:
            yield text
    if first.canary_manifest_hash == second.canary_manifest_hash:
        yield "the same canaries in both: counts are compared canary by canary, AUCs as if independent (conservative)"


def _name(report: Report) -> str:
    step = "" if report.step is None else f" step {report.step}"
    return f"{report.model.name_or_path or 'model'}{step}, {report.created_at}"
