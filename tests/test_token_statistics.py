"""One pass over the vocabulary against float64 numpy, and against transformers' own truncation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from memaudit.signals import Decoding
from memaudit.token_statistics import token_statistics


def by_hand(logits: np.ndarray, target: int) -> dict[str, float]:
    x = logits.astype(np.float64)
    lp = x - x.max() - np.log(np.exp(x - x.max()).sum())
    p = np.exp(lp)
    keep = p > 0
    mean = float((p[keep] * lp[keep]).sum())
    std = float(np.sqrt((p[keep] * (lp[keep] - mean) ** 2).sum()))
    return {
        "logprob": lp[target],
        "mean": mean,
        "std": std,
        "top1_logprob": lp.max(),
        "top1_id": int(lp.argmax()),
        "rank": int((lp > lp[target]).sum()),
    }


@pytest.mark.parametrize("vocabulary", [2, 17, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_against_float64(vocabulary: int, dtype: torch.dtype, chunk: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = (torch.randn(7, vocabulary, generator=generator) * 4).to(dtype)
    targets = torch.randint(vocabulary, (7,), generator=generator)
    result = token_statistics(logits, targets, chunk_rows=chunk)
    for row in range(7):
        for name, right in by_hand(logits[row].float().numpy(), int(targets[row])).items():
            assert float(result[name][row]) == pytest.approx(right, abs=2e-5), name


def test_masked_vocabulary_gives_no_nan() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    result = token_statistics(logits, torch.tensor([0]))
    right = by_hand(np.array([0.0, 1.0]), 0)
    for name in ("logprob", "mean", "std"):
        assert float(result[name][0]) == pytest.approx(right[name], abs=1e-6)


@pytest.mark.parametrize(
    "scheme",
    [
        Decoding(),
        Decoding(0.7),
        Decoding(1.3, 5),
        Decoding(1.0, 0, 0.8),
        Decoding(0.9, 20, 0.6),
        Decoding(1.0, 1),
    ],
)
def test_decoding_schemes_equal_the_truncation_of_transformers(scheme: Decoding) -> None:
    logits = torch.randn(40, 60, generator=torch.Generator().manual_seed(1)) * 3
    targets = torch.arange(40)
    scores = TemperatureLogitsWarper(scheme.temperature)(None, logits) if scheme.temperature != 1 else logits
    if scheme.top_k:
        scores = TopKLogitsWarper(scheme.top_k)(None, scores)
    if scheme.top_p < 1:
        scores = TopPLogitsWarper(scheme.top_p)(None, scores)
    right = scores.log_softmax(-1)[torch.arange(40), targets]
    ours = token_statistics(logits, targets, decodings=[scheme])[f"decoding:{scheme.name}"]
    torch.testing.assert_close(ours, right, atol=1e-5, rtol=1e-5)
