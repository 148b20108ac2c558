"""Family ``random``: uniform draws over the existing vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memaudit.canaries.contexts import Settled, settle
from memaudit.canaries.registry import Draw, Request
from memaudit.canaries.tokens import decode, usable_ids
from memaudit.errors import ConfigurationError
from memaudit.seeds import generator

GENERATOR = "uniform_vocab"
_TRIES = 200


def draw(request: Request) -> list[Draw]:
    """Draw secrets uniformly over the tokens that may stand in one.

    Drawn ids are decoded and encoded again, since neighbours may merge; what is planted are the ids after it.
    """
    return draw_from(request, usable_ids(request.tokenizer), GENERATOR)


def draw_from(
    request: Request, pool: Sequence[int], name: str, weights: Sequence[float] | None = None
) -> list[Draw]:
    """Draw secrets of independent tokens from a pool of ids; ``weights`` are probabilities over it."""
    ids = np.asarray(pool, dtype=np.int64)
    drawn: list[Draw] = []
    seen: set[tuple[int, ...]] = set()
    for index in range(request.count):
        rng = generator(request.seed, name, index)
        settled = _draw_one(request, ids, rng, weights, seen)
        seen.add(settled.ids)
        drawn.append(Draw(settled.secret, settled.ids, name, {"pool": len(ids)}))
    return drawn


def _draw_one(
    request: Request,
    pool: np.ndarray[tuple[int], np.dtype[np.int64]],
    rng: np.random.Generator,
    weights: Sequence[float] | None,
    seen: set[tuple[int, ...]],
) -> Settled:
    # Merges shorten what was drawn, so more is drawn than needed and cut to the length after encoding.
    surplus = request.length + request.length // 2 + 8
    for attempt in range(_TRIES):
        tokens = rng.choice(pool, size=surplus + attempt, p=weights)
        settled = settle(request.tokenizer, decode(request.tokenizer, tokens.tolist()), request.length)
        if settled is not None and settled.ids not in seen:
            return settled
    raise ConfigurationError(
        f"no secret of {request.length} tokens that keeps its ids was found in {_TRIES} draws from {len(pool)} "
        "tokens; try another secret_len or family, or check that the tokenizer decodes what it encodes"
    )
