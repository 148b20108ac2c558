"""What each rank of the demonstration runs: ``python -m memaudit.demo.worker SETTINGS.json``."""

from __future__ import annotations

import logging
import sys

from memaudit.demo.settings import DemoSettings
from memaudit.errors import MemauditError


def main(path: str) -> int:
    """Run one rank; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for noisy in ("httpx", "torch", "transformers", "accelerate", "datasets", "peft"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    settings = DemoSettings.load(path)
    try:
        if settings.model == "tiny":
            from memaudit.demo.tiny import train_and_audit
        else:
            from memaudit.demo.smollm2 import train_and_audit
        train_and_audit(settings)
    except MemauditError as error:
        print(f"memaudit: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
