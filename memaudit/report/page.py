"""The report as one HTML file: styles and figures inside, no script, no request to anywhere."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import jinja2

from memaudit.report.figures import Table, figures
from memaudit.report.numbers import percent, reason_in_words
from memaudit.report.schema import Report


def html(report: Report) -> str:
    """Return the page.

    Args:
        report: a report, stamped or not.

    Returns:
        A document whose content security policy forbids scripts and any request.

    Example:
        >>> from memaudit.report.build import build_report
        >>> from memaudit.report.examples import example_inputs
        >>> page = html(build_report(example_inputs()))
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    return _template().render(
        report=report,
        figures=figures(report),
        attacks=_attacks(report),
        bounds=_bounds(report),
        privacy_notes=_privacy_notes(report),
        exposure=_exposure(report),
        facts=_facts(report),
        cost=_cost(report),
        regurgitation=_regurgitation(report),
        real=_real(report),
        assumptions=[(one.name, one.status.replace("_", " "), one.statement) for one in report.assumptions],
        coverage=[
            (row.attack, row.edpb_ref, row.status, row.method or "–", row.result or "–")
            for row in report.compliance_annex.attack_coverage
        ],
        threats=[
            (row.subject, row.attacker_access, row.assumptions, row.source)
            for row in report.compliance_annex.threat_models
        ],
    )


@functools.lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    source = (
        resources.files("memaudit.report").joinpath("templates/report.html.j2").read_text(encoding="utf-8")
    )
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    environment.filters["percent"] = lambda value: "–" if value is None else percent(value)
    environment.filters["reason"] = reason_in_words
    environment.filters["span"] = lambda pair: span(*pair)
    return environment.from_string(source)


def number(value: Any) -> str:
    """Return a number with three significant digits, a dash for None, anything else as text.

    Example:
        >>> number(0.12345), number(None), number(7)
        ('0.123', '–', '7')
    """
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def span(low: float | None, high: float | None) -> str:
    """Return an interval as text, a dash where there is none.

    Example:
        >>> span(0.1, 0.25), span(None, None)
        ('0.1 to 0.25', '–')
    """
    return "–" if low is None or high is None else f"{low:.3g} to {high:.3g}"


def _facts(report: Report) -> list[tuple[str, str]]:
    """The key numbers, headline first."""
    found, canaries = report.membership, report.canaries
    rate = f"TPR at {percent(found.target_fpr)} FPR"
    first = (
        (rate, f"{number(found.tpr_at_target_fpr)} ({span(found.ci_low, found.ci_high)})")
        if found.headline_valid
        else (rate, f"refused: {found.headline_reason}")
    )
    emitted = report.regurgitation.detected
    return [
        first,
        ("Detected", "–" if found.n_detected is None else f"{found.n_detected} of {found.n_members}"),
        ("AUC (secondary)", f"{number(found.auc)} ({span(found.auc_ci_low, found.auc_ci_high)})"),
        ("Verbatim regurgitation", emitted.wording),
        (
            "Canaries",
            f"{canaries.n_members} inserted, {canaries.n_held_out} held out, {canaries.n_controls} controls; "
            f"{canaries.requested_family} drawn by {canaries.actual_generator}",
        ),
        (
            "Threshold set by",
            f"{found.calibration.n} canaries not trained on ({found.calibration.n_never_inserted} controls, "
            f"{found.calibration.n_coin_losers} held out); mean false-positive rate {_maybe(found.fpr_guarantee)}",
        ),
        (
            "Reference",
            report.reference.mode + (f" ({report.reference.note})" if report.reference.note else ""),
        ),
        ("Profile", report.audit_profile),
        (
            "Release context",
            f"{report.release_context.declared}: {report.release_context.implied_attack_surface}",
        ),
    ]


def _maybe(rate: float | None) -> str:
    return "not identified" if rate is None else percent(rate)


def _attacks(report: Report) -> Table:
    rows = sorted(report.attacks.items(), key=lambda item: (not item[1].is_headline, item[0]))
    return Table(
        ("attack", "AUC", "interval", "TPR", "interval", "unscored"),
        tuple(
            (
                f"{name} (headline)" if one.is_headline else name,
                number(one.auc),
                span(one.auc_ci_low, one.auc_ci_high),
                number(one.tpr_at_target_fpr),
                span(one.ci_low, one.ci_high),
                str(one.n_unscored),
            )
            for name, one in rows
        ),
    )


def _bounds(report: Report) -> list[str]:
    """The bounds as sentences, each with what it assumes."""
    found = (report.privacy.result or {}).get("epsilon")
    lines = []
    for one in found if isinstance(found, list) else []:
        if isinstance(one, dict):
            plain = f"epsilon >= {number(one.get('value'))} {one.get('at', '')} ({one.get('guarantee', 'no claim')})"
            lines.append(str(one.get("sentence") or plain))
    return lines


def _privacy_notes(report: Report) -> list[str]:
    result = report.privacy.result or {}
    notes = [str(result[name]) for name in ("caution", "note") if result.get(name)]
    return [note[:1].upper() + note[1:].rstrip(".") + "." for note in notes]


def _exposure(report: Report) -> Table | None:
    found = (report.privacy.result or {}).get("exposure")
    tiers = found.get("by_repetition") if isinstance(found, dict) else None
    if not isinstance(tiers, dict):
        return None
    rows = [
        (name, number(tier.get("n")), number(tier.get("mean")), number(tier.get("max")))
        for name, tier in tiers.items()
        if isinstance(tier, dict)
    ]
    return Table(("tier", "n", "mean bits", "largest"), tuple(rows))


def _regurgitation(report: Report) -> Table | None:
    found = report.regurgitation
    if found.execution != "executed":
        return None
    rows = [
        (
            name,
            str(tier.n),
            number(tier.exact),
            number(tier.near),
            number(tier.rate),
            span(tier.ci_low, tier.ci_high),
        )
        for name, tier in (*found.by_tier.items(), ("all", found.overall))
    ]
    controls = report.negative_controls
    if controls.exact is not None:
        near = (
            None if controls.n_regurgitated is None else controls.n_regurgitated - (controls.exact.count or 0)
        )
        rows.append(
            (
                "never inserted",
                str(controls.exact.n),
                number(controls.exact.count),
                number(near),
                number(controls.regurgitation_rate),
                span(controls.ci_low, controls.ci_high),
            )
        )
    return Table(("tier", "n", "exact", "near", "rate", "interval"), tuple(rows))


def _real(report: Report) -> list[tuple[str, str]]:
    """Real records in words: duplicates and the set-level tests; never a ranking that looks like evidence."""
    found = report.real_records
    rows = [
        ("Training records sampled", number(found.n_train_sampled)),
        (
            "Exact duplicates",
            "not measured" if found.exact_dup_rate is None else percent(found.exact_dup_rate),
        ),
        ("Compared with", found.comparison_population or "nothing"),
    ]
    emitted = (found.model_extra or {}).get("verbatim")
    if isinstance(emitted, dict) and isinstance(emitted.get("n_verbatim_by_prefix"), dict):
        for fraction, hits in emitted["n_verbatim_by_prefix"].items():
            what = f"Verbatim after {percent(float(fraction))} of the record"
            rows.append((what, f"{number(hits)} of {number(emitted.get('n'))}"))
    tests = found.set_level if isinstance(found.set_level, dict) else {}
    for test, result in tests.items():
        if isinstance(result, str):
            rows.append((_label(test), result))
        elif isinstance(result, dict) and "pvalue" in result:
            rows.append((_label(test), _test_words(result)))
        elif isinstance(result, dict):
            rows += [
                (f"{_label(test)}, {attack}", _test_words(one))
                for attack, one in result.items()
                if isinstance(one, dict)
            ]
    return rows


def _test_words(result: dict[str, Any]) -> str:
    words = [f"p = {number(result.get('pvalue'))}"]
    if result.get("auc") is not None:
        words.append(f"AUC {number(result['auc'])}")
    return ", ".join(words)


def _cost(report: Report) -> list[tuple[str, str]]:
    rows = [("Audit seconds", number(report.audit_seconds))]
    rows += [(_label(name), _plain(value)) for name, value in report.distributed.items()]
    rows += [(_label(name), _plain(value)) for name, value in report.forwards.items()]
    return rows


def _label(name: str) -> str:
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_label(str(key)).lower()} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value) or "none"
    return number(value)
