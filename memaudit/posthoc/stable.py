"""What two reports of the same audit must share to the byte: everything but times and provenance."""

from __future__ import annotations

import copy
import json
from typing import Any

TIMES = ("created_at", "audit_seconds", "report_sha256")
PROVENANCE = ("provenance", "distributed", "forwards")
COSTS = ("seconds", "share_of_training_time", "forwards", "scored", "reused")


def stable_content(report: dict[str, Any]) -> str:
    """Return a report's content as canonical JSON, without times and provenance.

    Left out: when it was made and how long it took, its hashes of both, which machine, ranks and strategy made
    it, and how many forwards were still needed.

    Args:
        report: a report's JSON object.

    Example:
        >>> stable_content({"a": 1, "created_at": "now", "timeline": [{"step": 1, "seconds": 2.0}]})
        '{"a":1,"timeline":[{"step":1}]}'
    """
    body = copy.deepcopy(report)
    for name in (*TIMES, *PROVENANCE):
        body.pop(name, None)
    for entry in body.get("timeline") or []:
        for name in COSTS:
            entry.pop(name, None)
    for section in ("regurgitation", "extraction"):
        counts = (body.get(section) or {}).get("counts")
        if isinstance(counts, dict):
            for name in ("prompts", "calls"):
                counts.pop(name, None)
    scope = (body.get("compliance_annex") or {}).get("test_scope")
    for part in (body.get("audit_scope"), scope):
        if isinstance(part, dict):
            part.pop("run_date", None)
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
