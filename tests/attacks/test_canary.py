"""Scores of canaries: from signals alone, joined by id."""

from __future__ import annotations

import numpy as np
import pytest

from memaudit.attacks import UnscorableError, canary_attacks, canary_scores
from memaudit.errors import ConfigurationError
from tests.attacks.cases import golden, signals_of

CASES = {one["name"]: one for one in golden()["arrays"]}


def test_scores_are_those_of_the_golden_cases_and_joined_by_id() -> None:
    target = {name: signals_of(case) for name, case in CASES.items()}
    reference = {name: signals_of(CASES[name], "ref_logprobs") for name in reversed(list(CASES))}
    texts = {name: case["text"] for name, case in CASES.items()}
    scores = canary_scores(canary_attacks(reference=True), target, reference, texts)
    assert next(iter(scores)) == "ref_minkpp"
    for name, case in CASES.items():
        assert scores["loss"][name] == pytest.approx(case["scores"]["fastmia.loss"], rel=1e-12)
        assert scores["ref"][name] == pytest.approx(case["scores"]["ref_diff"], rel=1e-12)
        assert scores["zlib"][name] == pytest.approx(case["scores"]["fastmia.zlib"], rel=1e-12)
    for column in scores.values():
        assert list(column) == list(target) and all(np.isfinite(one) for one in column.values())


def test_what_is_missing_is_said() -> None:
    target = {"a": signals_of(CASES["len9"]), "b": signals_of(CASES["len5"])}
    with pytest.raises(ConfigurationError, match="needs a reference"):
        canary_scores(["ref_minkpp"], target)
    with pytest.raises(ConfigurationError, match="needs the secrets' texts"):
        canary_scores(["zlib"], target)
    with pytest.raises(ConfigurationError, match="not on canaries"):
        canary_scores(["recall"], target, texts={"a": "x", "b": "y"})
    with pytest.raises(ConfigurationError, match="reference signals lack 1 of the canaries, first b"):
        canary_scores(["ref"], target, {"a": target["a"]})
    with pytest.raises(UnscorableError, match="no token"):
        canary_scores(["loss"], {"a": target["a"].slice(0, 0)})
