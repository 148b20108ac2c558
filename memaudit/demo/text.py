"""The demonstration's own data: short instruction rows put together from parts, and a tokenizer for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from memaudit.seeds import generator

_PLACES = [
    "harbour",
    "library",
    "orchard",
    "station",
    "museum",
    "bakery",
    "garden",
    "workshop",
    "theatre",
    "market",
]
_PEOPLE = [
    "baker",
    "pilot",
    "teacher",
    "painter",
    "farmer",
    "doctor",
    "sailor",
    "editor",
    "potter",
    "gardener",
]
_ACTS = [
    "opens",
    "repairs",
    "visits",
    "describes",
    "measures",
    "paints",
    "closes",
    "cleans",
    "photographs",
    "guards",
]
_WHEN = ["in the morning", "at noon", "before the storm", "after the meeting", "every week", "late in spring"]
_WHY = [
    "because the lamps were broken",
    "to meet an old friend",
    "since nobody else would",
    "as the plan had said",
    "for the second time",
    "while the others slept",
]
_TASKS = [
    "Write one sentence about a {person} and a {place}.",
    "What does the {person} do at the {place}?",
    "Describe in a line how the {person} spends the day near the {place}.",
    "Say when and why the {person} goes to the {place}.",
]


def instruction_rows(n: int, seed: int) -> list[dict[str, str]]:
    """Make rows with the columns instruction, input and output.

    Args:
        n: number of rows.
        seed: root seed; the same one gives the same rows.

    Example:
        >>> sorted(instruction_rows(1, seed=0)[0])
        ['input', 'instruction', 'output']
    """
    rng = generator(seed, "demo", "text")

    def pick(parts: list[str]) -> str:
        return parts[int(rng.integers(len(parts)))]

    rows = []
    for _ in range(n):
        person, place = pick(_PEOPLE), pick(_PLACES)
        answer = f"The {person} {pick(_ACTS)} the {place} {pick(_WHEN)} {pick(_WHY)}."
        rows.append(
            {"instruction": pick(_TASKS).format(person=person, place=place), "input": "", "output": answer}
        )
    return rows


def byte_tokenizer(texts: list[str], vocab_size: int) -> Any:
    """Train a byte-level BPE tokenizer on the texts: every string round-trips through it.

    Args:
        texts: what to train on.
        vocab_size: entries, special tokens included.

    Returns:
        A transformers PreTrainedTokenizerFast with pad and end-of-text tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
        name_or_path="memaudit-demo",
    )


def shuffled(n: int, seed: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the order of n rows in one epoch."""
    return generator(seed, "demo", "order", epoch).permutation(n)
