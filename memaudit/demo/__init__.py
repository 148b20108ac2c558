"""The demonstration: a positive control that trains, audits and reports on this machine, offline."""

from __future__ import annotations

from memaudit.demo.run import run_demo

__all__ = ["run_demo"]
