"""Launch files for accelerate, Lightning and SLURM, imported as memaudit.launch and shipped as package data."""

from __future__ import annotations

if not __name__.startswith("memaudit."):  # the folder itself is on the path: a second copy would be born
    raise ImportError(f"import memaudit.launch, not {__name__}: the folder is part of the package memaudit")
