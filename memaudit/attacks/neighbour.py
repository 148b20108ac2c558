"""neighbour: the text against what a masked language model makes of it (Mattern et al. 2023, arXiv 2305.18462)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from memaudit.attacks.base import TEXT, Attack, Needs, Record, UnscorableError, Variant, View
from memaudit.errors import ConfigurationError

if TYPE_CHECKING:
    from memaudit.attacks.tools import Tools


@dataclass(frozen=True, kw_only=True)
class Neighbour(Attack):
    """Mean log-probability minus its mean over n neighbours, texts with one token replaced by a masked model.

    Where the masked model's tokenizer does not give the text back as it was (it lower-cases, say), the text as
    that tokenizer writes it stands for the text, so that both sides went through the same hands.

    Args:
        n: neighbours a text.
        top_k: candidates of each position.
        dropout: share of the replaced token's embedding that is dropped, in [0, 1).
    """

    n: int = 100
    top_k: int = 10
    dropout: float = 0.7

    name = "neighbour"
    needs = Needs(variants=True, masked_lm=True)
    source = "Mattern et al. 2023, arXiv 2305.18462"

    def __post_init__(self) -> None:
        self._check(self.n >= 1 and self.top_k >= 1, "n and top_k must be at least 1")
        self._check(0 <= self.dropout < 1, "dropout must be in [0, 1)")

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        if tools.rewrite is None:
            raise ConfigurationError(
                "attack neighbour needs a masked language model; name one with masked_lm"
            )
        seed = tools.seed_for(self.name, record.text)
        original, *others = tools.rewrite(record.text, self.n, self.top_k, self.dropout, seed)
        if not others:
            raise UnscorableError("the masked language model found no neighbour")
        made = {f"neighbour/{i}": tools.variant(text) for i, text in enumerate(others)}
        return {TEXT: record.variant, "original": tools.variant(original), **made}

    def score(self, view: View) -> float:
        neighbours = [one.logprob.mean() for one in view.variants("neighbour")]
        return float(view.target["original"].logprob.mean() - np.mean(neighbours))
