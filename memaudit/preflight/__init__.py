"""The pre-flight: what would silently zero an audit, found before training begins."""

from __future__ import annotations

from memaudit.preflight.findings import Finding, PreflightResult, ScanCounts
from memaudit.preflight.run import run_preflight
from memaudit.preflight.scan import SurvivalScan
from memaudit.preflight.sources import Source

__all__ = ["Finding", "PreflightResult", "ScanCounts", "Source", "SurvivalScan", "run_preflight"]
