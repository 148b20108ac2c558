"""Family ``structured``: a template with a random fill whose space is known, so that exposure is exact.

Carlini et al., The Secret Sharer, 2019: a secret's rank among all fills of its template gives its exposure.
"""

from __future__ import annotations

import math
import string

import numpy as np

from memaudit.canaries.contexts import Settled, settle
from memaudit.canaries.registry import Draw, Request
from memaudit.errors import ConfigurationError
from memaudit.seeds import generator

GENERATOR = "template_fill"
TEMPLATE = "CANARY-ID:######-####-@@@@@@@@@@"
ALPHABETS = {"#": string.digits, "@": string.ascii_uppercase}
"""What a place of the template is filled with, uniformly and independently."""

SHORTEST, LONGEST = 25, 64
"""Tokens of a secret, as for every family."""

_TRIES = 200


def draw(request: Request) -> list[Draw]:
    """Fill the template at random; it is repeated, each time with its own fill, to reach the length.

    Options: ``template``, where ``#`` stands for a digit and ``@`` for a capital letter, and ``blocks`` how
    often it is repeated (default: until a secret has about ``length`` tokens). The metadata hold ``template``
    (of the whole secret) and ``space_log2``, the logarithm of the number of fills; ``rejected`` counts fills that
    were drawn again because they did not keep their ids, and is 0 where the space is exact.

    Raises:
        ConfigurationError: the template has no place to fill, or none of its fills keeps its ids.
    """
    template = str(request.options.get("template", TEMPLATE)).strip()
    if not any(mark in template for mark in ALPHABETS):
        raise ConfigurationError(
            "the option template has no place to fill: write # for a digit and @ for a capital letter"
        )
    blocks = int(request.options.get("blocks", 0)) or _blocks(request, template)
    if blocks < 1:
        raise ConfigurationError(f"blocks={blocks}: expected at least 1")
    whole = " ".join([template] * blocks)
    space = sum(math.log2(len(ALPHABETS[mark])) for mark in whole if mark in ALPHABETS)
    drawn: list[Draw] = []
    seen: set[str] = set()
    for index in range(request.count):
        settled, rejected = _fill_stable(request, whole, generator(request.seed, GENERATOR, index), seen)
        seen.add(settled.secret)
        metadata = {"template": whole, "space_log2": space, "rejected": rejected}
        drawn.append(Draw(settled.secret, settled.ids, GENERATOR, metadata))
    rejections = sum(int(one.metadata["rejected"]) for one in drawn)
    if rejections:
        request.notes.append(
            f"{rejections} fills were drawn again because they did not keep their ids: the space of the template is "
            "slightly smaller than stated"
        )
    return drawn


def fill(template: str, rng: np.random.Generator) -> str:
    """Return the template with each place filled at random.

    Example:
        >>> len(fill("ID-##-@@", np.random.default_rng(0)))
        8
    """
    return "".join(
        ALPHABETS[mark][int(rng.integers(len(ALPHABETS[mark])))] if mark in ALPHABETS else mark
        for mark in template
    )


def _fill_stable(
    request: Request, template: str, rng: np.random.Generator, seen: set[str]
) -> tuple[Settled, int]:
    for attempt in range(_TRIES):
        text = fill(template, rng)
        settled = settle(request.tokenizer, text)
        if settled is None or settled.secret in seen or not SHORTEST <= len(settled.ids) <= LONGEST:
            continue
        return settled, attempt
    raise ConfigurationError(
        f"no fill of the template keeps its ids and has {SHORTEST} to {LONGEST} tokens in {_TRIES} draws; "
        "choose another template, other blocks or another family"
    )


def _blocks(request: Request, template: str) -> int:
    """Return how many blocks come nearest to the length, all fills long and short enough."""
    rng = generator(request.seed, GENERATOR, "blocks")
    best, distance = 1, math.inf
    for blocks in range(1, 17):
        whole = " ".join([template] * blocks)
        sizes = [len(found.ids) for _ in range(24) if (found := settle(request.tokenizer, fill(whole, rng)))]
        if not sizes:
            continue
        if max(sizes) > LONGEST:
            break
        away = abs(sum(sizes) / len(sizes) - request.length)
        if min(sizes) >= SHORTEST and away < distance:
            best, distance = blocks, away
    return best
