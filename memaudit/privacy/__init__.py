"""Privacy auditing by canaries and coins: flip before training, score after, bound epsilon from one run.

Quick start::

    import memaudit.privacy as auditing

    flip = auditing.coin_flip(dataset, num_canaries=1000, key=42)
    train_data = dataset.select(flip.train_indices(len(dataset)))
    # ... train ...
    scores = auditing.loss_scores(loss_fn, params, batch_argnums=(1,), coin_flip=flip, dataset=dataset,
                                  batch_size=32, collate_fn=canary_collate)
    estimate = auditing.one_run(scores, coin_flip=flip)
    print(estimate.epsilon_at(delta=1e-5))

The scorers import torch when they are called; everything else runs on numpy and scipy.
"""

from __future__ import annotations

from memaudit.privacy.coins import CoinFlip, coin_flip
from memaudit.privacy.estimate import EpsDeltaMethod, GdpMethod, OneRunEstimate, one_run
from memaudit.privacy.gradient import gradient_scores
from memaudit.privacy.loss import loss_scores
from memaudit.privacy.scores import CanaryScores, canary_scores
from memaudit.privacy.summary import PrivacySummary, estimate_from_scores
from memaudit.stats.claims import Bound

__all__ = [
    "Bound",
    "CanaryScores",
    "CoinFlip",
    "EpsDeltaMethod",
    "GdpMethod",
    "OneRunEstimate",
    "PrivacySummary",
    "canary_scores",
    "coin_flip",
    "estimate_from_scores",
    "gradient_scores",
    "loss_scores",
    "one_run",
]
