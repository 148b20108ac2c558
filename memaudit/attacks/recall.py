"""recall: the loss after a prefix of non-members over the loss alone (Xie et al. 2024, arXiv 2406.15968)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memaudit.attacks.base import TEXT, Attack, Needs, Record, Variant, View
from memaudit.attacks.ratio import divide

if TYPE_CHECKING:
    from memaudit.attacks.tools import Tools

SHOTS = ("apart", "judged")


@dataclass(frozen=True, kw_only=True)
class ReCaLL(Attack):
    """NLL(text given a prefix of non-members) / NLL(text).

    Prefix and text are tokenised apart and their ids joined, so that no merge crosses the seam. The prefix is
    the same for all texts and is forwarded once.

    Args:
        n_shots: non-members in the prefix; those that do not fit half of the context are dropped.
        shots: ``apart`` draws them from texts that are not judged; ``judged`` from the judged ones by their
            labels, as Fast-MIA does, for comparison with its table: such a result is marked.
        keep_bos: whether the text begins anew after the prefix, and that beginning is scored, as in the
            paper's code; only with tokenizers that add one.
    """

    n_shots: int = 10
    shots: str = "apart"
    keep_bos: bool = True

    name = "recall"
    source = "Xie et al. 2024, arXiv 2406.15968"

    def __post_init__(self) -> None:
        self._check(self.n_shots >= 1, "n_shots must be at least 1")
        self._check(self.shots in SHOTS, f"shots must be one of {', '.join(SHOTS)}")

    @property
    def requirements(self) -> Needs:
        return Needs(variants=True, nonmembers=self.shots == "apart")

    def pool(self) -> tuple[int, int]:
        return (self.n_shots, 0) if self.shots == "apart" else (0, 0)

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        prefix = tools.prefix("nonmembers", self.n_shots, self.name, judged=self.shots == "judged")
        return {
            TEXT: record.variant,
            "after nonmembers": tools.variant(record.text, prefix, keep_bos=self.keep_bos),
        }

    def score(self, view: View) -> float:
        after = -float(view.target["after nonmembers"].logprob.mean())
        return divide(after, -float(view.signals.logprob.mean()))
