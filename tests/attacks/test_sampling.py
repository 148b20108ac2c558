"""Samples: their law, their seeds, their batches, where they end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats

from memaudit.attacks import Generation
from memaudit.attacks.samia import SaMIA, overlap, rouge1_recall
from memaudit.attacks.tools import Tools
from memaudit.posthoc.membership.models import open_backend
from memaudit.posthoc.membership.noise import EnoughWords, RowNoise, truncated
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer(add_bos=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(512, positions=256).eval()


SCHEMES = [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 3, 1.0), (2.0, 5, 0.8)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SCHEMES)
def test_noise_draws_from_the_truncated_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -1.0, -3.0]])
    n = 4000
    noise = RowNoise(range(n), temperature=temperature, top_k=top_k, top_p=top_p)
    drawn = noise(torch.zeros(n, 1), logits.expand(n, -1)).argmax(-1)
    law = truncated(logits / temperature, top_k, top_p).softmax(-1)[0].double()
    counts = torch.bincount(drawn, minlength=6)
    assert counts[law == 0].sum() == 0
    kept = law > 0
    expected = (law[kept] / law[kept].sum() * n).numpy()
    assert stats.chisquare(counts[kept].numpy(), expected).pvalue > 1e-3


def test_truncation_is_that_of_transformers() -> None:
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    scores = torch.randn(20, 50) * 3
    for k, p in ((5, 1.0), (0, 0.7), (10, 0.5), (1, 1.0)):
        expected = scores
        if k:
            expected = TopKLogitsWarper(k)(None, expected)
        if p < 1:
            expected = TopPLogitsWarper(p)(None, expected)
        assert torch.equal(truncated(scores, k, p).isinf(), expected.isinf())


def wanted(tokenizer: Any, n: int) -> list[Generation]:
    return [
        Generation(
            prompt_ids=tuple(tokenizer(text)["input_ids"][: 5 + i % 4]),
            seeds=(2 * i, 2 * i + 1),
            max_new_tokens=12,
            top_k=20,
        )
        for i, text in enumerate(sample_text(n, seed=8))
    ]


def test_samples_are_the_same_in_every_batch(model: Any, tokenizer: Any) -> None:
    asked = wanted(tokenizer, 7)
    by_batch = [
        open_backend(model, tokenizer=tokenizer, max_batch_size=size).generate(asked) for size in (1, 4, 32)
    ]
    assert by_batch[0] == by_batch[1] == by_batch[2]
    one, two = by_batch[0][0]
    assert one != two and len(one) == 12
    alone = open_backend(model, tokenizer=tokenizer).generate(asked[3:4])
    assert alone[0] == by_batch[0][3]


def test_a_sample_ends_once_it_has_words_enough(model: Any, tokenizer: Any) -> None:
    text = " ".join(sample_text(3, seed=2))
    tools = Tools(tokenizer=tokenizer, max_length=256)
    attack = SaMIA(n=3, max_new_tokens=200)
    from memaudit.attacks.base import Record

    asked = attack.generation(Record(id="a", text=text, variant=tools.variant(text)), tools)
    assert asked.max_words == len(text.split()) - len(text.split()) // 2
    backend = open_backend(model, tokenizer=tokenizer)
    full = Generation(**{**{name: getattr(asked, name) for name in asked.__slots__}, "max_words": 0})
    short, long = (backend.generate([one])[0] for one in (asked, full))
    for a, b in zip(short, long, strict=True):
        assert b[: len(a)] == a
        words = [tokenizer.decode(ids).split()[: asked.max_words] for ids in (a, b)]
        assert words[0] == words[1]
    assert any(len(a) < len(b) for a, b in zip(short, long, strict=True))


def test_dummies_are_left_alone() -> None:
    scores = torch.randn(3, 7)
    out = RowNoise([1], temperature=1.0, top_k=0, top_p=1.0)(torch.zeros(3, 1), scores)
    assert torch.equal(out[1:], scores[1:]) and not torch.equal(out[:1], scores[:1])
    done = EnoughWords(lambda ids: "a b c", [(1, True)], 0)(torch.zeros(3, 8), None)
    assert done.tolist() == [True, True, True]


def test_rouge_recall_by_hand() -> None:
    assert rouge1_recall(["a", "b", "b", "c"], ["b", "b", "b", "a"]) == 0.75
    assert rouge1_recall([], ["a"]) == 0.0
    assert overlap(["a", "b"], [["a"], ["c"]], weigh=False) == 0.25
