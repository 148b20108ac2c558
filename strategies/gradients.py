"""Squared gradient norms of single records, without touching any ``.grad``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from memaudit.errors import StrategyError
from memaudit.strategies.base import Forward


def record_loss(forward: Forward, ids: Sequence[int], span: tuple[int, int]) -> Tensor:
    """Return the mean negative log-probability, in nats and float32, of ``ids[span]`` given what precedes it."""
    start, stop = span
    if not 1 <= start < stop <= len(ids):
        raise StrategyError(f"span {span} does not fit {len(ids)} tokens; it starts at 1 or later")
    inputs = torch.tensor([list(ids)], device=forward.device)
    rows = torch.arange(start - 1, stop - 1, device=forward.device)
    logits = forward(inputs, torch.ones_like(inputs), rows).float()
    targets = torch.tensor(list(ids[start:stop]), device=logits.device)
    return nn.functional.cross_entropy(logits, targets)


def squared_norm(tensor: Tensor) -> float:
    """Return the sum of squares, accumulated in float64."""
    precise = torch.float32 if tensor.device.type == "mps" else torch.float64  # which MPS lacks
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=precise)) ** 2


def streamed_squared_norm(loss: Tensor, parameters: Iterable[nn.Parameter]) -> float:
    """Return the squared norm of the gradient of ``loss``, with one parameter's gradient in memory at a time.

    ``torch.autograd.grad`` reaches no AccumulateGrad node, so neither ``.grad`` nor the hooks by which DDP and
    ZeRO reduce gradients see anything. A hook on each parameter takes the norm as its gradient arrives and
    hands on an expanded zero in its place.

    Example:
        >>> weight = nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> streamed_squared_norm(0.5 * (weight * weight).sum(), [weight]), weight.grad
        (25.0, None)
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    if not trainable:
        raise StrategyError(
            "no parameter is trained, so there is no gradient; give a model that is being trained"
        )
    total = 0.0

    def take(gradient: Tensor) -> Tensor:
        nonlocal total
        total += squared_norm(gradient)
        return gradient.new_zeros(()).expand(gradient.shape)

    handles = [parameter.register_hook(take) for parameter in trainable]
    try:
        torch.autograd.grad(loss, trainable, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return total
