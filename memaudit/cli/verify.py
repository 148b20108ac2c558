"""memaudit verify: is a report what was written?"""

from __future__ import annotations

import sys


def verify(report: str) -> int:
    """Check a report's report_sha256 and its .sha256 sidecar. Integrity, not authorship.

    Args:
        report: the report's file.

    Returns:
        0 when intact, 1 on a mismatch; a file that cannot be used at all ends with 2.
    """
    from memaudit.report.store import verify_report

    found = verify_report(report)
    if found.intact:
        beside = "and its sidecar" if found.sidecar else "(there is no sidecar: the layout is not covered)"
        print(f"intact: {report} {beside} match, report_sha256 {found.report_sha256}")
        return 0
    for problem in found.problems:
        print(f"memaudit: MISMATCH: {report}: {problem}", file=sys.stderr)
    return 1
