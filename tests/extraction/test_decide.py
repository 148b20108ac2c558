"""The proofs against every continuation there is, over a vocabulary small enough to try them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from memaudit.extraction.decide import compare, decide, still_possible


def decode(ids: Sequence[int]) -> str:
    """Return one letter or word part a token; tokens differ in length and some are white space."""
    pieces = ["a", "bb", " ", "c d", "e ", "xyz", " f", "g"]
    return "".join(pieces[i] for i in ids)


def endings(known: Sequence[int], most: int, vocabulary: Sequence[int]) -> Iterator[list[int]]:
    """Yield every output that begins with ``known`` and has at most ``most`` tokens."""
    for more in range(most - len(known) + 1):
        for tail in product(vocabulary, repeat=more):
            yield [*known, *tail]


@pytest.mark.parametrize("slack", [0, 1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_over_ids_no_continuation_contradicts_a_proof(seed: int, slack: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 6))
    suffix = rng.integers(0, 3, size).tolist()
    vocabulary = [0, 1, 2, 3]  # 3 is never in the suffix
    for length in range(1, size + slack + 1):
        known = [int(token) for token in rng.choice(vocabulary, length)]
        if rng.random() < 0.5:
            known[: length // 2] = suffix[: length // 2]
        near = any(compare(suffix, o, slack=slack).near for o in endings(known, size + slack, vocabulary))
        if near:
            assert still_possible(suffix, known, slack=slack)


@pytest.mark.parametrize("seed", range(12))
def test_over_text_no_continuation_contradicts_a_proof(seed: int) -> None:
    rng = np.random.default_rng(seed)
    suffix = rng.integers(0, 8, 4).tolist()
    for length in range(1, 6):
        known = [int(token) for token in rng.integers(0, 8, length)]
        if rng.random() < 0.5:
            known[:2] = suffix[: len(known[:2])]
        outputs = endings(known, min(6, length + 3), range(8))
        if any(compare(suffix, o, slack=2, decode=decode).near for o in outputs):
            assert still_possible(suffix, known, slack=2, decode=decode)


def test_the_proof_is_of_use_over_long_suffixes() -> None:
    """24 tokens that have nothing in common with the suffix are given up after nine, over ids and over text."""
    suffix, other = list(range(24)), list(range(100, 124))
    letters = np.random.default_rng(0).integers(97, 123, (200, 4))
    names = ["".join(map(chr, row)) + " " for row in letters]

    def words(ids: Sequence[int]) -> str:
        return "".join(names[i] for i in ids)

    for text in (None, words):
        given_up = [not still_possible(suffix, other[:n], decode=text) for n in range(1, 24)]
        assert not given_up[0] and all(given_up[8:])
        assert still_possible(suffix, suffix[:10], decode=text)
        assert still_possible(suffix, [*other[:3], *suffix[:10]], decode=text)


def test_positive_proof_holds_for_every_continuation() -> None:
    rng = np.random.default_rng(0)
    suffix = rng.integers(0, 50, 20).tolist()
    verdict = decide(suffix, 18, 77)
    assert verdict is not None and verdict.near and verdict.match is None
    for _ in range(300):
        tail = rng.integers(0, 50, rng.integers(0, 6)).tolist()
        assert compare(suffix, [*suffix[:18], 77, *tail]).near
    assert decide(suffix, 17, 77) is None  # three of twenty may differ: too many to be sure


def test_positive_proof_over_text_counts_characters() -> None:
    names = ["a" * 20, "b" * 20, "c" * 20, "d" * 20, "ee", "zzzz"]

    def text(ids: Sequence[int]) -> str:
        return "".join(names[i] for i in ids)

    suffix = [0, 1, 2, 3, 4]  # the last token is 2 of 82 characters, though one token of five
    verdict = decide(suffix, 4, 5, decode=text)
    assert verdict is not None and verdict.near
    for tail in ([], [5], [0, 1], [5, 5, 5]):
        assert compare(suffix, [*suffix[:4], 5, *tail], decode=text).near
    assert decide(suffix, 4, 5) is None or not decide(suffix, 4, 5).near  # type: ignore[union-attr]


def test_an_output_that_ends_at_the_miss_is_known_whole() -> None:
    suffix = list(range(20))
    early, late = decide(suffix, 5, 2, stop_ids=[2]), decide(suffix, 19, 2, stop_ids=[2])
    assert early is not None and not early.near and early.match == compare(suffix, suffix[:5])
    assert late is not None and late.near and late.match is not None
    assert late.match.edit_distance == pytest.approx(1 / 20)


def test_partial_characters_are_never_counted_as_known() -> None:
    def text(ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")

    suffix = list("これは秘密".encode())
    known = suffix[:10]  # ends within a character
    assert text(known).endswith("\ufffd")
    assert still_possible(suffix, known, decode=text)
    assert not still_possible(suffix, list("あいうえおかきく".encode()), decode=text)
