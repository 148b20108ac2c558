"""lower: the loss of the lower-cased text over the loss of the text (Carlini et al. 2021, arXiv 2012.07805)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memaudit.attacks.base import TEXT, Attack, Needs, Record, Variant, View
from memaudit.attacks.ratio import divide

if TYPE_CHECKING:
    from memaudit.attacks.tools import Tools


@dataclass(frozen=True, kw_only=True)
class Lower(Attack):
    """NLL(lower-cased text) / NLL(text). A text without capitals scores 1 and costs nothing."""

    name = "lower"
    needs = Needs(variants=True)
    source = "Carlini et al. 2021, arXiv 2012.07805"

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        return {TEXT: record.variant, "lower": tools.variant(record.text.lower())}

    def score(self, view: View) -> float:
        return divide(-float(view.target["lower"].logprob.mean()), -float(view.signals.logprob.mean()))
