"""Sampling with a seed for each sample: Gumbel noise of its own for every row, whatever else is in the batch.

The largest of log-probabilities plus independent Gumbel noise is a draw from the distribution (Gumbel 1954;
Maddison et al. 2014, arXiv 1411.0030). With the noise of a row drawn from its own generator, greedy decoding of
the noisy scores samples each row by its own seed, alike in every batch and on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

CHECK_EVERY = 8
"""Steps between looks at whether a row has words enough."""


class RowNoise:
    """A transformers logits processor: temperature, top-k, top-p, then each row's own noise.

    Rows beyond the seeds (dummies that keep ranks in step) are left as they are.

    Args:
        seeds: one a row.
        temperature: above 0, one for the batch.
        top_k: 0 keeps all.
        top_p: 1.0 keeps all.
    """

    def __init__(self, seeds: Sequence[int], *, temperature: float, top_k: int, top_p: float) -> None:
        self._generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
        self._temperature, self._top_k, self._top_p = temperature, top_k, top_p

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return noisy scores, float32 [rows, vocabulary], whose largest entry is the sample."""
        n = min(len(self._generators), len(scores))
        if n == 0:
            return scores
        kept = truncated(scores[:n].float() / self._temperature, self._top_k, self._top_p)
        uniform = torch.stack(
            [torch.rand(scores.shape[-1], generator=one, dtype=torch.float64) for one in self._generators[:n]]
        )
        noise = -torch.log(-torch.log(uniform.clamp_(1e-300, 1 - 1e-16)))
        return torch.cat([kept + noise.to(kept), scores[n:].float()])


def truncated(scores: Tensor, top_k: int, top_p: float) -> Tensor:
    """Mask what top-k and then top-p leave out with -inf.

    Example:
        >>> truncated(torch.tensor([[3.0, 2.0, 1.0]]), 2, 1.0).tolist()
        [[3.0, 2.0, -inf]]
    """
    if 0 < top_k < scores.shape[-1]:
        least = scores.topk(top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < least, -torch.inf)
    if top_p < 1.0:
        ordered, index = scores.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        drop = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, index, before >= top_p)
        scores = scores.masked_fill(drop, -torch.inf)
    return scores


class EnoughWords:
    """A transformers stopping criterion: a row ends once its new tokens hold more words than it needs.

    Args:
        decode: ids to text.
        limits: (words, spaced) for each row; 0 words set no end.
        start: length of the padded prompts.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], limits: Sequence[tuple[int, bool]], start: int
    ) -> None:
        self._decode, self._limits, self._start = decode, limits, start
        self._done = [False] * len(limits)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which rows are done, bool [rows]; rows beyond the limits (dummies) are done at once."""
        if (input_ids.shape[1] - self._start) % CHECK_EVERY == 0:
            for row, (words, spaced) in enumerate(self._limits):
                if words and not self._done[row]:
                    text = self._decode(input_ids[row, self._start :].tolist())
                    # One more than needed, so that the last one that counts is whole.
                    self._done[row] = count_words(text, spaced) > words
        rest = len(input_ids) - len(self._done)
        return torch.tensor(self._done[: len(input_ids)] + [True] * rest, device=input_ids.device)


def count_words(text: str, spaced: bool) -> int:
    """Count words between white space, or characters where words are not spaced.

    Example:
        >>> count_words("two words", True), count_words("二字", False)
        (2, 2)
    """
    return len(text.split()) if spaced else sum(not one.isspace() for one in text)
