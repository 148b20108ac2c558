"""White-box scores in the loop: the gradient norm of each canary's loss, through the wrapper, on the shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memaudit.attacks.base import View
from memaudit.attacks.gradnorm import GradNorm
from memaudit.probes import Probe
from memaudit.strategies.base import Strategy

GRADNORM = "gradnorm"


def gradient_norms(strategy: Strategy, probes: Sequence[Probe]) -> dict[str, float]:
    """Return each probe's squared gradient norm over the trained parameters; every rank calls.

    Args:
        strategy: how the model is spread. Gradients and optimizer state stay as they were.
        probes: without shared prefixes; the loss is the mean over the target tokens.
    """
    ids = [probe.token_ids for probe in probes]
    spans = [probe.span for probe in probes]
    norms = strategy.gradient_norms(ids, spans)
    return {probe.id: float(norm) for probe, norm in zip(probes, norms, strict=True)}


def gradnorm_scores(target: Mapping[str, float], reference: Mapping[str, float] | None) -> dict[str, float]:
    """Score canaries by their gradient norms, higher for more member-like.

    Args:
        target: canary id to squared norm under the audited weights.
        reference: the same under the weights before the first step, or None. Adapters that are off have no
            gradient, so a LoRA audit has no reference here.

    Example:
        >>> gradnorm_scores({"a": 0.25}, {"a": 4.0})
        {'a': 3.75}
    """
    attack = GradNorm()
    return {
        name: attack.score(
            View(
                id=name,
                target={},
                gradient=norm,
                reference_gradient=None if reference is None else reference[name],
            )
        )
        for name, norm in target.items()
    }
