"""Audits of runs that are over: checkpoints of every kind, many jobs, SLURM, the curve over checkpoints."""

from __future__ import annotations
