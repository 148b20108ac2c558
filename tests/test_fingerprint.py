"""The weights' fingerprint: any changed bit changes it, whatever the dtype, the shape or where the shard begins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memaudit.fingerprint import _CHUNK, _checksum, model_fingerprint
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_llama

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8]


def by_hand(tensor: torch.Tensor) -> tuple[int, int]:
    """The definition: the bytes as little-endian 64-bit words, the last one filled up with zeros."""
    data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    plain = weighted = 0
    for number, start in enumerate(range(0, len(data), 8), 1):
        word = int.from_bytes(data[start : start + 8], "little")
        plain += word
        weighted += number * word
    return plain % 2**64, weighted % 2**64


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 70), st.integers(0, 5), st.integers(0, 2**31))
def test_against_the_definition(dtype: torch.dtype, size: int, offset: int, seed: int) -> None:
    whole = (torch.randn(size + offset, generator=torch.Generator().manual_seed(seed)) * 50).to(dtype)
    assert _checksum(whole[offset:]) == by_hand(whole[offset:])


def test_more_than_one_chunk() -> None:
    words = torch.arange(_CHUNK + 5, dtype=torch.int64)
    n = words.numel()
    assert _checksum(words) == (n * (n - 1) // 2 % 2**64, sum(i * (i + 1) for i in range(n)) % 2**64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_changed_or_swapped_value_changes_it(dtype: torch.dtype) -> None:
    model = tiny_llama(96, 1, 32).to(dtype)
    strategy = resolve(model)
    first = model_fingerprint(strategy)
    assert model_fingerprint(strategy) == first
    weight = model.model.layers[0].mlp.up_proj.weight
    with torch.no_grad():
        kept = weight[0, :2].clone()
        weight[0, 0], weight[0, 1] = kept[1], kept[0]
        assert model_fingerprint(strategy) != first
        weight[0, :2] = kept
        assert model_fingerprint(strategy) == first
        weight[3, 3] += 0.5
        assert model_fingerprint(strategy) != first
