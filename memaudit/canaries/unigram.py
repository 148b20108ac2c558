"""Family ``unigram``: the tokens that a corpus uses least."""

from __future__ import annotations

from collections import Counter

from memaudit.canaries import random as uniform
from memaudit.canaries.registry import Draw, Request
from memaudit.canaries.tokens import encode, usable_ids
from memaudit.errors import ConfigurationError

GENERATOR = "corpus_unigram"


def draw(request: Request) -> list[Draw]:
    """Draw uniformly among the corpus' rarest tokens; without a corpus, over the whole vocabulary (noted).

    Raises:
        ConfigurationError: the corpus holds no text.
    """
    if request.corpus is None:
        request.notes.append("unigram was asked for without a corpus: the secrets are uniform draws")
        return uniform.draw(request)
    counts: Counter[int] = Counter()
    for text in request.corpus:
        counts.update(encode(request.tokenizer, text))
    if not counts:
        raise ConfigurationError("the corpus holds no text; pass an iterable of strings")
    usable = usable_ids(request.tokenizer)
    # Enough tokens that two secrets share few, and few enough that all are rare.
    size = max(8 * request.length, 64, len(usable) // 20)
    ranked = sorted(usable, key=lambda token: (counts[token], token))
    cut = counts[ranked[min(size, len(ranked)) - 1]]
    # All tokens as rare as the last one belong to the pool: a cut by id would favour low ids.
    pool = [token for token in ranked if counts[token] <= cut]
    return uniform.draw_from(request, pool, GENERATOR)
