"""The search for many patterns at once, against the plain one."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memaudit.injection.rendering import last_occurrence
from memaudit.injection.search import PatternIndex

small = st.lists(st.integers(min_value=0, max_value=3), max_size=60)


@given(small, st.lists(st.lists(st.integers(min_value=0, max_value=3), min_size=1, max_size=6), max_size=6))
@settings(max_examples=300, deadline=None)
def test_every_occurrence_and_no_other(haystack: list[int], patterns: list[list[int]]) -> None:
    expected = sorted(
        (at, index)
        for index, pattern in enumerate(patterns)
        for at in range(len(haystack) - len(pattern) + 1)
        if haystack[at : at + len(pattern)] == pattern
    )
    assert sorted((at, index) for index, at in PatternIndex(patterns).find(haystack)) == expected


@given(st.text(max_size=200), st.lists(st.text(min_size=1, max_size=5), max_size=5))
@settings(max_examples=200, deadline=None)
def test_bytes(text: str, words: list[str]) -> None:
    data = text.encode("utf-8", "surrogatepass")
    index = PatternIndex([word.encode("utf-8", "surrogatepass") for word in words])
    found = {words[which] for which, _ in index.find(data)}
    assert found == {word for word in words if word.encode("utf-8", "surrogatepass") in data}


@given(small, st.lists(st.integers(min_value=0, max_value=3), max_size=4))
@settings(max_examples=200, deadline=None)
def test_last_occurrence(haystack: list[int], target: list[int]) -> None:
    places = [at for at in range(len(haystack)) if target and haystack[at : at + len(target)] == target]
    assert last_occurrence(haystack, target) == (places[-1] if places else None)


def test_a_million_tokens_and_hundreds_of_patterns_take_a_moment() -> None:
    rng = np.random.default_rng(0)
    haystack = rng.integers(0, 50_000, size=1_000_000)
    patterns = [rng.integers(0, 50_000, size=32).tolist() for _ in range(300)]
    haystack[123_456:123_488] = patterns[7]
    index = PatternIndex(patterns)
    index.find(haystack)
    start = time.process_time()
    found = index.find(haystack)
    assert found == [(7, 123_456)]
    assert time.process_time() - start < 3.0  # 300 plain passes would take some minutes


def test_no_patterns_and_short_data() -> None:
    assert PatternIndex([]).find([1, 2, 3]) == []
    assert PatternIndex([[1, 2]]).find([1]) == []
    assert PatternIndex([[1, 2]]).find([]) == []
