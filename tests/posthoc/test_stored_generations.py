"""Stored generations serve whatever they are long enough for; one that was given up never passes for a whole one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from memaudit.errors import SignalStoreError
from memaudit.posthoc.strategies import AbsentStrategy, RememberingStrategy, model_record
from memaudit.store import SignalStore
from memaudit.strategies.base import Strategy
from memaudit.strategies.decoding import GiveUp
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_llama
from tests.strategies.test_generation import PROMPTS, greedy


def until(index: int, length: int) -> GiveUp:
    """Give one prompt up once it has so many new tokens."""
    return lambda i, new: i == index and len(new) >= length


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Strategy, SignalStore]:
    return resolve(tiny_llama(96, 2, 32)), SignalStore(tmp_path / "store")


def absent(strategy: Strategy, store: SignalStore) -> AbsentStrategy:
    facts = strategy.facts()
    named = {name: getattr(facts, name) for name in facts.__slots__}
    return AbsentStrategy(store, "weights", model_record(strategy), named)


def test_a_text_that_was_given_up_is_generated_again_for_another_question(
    stored: tuple[Strategy, SignalStore],
) -> None:
    strategy, store = stored
    whole = [greedy(strategy.model, prompt, 12) for prompt in PROMPTS]
    cut = [whole[0], whole[1][:4], whole[2]]
    first = RememberingStrategy(strategy, store, "weights")
    assert first.generate(PROMPTS, max_new_tokens=12, give_up=until(1, 4)) == cut and first.generated == 3
    again = RememberingStrategy(strategy, store, "weights")
    seen: list[int] = []

    def noting(index: int, new: Sequence[int]) -> bool:
        ended = until(1, 4)(index, new)
        seen.extend([index] * ended)
        return ended

    # The same question: the store has all of it, and the caller hears again which text was given up.
    assert again.generate(PROMPTS, max_new_tokens=12, give_up=noting) == cut
    assert again.generated == 0 and seen == [1]
    merged = absent(strategy, store)
    assert merged.generate(PROMPTS, max_new_tokens=12, give_up=until(1, 4)) == cut
    # Another question does not end that text: what is stored of it is no answer.
    with pytest.raises(SignalStoreError, match="lacks 1 generations"):
        merged.generate(PROMPTS, max_new_tokens=12)
    later = [whole[0], whole[1][:8], whole[2]]
    assert again.generate(PROMPTS, max_new_tokens=12, give_up=until(1, 5)) == later
    assert again.generated == 1
    assert again.generate(PROMPTS, max_new_tokens=12) == whole and again.generated == 2
    assert merged.generate(PROMPTS, max_new_tokens=12) == whole


def test_length_that_was_asked_for_counts(stored: tuple[Strategy, SignalStore]) -> None:
    strategy, store = stored
    whole = [greedy(strategy.model, prompt, 12) for prompt in PROMPTS]
    strategy.model.generation_config.eos_token_id = end = whole[2][3]
    ended = [greedy(strategy.model, prompt, 12, end) for prompt in PROMPTS]
    remembering = RememberingStrategy(strategy, store, "weights")
    assert remembering.generate(PROMPTS, max_new_tokens=6) == [text[:6] for text in ended]
    assert remembering.generate(PROMPTS, max_new_tokens=5) == [text[:5] for text in ended]
    assert remembering.generated == 3
    # A text that ended by itself serves any length.
    longer = sum(len(text) > 5 for text in ended)
    assert 0 < longer < 3
    assert remembering.generate(PROMPTS, max_new_tokens=12) == ended and remembering.generated == 3 + longer


def test_batches_of_other_lengths_are_enough_for_a_caller_that_says_so(
    stored: tuple[Strategy, SignalStore],
) -> None:
    """Jobs batch shorter texts together; merged, the same texts stand beside longer ones."""
    strategy, store = stored
    whole = greedy(strategy.model, PROMPTS[0], 7)
    RememberingStrategy(strategy, store, "weights").generate(PROMPTS[:1], max_new_tokens=7)
    merged = absent(strategy, store)
    assert merged.generate(PROMPTS[:1], max_new_tokens=12, give_up=lambda _, new: len(new) >= 7) == [whole]
    with pytest.raises(SignalStoreError):
        merged.generate(PROMPTS[:1], max_new_tokens=12, give_up=lambda _, new: len(new) >= 8)
