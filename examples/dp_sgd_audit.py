"""DP-SGD with Opacus on a coin-flip partition: the accountant's epsilon above, the audit's certified bound below.

    pip install 'memaudit[dp]'
    python examples/dp_sgd_audit.py
    python examples/dp_sgd_audit.py --noise 0.5 --steps 40

The accountant and the audit speak of the same thing: adding or removing one canary, the Poisson sampling and the
expected batch size fixed before the coins, delta 1e-5. An audit that exceeded the accountant would have found a
bug in one of them. The canaries point in almost independent directions, which makes them easy to remember.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import memaudit.privacy as auditing
from memaudit.errors import MissingExtraError
from memaudit.seeds import derive_seed
from memaudit.stats.claims import Bound

DELTA = 1e-5


@dataclass(frozen=True)
class Outcome:
    """Upper bound of the accountant and lower bound of the audit, for one training run."""

    upper: float
    lower: Bound
    gaussian: Bound


def make_records(n: int, dimensions: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Records of noise with labels of noise: whatever the model knows of one, it has remembered."""
    generator = torch.Generator().manual_seed(derive_seed(seed, "records"))
    inputs = nn.functional.normalize(torch.randn(n, dimensions, generator=generator), dim=1)
    labels = torch.randint(0, 2, (n,), generator=generator)
    return list(zip(inputs, labels, strict=True))


def train(
    records: list[tuple[Tensor, Tensor]],
    model: nn.Module,
    *,
    noise: float,
    rate: float,
    steps: int,
    expected: float,
    seed: int,
) -> float:
    """Train with DP-SGD and return the accountant's epsilon at DELTA."""
    try:
        from opacus import GradSampleModule
        from opacus.accountants import PRVAccountant
        from opacus.optimizers import DPOptimizer
    except ImportError as error:
        raise MissingExtraError("opacus", "dp", "this example") from error

    inputs = torch.stack([x for x, _ in records])
    labels = torch.stack([y for _, y in records])
    sampled = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(sampled.parameters(), lr=2.0),
        noise_multiplier=noise,
        max_grad_norm=1.0,
        expected_batch_size=expected,
        generator=torch.Generator().manual_seed(derive_seed(seed, "noise")),
    )
    accountant = PRVAccountant()
    chooser = torch.Generator().manual_seed(derive_seed(seed, "sampling"))
    for _ in range(steps):
        chosen = (
            torch.rand(len(records), generator=chooser) < rate
        )  # Poisson sampling, as the accountant assumes
        optimizer.zero_grad()
        cross_entropy(sampled(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
        accountant.step(noise_multiplier=noise, sample_rate=rate)
    return float(accountant.get_epsilon(delta=DELTA))


def run(
    seed: int = 0,
    *,
    noise: float = 1.0,
    steps: int = 8,
    rate: float = 0.5,
    canaries: int = 400,
    others: int = 100,
    dimensions: int = 4000,
) -> Outcome:
    """Flip the coins, train, score and bound.

    Args:
        seed: root seed of records, coins, sampling and noise.
        noise: noise multiplier of DP-SGD.
        steps: optimizer steps.
        rate: share of the records that Poisson sampling takes each step.
        canaries: number of canaries.
        others: records that are always trained on.
        dimensions: of the inputs.

    Returns:
        An Outcome.
    """
    dataset = make_records(canaries + others, dimensions, seed)
    flip = auditing.coin_flip(
        dataset, num_canaries=canaries, key=derive_seed(seed, "coins"), candidate_indices=range(canaries)
    )
    model = nn.Linear(dimensions, 2, bias=False)
    nn.init.zeros_(model.weight)

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(torch.func.functional_call(model, params, (x[None],)), y[None])

    # Fixed before the coins fall, so that neither the batch size nor the learning rate tells them.
    expected = rate * (others + canaries / 2)
    chosen = [dataset[index] for index in flip.train_indices(len(dataset))]
    upper = train(chosen, model, noise=noise, rate=rate, steps=steps, expected=expected, seed=seed)
    params: dict[str, Any] = {name: value.detach() for name, value in model.named_parameters()}
    scores = auditing.loss_scores(
        loss, params, batch_argnums=(1, 2), coin_flip=flip, dataset=dataset, batch_size=64
    )
    estimate = auditing.one_run(scores, coin_flip=flip)
    return Outcome(upper, estimate.epsilon_at(delta=DELTA), estimate.gdp().epsilon_at(delta=DELTA))


def main() -> None:
    """Print the two numbers side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--canaries", type=int, default=400)
    options = parser.parse_args()
    found = run(options.seed, noise=options.noise, steps=options.steps, canaries=options.canaries)
    print(f"accountant: epsilon <= {found.upper:.4f} at delta {DELTA:g} (Opacus, PRV)")
    print(f"audit:      {found.lower}")
    print(f"audit:      {found.gaussian}")


if __name__ == "__main__":
    main()
