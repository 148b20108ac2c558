"""On SmolLM2-135M with real texts: every score equals a plain computation, in every batch and on two ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memaudit import attack
from tests.attacks.plain import Plain
from tests.attacks.smollm import ATTACKS, AdaptersOff, adapted, real_texts
from tests.distributed.launcher import run_checked

WORLD = [
    "今天天气很好，我们去公园散步吧。图书馆在河的另一边，那里有很多书。",
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "ذهب الولد إلى المدرسة في الصباح الباكر، ثم عاد إلى البيت بعد الظهر.",
    "def mean(values):\n    total = sum(values)\n    return total / len(values)\n",
]


@pytest.fixture(scope="module")
def smollm() -> tuple[Any, Any]:
    return adapted()


@pytest.fixture(scope="module")
def expected(smollm: tuple[Any, Any]) -> dict[str, dict[str, float]]:
    """One text at a time, from the definitions."""
    model, tokenizer = smollm
    plain = Plain(model, tokenizer, AdaptersOff(model))
    texts = texts_by_id()
    return {
        name: {id: method(text) for id, text in texts.items()} for name, method in plain.methods().items()
    }


def texts_by_id() -> dict[str, str]:
    return {f"t{i}": text for i, text in enumerate([*real_texts(4, 30), *WORLD])}


def check(scores: Any, expected: dict[str, dict[str, float]]) -> None:
    for name, column in expected.items():
        assert scores[name].keys() == column.keys()
        assert dict(scores[name]) == pytest.approx(column, rel=1e-4, abs=1e-4), name


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_scores_equal_a_plain_computation(
    smollm: tuple[Any, Any], expected: dict[str, dict[str, float]], batch: int
) -> None:
    model, tokenizer = smollm
    result = attack(
        model,
        texts_by_id(),
        attacks=ATTACKS,
        tokenizer=tokenizer,
        nonmembers=real_texts(2, 30, skip=50),
        max_batch_size=batch,
    )
    check(result.scores, expected)
    plain = Plain(model, tokenizer)
    text = texts_by_id()["t1"]
    prefixes = [
        [token for one in order for token in tokenizer(one)["input_ids"]]
        for order in (real_texts(2, 30, skip=50), real_texts(2, 30, skip=50)[::-1])
    ]
    either = [plain.nll(text, prefix) / plain.nll(text) for prefix in prefixes]
    found = result.scores["recall(n_shots=2)"]["t1"]
    assert min(abs(found - one) for one in either) < 1e-4


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks_score_the_same(expected: dict[str, dict[str, float]], tmp_path: Path) -> None:
    worker = Path(__file__).with_name("smollm_worker.py")
    output = tmp_path / "scores.json"
    run_checked(worker, [str(output)], ranks=2, timeout=500)
    check(json.loads(output.read_text()), expected)
