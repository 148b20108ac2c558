"""conrecall: the loss after non-members against the loss after members (Wang et al. 2025, arXiv 2409.03363)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memaudit.attacks.base import TEXT, Attack, Needs, Record, Variant, View
from memaudit.attacks.ratio import divide
from memaudit.attacks.recall import SHOTS

if TYPE_CHECKING:
    from memaudit.attacks.tools import Tools


@dataclass(frozen=True, kw_only=True)
class ConReCaLL(Attack):
    """(NLL(text given non-members) - gamma NLL(text given members)) / NLL(text).

    Args:
        n_shots: texts in each prefix; those that do not fit half of the context are dropped.
        gamma: weight of the members' prefix, at least 0.
        shots: ``apart`` or ``judged``, as in recall.
        keep_bos: as in recall.
    """

    n_shots: int = 10
    gamma: float = 0.5
    shots: str = "apart"
    keep_bos: bool = True

    name = "conrecall"
    source = "Wang et al. 2025, arXiv 2409.03363"

    def __post_init__(self) -> None:
        self._check(self.n_shots >= 1, "n_shots must be at least 1")
        self._check(self.gamma >= 0, "gamma must be at least 0")
        self._check(self.shots in SHOTS, f"shots must be one of {', '.join(SHOTS)}")

    @property
    def requirements(self) -> Needs:
        apart = self.shots == "apart"
        return Needs(variants=True, nonmembers=apart, members=apart)

    def pool(self) -> tuple[int, int]:
        return (self.n_shots, self.n_shots) if self.shots == "apart" else (0, 0)

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        judged = self.shots == "judged"
        # Recall's own seed draws the non-members, so that both attacks share that prefix.
        without = tools.prefix("nonmembers", self.n_shots, "recall", judged=judged)
        within = tools.prefix("members", self.n_shots, self.name, judged=judged)
        return {
            TEXT: record.variant,
            "after nonmembers": tools.variant(record.text, without, keep_bos=self.keep_bos),
            "after members": tools.variant(record.text, within, keep_bos=self.keep_bos),
        }

    def score(self, view: View) -> float:
        without = -float(view.target["after nonmembers"].logprob.mean())
        within = -float(view.target["after members"].logprob.mean())
        own = -float(view.signals.logprob.mean())
        difference = without - self.gamma * within
        return divide(difference, own) if difference >= 0 else -divide(-difference, own)
