"""memaudit canaries: draw the canaries of an audit, before they are placed in data."""

from __future__ import annotations

import sys
from typing import Any, Literal

from memaudit.errors import ConfigurationError

ALIASES = {"-o": "--output"}


def canaries(
    *,
    tokenizer: str | None = None,
    model: str | None = None,
    output: str = "memaudit-canaries.json",
    n: int | None = None,
    n_controls: int | None = None,
    family: str = "high_ppl",
    repetitions: list[int] | None = None,
    seed: int = 0,
    include_prob: float = 0.5,
    profile: Literal["smoke", "routine", "powered"] | None = None,
    secret_len: int | None = None,
    corpus: str | None = None,
    ppl_band: list[float] | None = None,
    sample_temperature: float = 1.8,
    options: dict[str, Any] | None = None,
) -> int:
    """Draw canaries for a tokenizer and write them, readable by their owner alone.

    Args:
        tokenizer: folder or hub id of the training's tokenizer; the model's own by default.
        model: folder or hub id of the model that high_ppl samples from.
        output: file to write.
        n: candidates, each with a coin (32).
        n_controls: controls, never inserted (100).
        family: high_ppl, random, unigram, bigram, structured or near_duplicate.
        repetitions: how often an included canary is inserted, by tier (1, 4, 16).
        seed: root seed.
        include_prob: probability that a coin includes its canary.
        profile: a named design; what is given beside it wins.
        secret_len: tokens of a secret, 25 to 64 (32).
        corpus: text file, one text a line, for unigram and bigram.
        ppl_band: lowest and highest perplexity of a sampled secret (40, 500).
        sample_temperature: temperature at which sampling starts.
        options: what the family alone understands, as ``{template: "ID-####"}``.
    """
    from memaudit.canaries.design import tiers
    from memaudit.cli._loading import load_corpus, load_model, load_tokenizer
    from memaudit.sampling import generate_canaries

    source = tokenizer or model
    if source is None:
        raise ConfigurationError("neither tokenizer nor model is given; name the training's with --tokenizer")
    band = tuple(ppl_band or (40.0, 500.0))
    if len(band) != 2:
        raise ConfigurationError(f"ppl_band has {len(band)} values; expected the lowest and the highest")
    made = generate_canaries(
        load_tokenizer(source),
        n,
        n_controls,
        family,
        repetitions,
        seed,
        load_model(model) if model else None,
        include_prob,
        profile=profile,
        secret_len=secret_len,
        corpus=load_corpus(corpus) if corpus else None,
        ppl_band=(band[0], band[1]),
        sample_temperature=sample_temperature,
        options=options,
    )
    path = made.save(output)
    drawn = sorted({canary.generator for canary in made})
    members = sum(canary.included for canary in made)
    print(f"{len(made)} canaries ({family}, drawn by {', '.join(drawn)}) in {path}")
    print(
        f"{members} included by their coin, by repetitions {tiers(made.canaries)}; sha256 {made.content_hash()}"
    )
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
