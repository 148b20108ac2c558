"""Scores computed from the definitions, one text at a time, with a model's own forward and nothing of memaudit."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import torch

Array = list[float]


class Plain:
    """What the papers' own code does: one forward a text and attack, full logits."""

    def __init__(self, model: Any, tokenizer: Any, reference: Any = None) -> None:
        self.model, self.tokenizer, self.reference = model, tokenizer, reference
        self.forwards = 0

    def rows(self, model: Any, text: str, prefix: list[int] | None = None) -> tuple[list[int], torch.Tensor]:
        """Target ids, and float64 log-distributions [targets, vocabulary] that predict them."""
        ids = self.tokenizer(text)["input_ids"]
        whole = [*(prefix or []), *ids]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([whole])).logits[0].double()
        self.forwards += 1
        first = len(prefix) if prefix else 1
        return whole[first:], torch.log_softmax(logits[first - 1 : -1], -1)

    def logprobs(self, model: Any, text: str, prefix: list[int] | None = None) -> torch.Tensor:
        ids, rows = self.rows(model, text, prefix)
        return rows[torch.arange(len(ids)), torch.tensor(ids)]

    def nll(self, text: str, prefix: list[int] | None = None) -> float:
        return -float(self.logprobs(self.model, text, prefix).mean())

    def loss(self, text: str) -> float:
        return -self.nll(text)

    def zlib(self, text: str) -> float:
        return -self.nll(text) / len(zlib.compress(text.encode()))

    def ref(self, text: str) -> float:
        return float(self.logprobs(self.model, text).mean() - self.logprobs(self.reference, text).mean())

    def ratio(self, text: str) -> float:
        return float(self.logprobs(self.reference, text).mean() / self.logprobs(self.model, text).mean())

    def mink(self, text: str, ratio: float = 0.2) -> float:
        values = sorted(self.logprobs(self.model, text).tolist())
        k = max(1, int(ratio * len(values)))
        return sum(values[:k]) / k

    def _minkpp(self, model: Any, text: str, ratio: float) -> float:
        ids, rows = self.rows(model, text)
        p = rows.exp()
        mean = (p * rows).sum(-1)
        std = ((p * rows.square()).sum(-1) - mean.square()).sqrt()
        z = (rows[torch.arange(len(ids)), torch.tensor(ids)] - mean) / std
        values = sorted(z.tolist())
        k = max(1, int(ratio * len(values)))
        return sum(values[:k]) / k

    def minkpp(self, text: str, ratio: float = 0.2) -> float:
        return self._minkpp(self.model, text, ratio)

    def ref_minkpp(self, text: str, ratio: float = 0.2) -> float:
        return self._minkpp(self.model, text, ratio) - self._minkpp(self.reference, text, ratio)

    def lower(self, text: str) -> float:
        return self.nll(text.lower()) / self.nll(text)

    def gapk(self, text: str) -> float:
        ids, rows = self.rows(self.model, text)
        p = rows.exp()
        std = ((p * rows.square()).sum(-1) - (p * rows).sum(-1).square()).sqrt()
        gap = ((rows[torch.arange(len(ids)), torch.tensor(ids)] - rows.max(-1).values) / std).tolist()
        if len(gap) >= 3:
            gap = [sum(gap[i : i + 3]) / 3 for i in range(len(gap) - 2)]
        k = max(1, int(0.2 * len(gap)))
        return sum(sorted(gap)[:k]) / k

    def surp(self, text: str) -> float:
        ids, rows = self.rows(self.model, text)
        entropy = -(rows.exp() * rows).sum(-1)
        logprob = rows[torch.arange(len(ids)), torch.tensor(ids)]
        improbable = logprob <= torch.quantile(logprob, 0.2)
        chosen = improbable & (entropy < 2.0)
        if not chosen.any():
            chosen = improbable & (entropy == entropy[improbable].min())
        return float(logprob[chosen].mean())

    def wbc(self, text: str) -> float:
        own, other = (self.logprobs(m, text).tolist() for m in (self.model, self.reference))
        shares = []
        for width in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40):
            w = min(width, len(own))
            wins = [sum(own[i : i + w]) > sum(other[i : i + w]) for i in range(len(own) - w + 1)]
            shares.append(sum(wins) / len(wins))
        return sum(shares) / len(shares)

    def ez(self, text: str) -> float:
        ids, rows = self.rows(self.model, text)
        own = rows[torch.arange(len(ids)), torch.tensor(ids)]
        difference = own - self.logprobs(self.reference, text)
        wrong = rows.argmax(-1) != torch.tensor(ids)
        if wrong.any():
            difference = difference[wrong]
        gained, lost = float(difference.clamp_min(0).sum()), float((-difference).clamp_min(0).sum())
        return math.log((gained + 1e-6) / (lost + 1e-6))

    def methods(self) -> dict[str, Callable[[str], float]]:
        names = ["loss", "zlib", "mink", "minkpp", "lower", "gapk", "surp"]
        if self.reference is not None:
            names += ["ref", "ratio", "ref_minkpp", "wbc", "ez"]
        return {name: getattr(self, name) for name in names}
