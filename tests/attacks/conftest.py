"""Every golden case in turn."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.cases import CASES, case_named


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return case_named(request.param)
