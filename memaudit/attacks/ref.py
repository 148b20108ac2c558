"""ref: the target's mean log-probability minus the reference's (Carlini et al. 2021, arXiv 2012.07805)."""

from __future__ import annotations

from dataclasses import dataclass

from memaudit.attacks.base import Needs, ReferenceAttack, View


@dataclass(frozen=True, kw_only=True)
class Ref(ReferenceAttack):
    """Difference of mean log-probabilities, target minus reference."""

    name = "ref"
    needs = Needs(reference=True)
    source = "Carlini et al. 2021, arXiv 2012.07805"

    def score(self, view: View) -> float:
        return float(view.signals.logprob.mean() - view.reference_signals.logprob.mean())
