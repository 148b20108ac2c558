"""Membership attacks: one file an attack, one registry, all arithmetic on the signals of one engine.

Example:
    >>> from memaudit.attacks import make
    >>> make("minkpp").parameters
    {'ratio': 0.2}
"""

from __future__ import annotations

from memaudit.attacks.base import (
    TEXT,
    Attack,
    Generation,
    Needs,
    Record,
    ReferenceAttack,
    UnscorableError,
    Variant,
    View,
)
from memaudit.attacks.canary import canary_attacks, canary_scores
from memaudit.attacks.registry import get, make, make_all, names, register

__all__ = [
    "TEXT",
    "Attack",
    "Generation",
    "Needs",
    "Record",
    "ReferenceAttack",
    "UnscorableError",
    "Variant",
    "View",
    "canary_attacks",
    "canary_scores",
    "get",
    "make",
    "make_all",
    "names",
    "register",
]
