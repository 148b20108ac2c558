"""loss: the mean log-probability of a text's tokens (Yeom et al. 2018, arXiv 1709.01604)."""

from __future__ import annotations

from dataclasses import dataclass

from memaudit.attacks.base import Attack, View


@dataclass(frozen=True, kw_only=True)
class Loss(Attack):
    """Mean log-probability, the negated loss of the paper.

    Example:
        >>> from memaudit.signals import TokenSignals
        >>> one = TokenSignals.from_lists(token_ids=[3, 4], logprob=[-0.5, -1.5], mean=[-1.0, -1.0],
        ...     std=[0.5, 0.5], top1_logprob=[-0.5, -0.2], top1_id=[3, 9], rank=[0, 1])
        >>> Loss().score(View(id="a", target={"text": one}))
        -1.0
    """

    name = "loss"
    source = "Yeom et al. 2018, arXiv 1709.01604"

    def score(self, view: View) -> float:
        return float(view.signals.logprob.mean())
