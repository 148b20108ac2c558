"""Regurgitation: what of a secret comes back out of the model, read off the signals wherever they decide
it."""

from __future__ import annotations

from memaudit.extraction.probabilistic import (
    ExtractionCurve,
    extraction_curve,
    probability_within,
    tries_needed,
)
from memaudit.extraction.results import (
    CanaryExtraction,
    ExtractionOutcome,
    GenerationCounts,
    PrefixResult,
    Tries,
)
from memaudit.extraction.run import extract_all
from memaudit.extraction.teacher_forced import longest_run, prefix_tokens, shortest_prefix, verbatim

__all__ = [
    "CanaryExtraction",
    "ExtractionCurve",
    "ExtractionOutcome",
    "GenerationCounts",
    "PrefixResult",
    "Tries",
    "extract_all",
    "extraction_curve",
    "longest_run",
    "prefix_tokens",
    "probability_within",
    "shortest_prefix",
    "tries_needed",
    "verbatim",
]
