"""gradnorm: minus the squared norm of the loss gradient (opake's gradient scores; Nasr et al. 2019, 1812.00910)."""

from __future__ import annotations

from dataclasses import dataclass

from memaudit.attacks.base import Needs, ReferenceAttack, UnscorableError, View


@dataclass(frozen=True, kw_only=True)
class GradNorm(ReferenceAttack):
    """Minus the squared gradient norm of the mean loss, plus the reference's where there is one of its own.

    The norm is over the parameters that are trained. A reference by adapters off has no gradient of its own.
    """

    name = "gradnorm"
    needs = Needs(gradients=True)
    source = "opake gradient_scores; Nasr et al. 2019, arXiv 1812.00910"

    @property
    def requirements(self) -> Needs:
        return Needs(gradients=True, reference=bool(self.reference))

    def score(self, view: View) -> float:
        if view.gradient is None:
            raise UnscorableError("no gradient was measured: the text is longer than the context")
        return (view.reference_gradient or 0.0) - view.gradient
