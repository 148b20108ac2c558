"""What every test may use: the shared reference files, and an environment in which nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("MEMAUDIT_SHARED", ROOT.parent / "shared"))


def shared_path(*parts: str) -> Path:
    """Return a file or folder of shared/ (golden values, data), beside the repository or at MEMAUDIT_SHARED.

    Where shared/ is missing, the test is skipped with the reason, and fails in CI, where it must be there.
    """
    path = SHARED.joinpath(*parts)
    if path.exists():
        return path
    reason = f"{path} is missing; put shared/ beside the repository or name it in MEMAUDIT_SHARED"
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(reason)
    pytest.fail(reason)


@pytest.fixture(name="shared_path", scope="session")
def shared_path_fixture() -> object:
    """The function :func:`shared_path`, for tests that would rather not import it."""
    return shared_path
