"""Family ``bigram``: chains whose every step is a pair that a corpus uses least."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import numpy as np

from memaudit.canaries import random as uniform
from memaudit.canaries.contexts import settle
from memaudit.canaries.registry import Draw, Request
from memaudit.canaries.tokens import decode, encode, usable_ids
from memaudit.errors import ConfigurationError
from memaudit.seeds import generator

GENERATOR = "corpus_bigram"
_TRIES = 200


def draw(request: Request) -> list[Draw]:
    """Draw chains of pairs that occur in the corpus, each step among the rarest continuations of the last token.

    No three tokens in a row are those of the corpus, so a chain is no quotation of it.

    Without a corpus the secrets are uniform draws (noted).

    Raises:
        ConfigurationError: the corpus has too few pairs, or its chains do not keep their ids.
    """
    if request.corpus is None:
        request.notes.append("bigram was asked for without a corpus: the secrets are uniform draws")
        return uniform.draw(request)
    usable = set(usable_ids(request.tokenizer))
    counts: Counter[tuple[int, int]] = Counter()
    triples: set[tuple[int, int, int]] = set()
    for text in request.corpus:
        ids = encode(request.tokenizer, text)
        counts.update((a, b) for a, b in itertools.pairwise(ids) if a in usable and b in usable)
        triples.update(zip(ids, ids[1:], ids[2:], strict=False))
    successors: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (first, second), times in counts.items():
        successors[first].append((times, second))
    rarest = {
        token: [b for _, b in sorted(pairs)[: max(4, len(pairs) // 2)]] for token, pairs in successors.items()
    }
    if len(rarest) < 8:
        raise ConfigurationError(
            f"the corpus has pairs for only {len(rarest)} tokens; pass more text, or choose the family random"
        )
    starts = sorted(rarest)
    drawn: list[Draw] = []
    seen: set[tuple[int, ...]] = set()
    for index in range(request.count):
        rng = generator(request.seed, GENERATOR, index)
        for _ in range(_TRIES):
            chain = _walk(rarest, triples, starts, request.length * 2, rng)
            settled = settle(request.tokenizer, decode(request.tokenizer, chain), request.length)
            if settled is not None and settled.ids not in seen:
                break
        else:
            raise ConfigurationError(
                f"no chain of rare pairs with {request.length} tokens keeps its ids; pass more text, or choose "
                "the family unigram or random"
            )
        seen.add(settled.ids)
        steps = list(itertools.pairwise(settled.ids))
        known = sum(pair in counts for pair in steps) / max(len(steps), 1)
        drawn.append(Draw(settled.secret, settled.ids, GENERATOR, {"pairs_seen_in_corpus": known}))
    return drawn


def _walk(
    rarest: dict[int, list[int]],
    triples: set[tuple[int, int, int]],
    starts: list[int],
    length: int,
    rng: np.random.Generator,
) -> list[int]:
    chain = [starts[int(rng.integers(len(starts)))]]
    while len(chain) < length:
        last = chain[-1]
        fresh = [
            token
            for token in rarest.get(last, ())
            if len(chain) < 2 or (chain[-2], last, token) not in triples
        ]
        # A token that nothing else follows ends its chain; the next one starts anywhere.
        pool = fresh or starts
        chain.append(pool[int(rng.integers(len(pool)))])
    return chain
