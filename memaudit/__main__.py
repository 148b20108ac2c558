"""``python -m memaudit`` is ``memaudit``."""

from __future__ import annotations

import sys

from memaudit.cli import main

if __name__ == "__main__":
    sys.exit(main())
