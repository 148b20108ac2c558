"""Placing secrets in records, on the side that is trained on, and finding them again as tokens."""

from __future__ import annotations

from memaudit.injection.formats import FORMATS
from memaudit.injection.formats.alpaca import alpaca_text
from memaudit.injection.inject import inject
from memaudit.injection.records import canaries_from_records
from memaudit.injection.rendering import Rendered, render, render_all

__all__ = ["FORMATS", "Rendered", "alpaca_text", "canaries_from_records", "inject", "render", "render_all"]
