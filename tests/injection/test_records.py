"""Existing records as canaries: what is scored is the trained side, whatever the format."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from memaudit.errors import InjectionError, InputTypeError
from memaudit.injection import canaries_from_records, render
from memaudit.preflight import run_preflight
from memaudit.privacy import coin_flip
from tests.helpers import sample_text, tiny_tokenizer, tiny_tokenizers

TEXTS = sample_text(40, seed=8)

SHAPES: dict[str, Any] = {
    "text": lambda s: {"text": s},
    "prompt_completion": lambda s: {"prompt": "Say something.\n", "completion": s},
    "messages": lambda s: {
        "messages": [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": s}]
    },
    "sharegpt": lambda s: {"conversations": [{"from": "human", "value": "Go"}, {"from": "gpt", "value": s}]},
    "alpaca": lambda s: {"instruction": "Go on.", "input": "", "output": s},
    "preference": lambda s: {"prompt": "Go on.\n", "chosen": s, "rejected": "No."},
}


@pytest.mark.parametrize("name", list(tiny_tokenizers()))
@pytest.mark.parametrize("shape", list(SHAPES))
def test_what_is_scored_is_the_trained_side(name: str, shape: str) -> None:
    tokenizer = tiny_tokenizers()[name]
    dataset = datasets.Dataset.from_list([SHAPES[shape](text) for text in TEXTS])
    flip = coin_flip(dataset, num_canaries=20, key=1)
    manifest = canaries_from_records(dataset, flip, tokenizer=tokenizer)
    assert manifest.fmt == shape
    assert [c.metadata["dataset_index"] for c in manifest.canaries] == flip.canary_indices.tolist()
    assert [c.included for c in manifest.canaries] == flip.included.tolist()
    for canary in manifest.canaries:
        one = render(canary, manifest.fmt, tokenizer)
        start, stop = one.span
        assert start >= 1 and one.ids[start:stop] == canary.secret_ids
        whole = TEXTS[canary.metadata["dataset_index"]]
        # The decoded target is the answer, but for a text's first token, which nothing predicts.
        target = tokenizer.decode(list(canary.secret_ids), skip_special_tokens=True).strip()
        answer = tokenizer.decode(tokenizer(whole, add_special_tokens=False)["input_ids"]).strip()
        assert answer.endswith(target) and len(target) >= len(answer) - 14
        if shape != "text":
            assert target == answer


def test_the_pre_flight_finds_the_records_that_stayed() -> None:
    tokenizer = tiny_tokenizer()
    dataset = datasets.Dataset.from_list([{"text": f"{text} {index}"} for index, text in enumerate(TEXTS)])
    flip = coin_flip(dataset, num_canaries=20, key=3)
    manifest = canaries_from_records(dataset, flip, tokenizer=tokenizer)
    kept = dataset.select(flip.train_indices(len(dataset)))
    rows = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in kept]
    result = run_preflight(
        [{**row, "labels": row["input_ids"]} for row in rows], manifest, tokenizer=tokenizer
    )
    assert result.counts.found == len(manifest.members) and result.counts.leaked == 0
    everything = [{"input_ids": tokenizer(row["text"])["input_ids"]} for row in dataset]
    leaked = run_preflight(everything, manifest, tokenizer=tokenizer)
    assert leaked.counts.leaked == len(manifest.held_out)
    assert "excluded-present" in {finding.code for finding in leaked.errors}


def test_pretokenised_records_follow_their_labels() -> None:
    tokenizer = tiny_tokenizer()
    rows = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        rows.append({"input_ids": ids, "labels": [-100] * 3 + ids[3:]})
    dataset = datasets.Dataset.from_list(rows)
    manifest = canaries_from_records(dataset, coin_flip(dataset, num_canaries=10, key=0), tokenizer=tokenizer)
    for canary in manifest.canaries:
        assert list(canary.secret_ids) == rows[canary.metadata["dataset_index"]]["input_ids"][3:]


def test_records_that_cannot_be_canaries() -> None:
    tokenizer = tiny_tokenizer()
    dataset = datasets.Dataset.from_list([{"text": "a"}, {"text": "b"}])
    flip = coin_flip(dataset, num_canaries=2, key=0)
    with pytest.raises(InjectionError, match="leave such records out"):
        canaries_from_records(dataset, flip, tokenizer=tokenizer)
    with pytest.raises(InjectionError, match="pass the same dataset"):
        canaries_from_records(dataset.select([0]), flip, tokenizer=tokenizer)
    with pytest.raises(InputTypeError, match="fast tokenizer"):
        canaries_from_records(dataset, flip)


def test_repeated_records_are_told() -> None:
    tokenizer = tiny_tokenizer()
    dataset = datasets.Dataset.from_list([{"text": TEXTS[index % 5]} for index in range(20)])
    manifest = canaries_from_records(dataset, coin_flip(dataset, num_canaries=20, key=0), tokenizer=tokenizer)
    assert manifest.warnings == ("15 canary records repeat another one: their coins are not independent",)
