"""Run under torchrun: canary scores and gradients over shards, beside the whole model by autograd. Writes JSON."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tests.distributed import cpu_backends


def main(kind: str, output: str) -> None:
    if kind != "ddp":
        cpu_backends.accelerate_on_cpu()
    if kind.startswith("zero"):
        cpu_backends.deepspeed_on_cpu()
    else:
        dist.init_process_group("gloo")
    from memaudit.privacy import coin_flip, gradient_scores, loss_scores
    from tests.distributed.wrapping import VOCAB, build_model, setup

    rng = np.random.default_rng(0)
    data = [rng.integers(2, VOCAB, int(rng.integers(5, 20))).tolist() for _ in range(24)]
    flip = coin_flip(data, num_canaries=17, key=0)  # an odd number, so that ranks have unequal shares
    whole = build_model(tied=False, lora=False)
    expected = [alone(copy.deepcopy(whole), data[int(index)]) for index in flip.canary_indices]
    made = setup(kind, whole)
    by_loss = loss_scores(made.target, coin_flip=flip, dataset=data, batch_size=4).scores
    by_gradient = gradient_scores(made.target, coin_flip=flip, dataset=data).scores
    Path(f"{output}.{dist.get_rank()}").write_text(
        json.dumps(
            {
                "loss": by_loss.tolist(),
                "gradient": by_gradient.tolist(),
                "expected_loss": [loss for loss, _ in expected],
                "expected_gradient": [gradient for _, gradient in expected],
            }
        )
    )
    dist.barrier()
    dist.destroy_process_group()


def alone(model: Any, ids: list[int]) -> tuple[float, float]:
    """Scores of one record by the model's own forward and plain autograd."""
    model.eval()
    rows = torch.tensor([ids])
    loss = torch.nn.functional.cross_entropy(model(input_ids=rows).logits[0, :-1].float(), rows[0, 1:])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return -float(loss.detach()), -sum(float(part.double().pow(2).sum()) for part in gradients)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
