"""Checkpoints of every kind: what lies at a path, and the model that it makes on one rank or many."""

from __future__ import annotations

from memaudit.posthoc.checkpoints.base import KINDS, Checkpoint
from memaudit.posthoc.checkpoints.kinds import detect, expand, fingerprint, step_of
from memaudit.posthoc.checkpoints.loading import PLACEMENTS, Loaded, Loading, load

__all__ = [
    "KINDS",
    "PLACEMENTS",
    "Checkpoint",
    "Loaded",
    "Loading",
    "detect",
    "expand",
    "fingerprint",
    "load",
    "step_of",
]
