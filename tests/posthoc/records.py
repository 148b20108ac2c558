"""The records that the checkpoint tests score: random ids of uneven length, the same everywhere."""

from __future__ import annotations

import random

VOCAB = 128

_rng = random.Random(11)
RECORDS: list[list[int]] = [[_rng.randrange(VOCAB) for _ in range(_rng.randint(5, 20))] for _ in range(5)]
