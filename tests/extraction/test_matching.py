"""BLEU and edit distance against the golden right values, textbook BLEU, and a dynamic programme."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from memaudit.extraction.matching import (
    NO_MATCH,
    bleu,
    contains,
    match_ids,
    match_text,
    text_bleu,
    window_distance,
)
from tests.conftest import shared_path


def golden(function: str) -> list[Any]:
    """Return the golden cases of one function as parameters."""
    try:
        cases = json.loads(shared_path("golden", "memaudit_peer.json").read_text())["cases"]
    except pytest.skip.Exception as reason:
        return [pytest.param(None, marks=pytest.mark.skip(reason=str(reason)))]
    return [pytest.param(case, id=case["name"]) for case in cases if case["function"] == function]


def textbook_bleu(reference: Sequence[int], hypothesis: Sequence[int]) -> float:
    """Return BLEU-4 by its definition (Papineni 2002), orders beyond the hypothesis left out."""
    logs = []
    for order in range(1, min(4, len(hypothesis)) + 1):
        ours = Counter(tuple(hypothesis[i : i + order]) for i in range(len(hypothesis) - order + 1))
        theirs = Counter(tuple(reference[i : i + order]) for i in range(len(reference) - order + 1))
        hits = sum((ours & theirs).values())
        if hits == 0:
            return 0.0
        logs.append(math.log(hits / sum(ours.values())))
    return math.exp(sum(logs) / len(logs) + min(0.0, 1 - len(reference) / len(hypothesis)))


def levenshtein(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return the edit distance by the textbook recursion."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        new = [i]
        for j, y in enumerate(b, 1):
            new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (x != y)))
        row = new
    return row[-1]


@pytest.mark.parametrize("case", golden("sentence_bleu"))
def test_bleu_has_the_golden_right_values(case: dict[str, Any]) -> None:
    given = case["input"]
    assert text_bleu(given["reference"], given["hypothesis"]) == pytest.approx(case["expected"], abs=1e-12)


@pytest.mark.parametrize("case", golden("sliding_window_ned"))
def test_edit_distance_has_the_golden_right_values(case: dict[str, Any]) -> None:
    given = case["input"]
    assert window_distance(given["secret"], given["generation"]) == pytest.approx(case["expected"], abs=1e-12)


@pytest.mark.parametrize("case", golden("regurgitation_flags"))
def test_a_blank_remainder_is_no_hit(case: dict[str, Any]) -> None:
    given = case["input"]
    match = match_text(given["secret"], given["generation"], reference_ids=[5], generation_ids=[5])
    assert contains(given["secret"], given["generation"]) is case["expected"]["exact"]
    assert match.near is case["expected"]["regurgitated"]


def test_bleu_equals_the_textbook_on_random_ids() -> None:
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(300):
        reference = rng.integers(0, 6, rng.integers(1, 14)).tolist()
        hypothesis = list(reference)
        for _ in range(rng.integers(0, 4)):
            hypothesis[rng.integers(len(hypothesis))] = int(rng.integers(0, 6))
        hypothesis = hypothesis[: rng.integers(1, len(hypothesis) + 1)]
        assert bleu(reference, hypothesis) == pytest.approx(textbook_bleu(reference, hypothesis), abs=1e-9)
        compared += bleu(reference, hypothesis) > 0
    assert compared > 100


def test_every_window_is_looked_at() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        reference = rng.integers(0, 5, rng.integers(1, 9)).tolist()
        generation = rng.integers(0, 5, rng.integers(0, 15)).tolist()
        size = len(reference)
        windows = [generation[i : i + size] for i in range(max(1, len(generation) - size + 1))]
        best = min(levenshtein(reference, window) for window in windows)
        assert window_distance(reference, generation) == best / size


def test_text_and_ids_agree_that_nothing_matches_nothing() -> None:
    assert match_ids([], [1, 2]) == NO_MATCH == match_text(" \n", "x", reference_ids=[1], generation_ids=[2])
    assert match_ids([1, 2], []).edit_distance == 1.0


def test_unspaced_text_is_compared_by_token_ids() -> None:
    secret, output = "これは秘密です", "これは秘密だよ"
    near = match_text(secret, output, reference_ids=[1, 2, 3, 4, 5, 6], generation_ids=[1, 2, 3, 4, 5, 9])
    assert near.bleu == pytest.approx(textbook_bleu([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 9]))
    assert near.edit_distance == pytest.approx(2 / 7)


@pytest.mark.parametrize(
    ("wrong", "near"), [(0, True), (1, True), (2, False)], ids=["none", "at the limit", "beyond it"]
)
def test_the_limit_of_the_edit_distance_is_inclusive(wrong: int, near: bool) -> None:
    suffix = list(range(10))
    output = [99 if i % 5 == 2 and i // 5 < wrong else token for i, token in enumerate(suffix)]
    match = match_ids(suffix, output)
    assert match.edit_distance == pytest.approx(wrong / 10)
    assert match.near is near
