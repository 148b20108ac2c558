"""From logits to token signals: one pass over the vocabulary, in chunks of rows, in fp32."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from memaudit.signals import Decoding

MOST_ROWS = 128
CACHE_BYTES = 4 << 20
"""Larger intermediate results leave a processor's cache, and each is then new memory: three times slower."""


def token_statistics(
    logits: Tensor, targets: Tensor, *, decodings: Sequence[Decoding] = (), chunk_rows: int | None = None
) -> dict[str, Tensor]:
    """Reduce next-token logits to the numbers that every attack and extraction measure needs.

    Args:
        logits: float [n, vocabulary] of any dtype; -inf masks a token out.
        targets: int64 [n], the token that really comes next.
        decodings: schemes under which the target's log-probability is wanted too.
        chunk_rows: rows reduced at a time; bounds the fp32 copies to chunk_rows * vocabulary. By default what
            stays in a processor's cache, and 128 on an accelerator.

    Returns:
        CPU tensors of shape [n]: logprob, mean, std, top1_logprob (float32), token_ids, top1_id, rank
        (int64) and, for each scheme, ``decoding:NAME`` (float32, -inf where truncated). The names mean
        what :class:`memaudit.signals.TokenSignals` says. (mean, std: Zhang 2025, Min-K%++.)

    Example:
        >>> out = token_statistics(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        >>> round(float(out["logprob"][0]), 4), float(out["std"][0])
        (-0.6931, 0.0)
    """
    pieces: dict[str, list[Tensor]] = {}
    if chunk_rows is None:
        fits = CACHE_BYTES // (4 * max(1, logits.shape[-1]))
        chunk_rows = min(MOST_ROWS, max(1, fits)) if logits.device.type == "cpu" else MOST_ROWS
    for start in range(0, len(logits), chunk_rows):
        chunk = logits[start : start + chunk_rows].float()
        target = targets[start : start + chunk_rows].to(chunk.device)
        for name, values in _reduce(chunk, target, decodings).items():
            pieces.setdefault(name, []).append(values)
    result = {name: torch.cat(values).cpu() for name, values in pieces.items()}
    result["token_ids"] = targets.cpu()
    return result


def _reduce(logits: Tensor, target: Tensor, decodings: Sequence[Decoding]) -> dict[str, Tensor]:
    """Reduce one chunk, float32 [n, vocabulary]."""
    logprobs = torch.log_softmax(logits, dim=-1)
    probabilities = logprobs.exp()
    # A masked token has probability 0 and log-probability -inf: it adds nothing, and 0 * -inf must not be NaN.
    finite = logprobs.masked_fill(probabilities == 0, 0.0)
    mean = (probabilities * finite).sum(-1)
    variance = (probabilities * (finite - mean[:, None]).square()).sum(-1)
    top1_logprob, top1_id = logprobs.max(-1)
    gold = logprobs.gather(-1, target[:, None])
    result = {
        "logprob": gold[:, 0],
        "mean": mean,
        "std": variance.clamp_min(0.0).sqrt(),
        "top1_logprob": top1_logprob,
        "top1_id": top1_id,
        "rank": (logprobs > gold).sum(-1),
    }
    for scheme in decodings:
        plain = scheme.temperature == 1 and scheme.top_p >= 1 and not 0 < scheme.top_k < logits.shape[-1]
        result[f"decoding:{scheme.name}"] = gold[:, 0] if plain else _decoding_logprob(logits, target, scheme)
    return result


def _decoding_logprob(logits: Tensor, target: Tensor, scheme: Decoding) -> Tensor:
    """Log-probability of the target after temperature, top-k and top-p, renormalised over what is left."""
    scores = logits / scheme.temperature if scheme.temperature != 1 else logits
    if 0 < scheme.top_k < scores.shape[-1]:
        best = scores.topk(scheme.top_k, dim=-1).values
        smallest_kept = best[:, -1:]
        if scheme.top_p >= 1:
            # What is kept is the best and what ties with the last of them: no need to write the vocabulary anew.
            ties = (scores == smallest_kept).sum(-1) - (best == smallest_kept).sum(-1)
            total = torch.logaddexp(best.logsumexp(-1), smallest_kept[:, 0] + ties.to(best.dtype).log())
            gold = scores.gather(-1, target[:, None])
            return (gold[:, 0] - total).masked_fill(gold[:, 0] < smallest_kept[:, 0], -torch.inf)
        scores = scores.masked_fill(scores < smallest_kept, -torch.inf)
    if scheme.top_p < 1:
        ascending, order = scores.sort(dim=-1)
        # A token goes when it and all less probable ones together hold no more than 1 - top_p.
        drop = ascending.softmax(-1).cumsum(-1) <= 1 - scheme.top_p
        drop[:, -1] = False
        scores = scores.masked_fill(drop.scatter(-1, order, drop), -torch.inf)
    return scores.log_softmax(-1).gather(-1, target[:, None])[:, 0]
