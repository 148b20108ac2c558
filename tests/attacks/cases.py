"""Golden cases as signals."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np

from memaudit.attacks import View
from memaudit.signals import TokenSignals
from tests.conftest import shared_path


@cache
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shared_path("golden/mia_methods.json").read_text())
    return found


def signals_of(case: dict[str, Any], logprob: str = "token_logprobs") -> TokenSignals:
    """The golden case's arrays; ranks are not in it and no attack of the table reads them."""
    n = len(case[logprob])
    own = logprob == "token_logprobs"
    return TokenSignals(
        token_ids=np.array(case["token_ids"][:n] if len(case["token_ids"]) >= n else [0] * n, dtype=np.int64),
        logprob=np.array(case[logprob]),
        mean=np.array(case["mu"]) if own else np.full(n, -2.0),
        std=np.sqrt(np.array(case["var"])) if own else np.ones(n),
        top1_logprob=np.array(case["top1_logprob"]) if own else np.zeros(n),
        top1_id=np.array(case["top1_id"], dtype=np.int64) if own else np.zeros(n, dtype=np.int64),
        rank=np.zeros(n, dtype=np.int64),
    )


def view_of(case: dict[str, Any], **more: Any) -> View:
    return View(
        id=case["name"],
        target={"text": signals_of(case)},
        reference={"text": signals_of(case, "ref_logprobs")},
        text=case["text"],
        token_counts=case["freq_counts"],
        **more,
    )


CASES = [f"len{n}" for n in (1, 2, 3, 4, 5, 9, 19, 20, 21, 64, 200)] + ["all_top1"]


def case_named(name: str) -> dict[str, Any]:
    (found,) = [one for one in golden()["arrays"] if one["name"] == name]
    result: dict[str, Any] = found
    return result
