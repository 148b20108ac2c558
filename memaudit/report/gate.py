"""Pass or fail by thresholds, for CI. What was not measured never passes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from memaudit.errors import ConfigurationError
from memaudit.files import write_atomic
from memaudit.report.numbers import percent
from memaudit.report.schema import Report


class Outcome(IntEnum):
    """Of one check, and the exit code of the whole: the worst check decides, a failure before the unmeasured."""

    PASSED = 0
    FAILED = 1
    NOT_MEASURED = 3


@dataclass(frozen=True)
class Check:
    """One threshold: its name, the outcome and a sentence."""

    name: str
    outcome: Outcome
    message: str


def gate(
    report: Report,
    *,
    max_tpr: float | None = None,
    max_auc: float | None = None,
    max_regurgitation: float | None = None,
    max_epsilon: float | None = None,
    exact_only: bool = False,
    upper: bool = False,
) -> list[Check]:
    """Check a report against thresholds.

    Args:
        report: the report.
        max_tpr: largest TPR at the report's target FPR that passes.
        max_auc: largest AUC, counted from 0.5 on either side, that passes.
        max_regurgitation: largest share of inserted canaries completed that passes.
        max_epsilon: largest certified lower bound on epsilon that passes; passing is no proof of privacy.
        exact_only: judge regurgitation by exact matches alone.
        upper: judge the intervals' upper limits instead of the estimates, so that few canaries cannot pass.

    Returns:
        One Check a threshold that was given.

    Raises:
        ConfigurationError: no threshold, or one out of range.

    Example:
        >>> from memaudit.report.build import build_report
        >>> from memaudit.report.examples import example_inputs
        >>> report = build_report(example_inputs())
        >>> [int(check.outcome) for check in gate(report, max_tpr=0.05, max_regurgitation=0.0)]
        [1, 3]
    """
    for name, value, most in (
        ("max_tpr", max_tpr, 1.0),
        ("max_auc", max_auc, 1.0),
        ("max_regurgitation", max_regurgitation, 1.0),
        ("max_epsilon", max_epsilon, float("inf")),
    ):
        if value is not None and not 0.0 <= value <= most:
            raise ConfigurationError(f"{name} is {value}; give a number from 0 to {most:g}")
    checks = []
    if max_tpr is not None:
        checks.append(_tpr(report, max_tpr, upper))
    if max_auc is not None:
        checks.append(_auc(report, max_auc, upper))
    if max_regurgitation is not None:
        checks.append(_regurgitation(report, max_regurgitation, exact_only, upper))
    if max_epsilon is not None:
        checks.append(_epsilon(report, max_epsilon))
    if not checks:
        raise ConfigurationError(
            "no threshold was given, so the gate would pass anything; give --max-tpr, --max-regurgitation, "
            "--max-epsilon or --max-auc"
        )
    return checks


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 if any check failed, else 3 if any was not measured, else 0."""
    outcomes = {check.outcome for check in checks}
    for outcome in (Outcome.FAILED, Outcome.NOT_MEASURED):
        if outcome in outcomes:
            return int(outcome)
    return 0


def write_junit(
    checks: Sequence[Check], path: str | os.PathLike[str], *, suite: str = "memaudit gate"
) -> None:
    """Write the checks as a JUnit file: a failure where a threshold is passed over, an error where not measured."""
    from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

    whole = TestSuite(suite)
    for check in checks:
        case = TestCase(check.name, classname=suite)
        if check.outcome is Outcome.FAILED:
            case.result = [Failure(check.message, "threshold")]
        elif check.outcome is Outcome.NOT_MEASURED:
            case.result = [Error(check.message, "not measured")]
        else:
            case.system_out = check.message
        whole.add_testcase(case)
    document: Any = JUnitXml()  # the library has no types
    document.add_testsuite(whole)
    document.update_statistics()
    write_atomic(path, document.tostring())


def _tpr(report: Report, limit: float, upper: bool) -> Check:
    found = report.membership
    name = f"tpr_at_{percent(found.target_fpr)}_fpr"
    if found.tpr_at_target_fpr is None or found.ci_high is None:
        return Check(name, Outcome.NOT_MEASURED, f"no valid headline: {found.headline_reason}")
    value = found.ci_high if upper else found.tpr_at_target_fpr
    what = "upper limit of the TPR" if upper else "TPR"
    return _judge(name, value, limit, f"{what} at {percent(found.target_fpr)} FPR")


def _auc(report: Report, limit: float, upper: bool) -> Check:
    found = report.membership
    if found.auc is None or found.auc_ci_low is None or found.auc_ci_high is None:
        return Check("auc", Outcome.NOT_MEASURED, f"no AUC: {found.auc_reason}")
    value = max(found.auc_ci_high, 1 - found.auc_ci_low) if upper else max(found.auc, 1 - found.auc)
    return _judge(
        "auc", value, limit, "upper limit of the AUC" if upper else "AUC (the larger of AUC and 1 - AUC)"
    )


def _regurgitation(report: Report, limit: float, exact_only: bool, upper: bool) -> Check:
    found, name = report.regurgitation, "regurgitation"
    exact = found.detected
    if found.execution != "executed" or exact.rate is None:
        return Check(
            name, Outcome.NOT_MEASURED, f"regurgitation was not run: {found.reason or 'no canary was judged'}"
        )
    if exact.rate > limit:
        return _judge(name, exact.rate, limit, "share of inserted canaries emitted verbatim")
    if exact_only:
        value = exact.ci_high if upper and exact.ci_high is not None else exact.rate
        return _judge(name, value, limit, "share of inserted canaries emitted verbatim")
    whole = found.overall
    if whole.rate is None:
        return Check(
            name,
            Outcome.NOT_MEASURED,
            f"near-verbatim matches were not measured ({found.near_verbatim_reason}); judge exact matches alone with "
            "--exact-only",
        )
    value = whole.ci_high if upper and whole.ci_high is not None else whole.rate
    return _judge(name, value, limit, "share of inserted canaries completed")


def _epsilon(report: Report, limit: float) -> Check:
    result, name = report.privacy.result or {}, "epsilon"
    bounds = result.get("epsilon")
    certified = [
        bound
        for bound in (bounds if isinstance(bounds, list) else [])
        if isinstance(bound, dict)
        and bound.get("guarantee") == "certified"
        and isinstance(bound.get("value"), int | float)
    ]
    if not certified:
        reason = report.privacy.reason or "it holds no certified bound"
        return Check(name, Outcome.NOT_MEASURED, f"no certified lower bound on epsilon: {reason}")
    worst = max(certified, key=lambda bound: _number(bound["value"]))
    ceiling = worst.get("ceiling")
    if isinstance(ceiling, int | float) and _number(worst["value"]) <= limit and ceiling <= limit:
        return Check(
            name,
            Outcome.NOT_MEASURED,
            f"underpowered: {worst.get('m')} canaries could show epsilon {ceiling:.3g} at most, so a limit of "
            f"{limit:g} cannot be tested",
        )
    return _judge(
        name,
        _number(worst["value"]),
        limit,
        f"certified lower bound on epsilon {worst.get('at', '')}".strip(),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _judge(name: str, value: float, limit: float, what: str) -> Check:
    passed = value <= limit
    word = "at most" if passed else "above"
    return Check(
        name, Outcome.PASSED if passed else Outcome.FAILED, f"{what} is {value:.4g}, {word} {limit:g}"
    )
