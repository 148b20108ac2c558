"""Family ``near_duplicate``: one secret, and copies of it with k tokens changed, for fuzzy memorisation.

An included secret is repeated as one exact copy and near-duplicates (Shilov et al., Mosaic Memory, 2024).
"""

from __future__ import annotations

from dataclasses import replace

from memaudit.canaries.contexts import Settled, settle
from memaudit.canaries.registry import Draw, Request, family
from memaudit.canaries.tokens import decode, usable_ids
from memaudit.errors import ConfigurationError
from memaudit.seeds import generator

_TRIES = 500


def draw(request: Request) -> list[Draw]:
    """Draw secrets by another family and ``copies - 1`` near-duplicates of each.

    Options: ``changed`` tokens that differ in each copy (default 3), ``base`` the family of the secrets
    themselves (default random).

    Raises:
        ConfigurationError: ``changed`` is not between 1 and the length, or no such copies are found.
    """
    changed = int(request.options.get("changed", 3))
    base = str(request.options.get("base", "random"))
    if not 1 <= changed <= request.length:
        raise ConfigurationError(f"changed={changed}: expected 1 to {request.length}, the tokens of a secret")
    if base == "near_duplicate":
        raise ConfigurationError(
            "base='near_duplicate': name the family of the secrets themselves, as random"
        )
    drawn = []
    for index, secret in enumerate(family(base)(request)):
        variants = [
            _variant(request, secret, changed, index, copy).secret
            for copy in range(max(request.copies - 1, 0))
        ]
        metadata = {**secret.metadata, "changed_tokens": changed, "base_family": base}
        drawn.append(replace(secret, metadata=metadata, variants=tuple(variants)))
    return drawn


def _variant(request: Request, secret: Draw, changed: int, index: int, copy: int) -> Settled:
    """Return a copy of the secret that differs in exactly ``changed`` positions and keeps its ids."""
    rng = generator(request.seed, "near_duplicate", index, copy)
    pool = usable_ids(request.tokenizer)
    for _ in range(_TRIES):
        ids = list(secret.ids)
        for position in rng.choice(len(ids), size=changed, replace=False):
            ids[int(position)] = pool[int(rng.integers(len(pool)))]
        settled = settle(request.tokenizer, decode(request.tokenizer, ids))
        if settled is None or len(settled.ids) != len(secret.ids):
            continue
        if sum(a != b for a, b in zip(settled.ids, secret.ids, strict=True)) == changed:
            return settled
    raise ConfigurationError(
        f"no copy with {changed} changed tokens keeps its ids in {_TRIES} draws; lower the option 'changed'"
    )
