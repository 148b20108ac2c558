"""How a model lies on its ranks, and how to score it there: one file a parallelism, imported as memaudit.strategies."""

from __future__ import annotations

if not __name__.startswith("memaudit."):  # the folder itself is on the path: a second copy would be born
    raise ImportError(
        f"import memaudit.strategies, not {__name__}: the folder is part of the package memaudit"
    )
