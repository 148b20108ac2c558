"""memaudit gate: pass or fail a report by thresholds, for CI."""

from __future__ import annotations


def gate(
    report: str,
    max_tpr: float | None = None,
    max_auc: float | None = None,
    max_regurgitation: float | None = None,
    max_epsilon: float | None = None,
    exact_only: bool = False,
    upper: bool = False,
    junit: str | None = None,
) -> int:
    """Pass or fail a report by thresholds. What was refused or not measured never passes.

    Args:
        report: the report's file; it has to be intact.
        max_tpr: largest TPR at the report's target false-positive rate.
        max_auc: largest AUC, counted from 0.5 on either side.
        max_regurgitation: largest share of inserted canaries completed.
        max_epsilon: largest certified lower bound on epsilon.
        exact_only: judge regurgitation by exact matches alone.
        upper: judge the intervals' upper limits instead of the estimates.
        junit: write the checks there as JUnit XML.

    Returns:
        0 when all pass, 1 when one fails, 2 for input that cannot be used, 3 when one was not measured.
    """
    from memaudit.errors import ReportError
    from memaudit.report.gate import Outcome, exit_code, write_junit
    from memaudit.report.gate import gate as check
    from memaudit.report.store import load_report, verify_report

    found = load_report(report)
    broken = verify_report(report).problems
    if broken:
        raise ReportError(f"{report} is not what was written ({broken[0]}); restore it or audit again")
    checks = check(
        found,
        max_tpr=max_tpr,
        max_auc=max_auc,
        max_regurgitation=max_regurgitation,
        max_epsilon=max_epsilon,
        exact_only=exact_only,
        upper=upper,
    )
    words = {Outcome.PASSED: "passed", Outcome.FAILED: "FAILED", Outcome.NOT_MEASURED: "NOT MEASURED"}
    for one in checks:
        print(f"{words[one.outcome]}: {one.name}: {one.message}")
    if junit is not None:
        write_junit(checks, junit)
    return exit_code(checks)
