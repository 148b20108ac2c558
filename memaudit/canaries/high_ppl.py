"""Family ``high_ppl``: texts that the model itself finds unlikely, yet made of its regular tokens.

Sampled from the model at a high temperature and kept inside a band of perplexities: memorable, since they are
surprising, and no gibberish (Meeus et al., Copyright Traps, 2024; Panda et al., Privacy Auditing, 2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from memaudit.canaries import random as uniform
from memaudit.canaries import unigram
from memaudit.canaries.contexts import Settled, lead_ids, settle
from memaudit.canaries.registry import Draw, Request, Sampled, Sampler
from memaudit.canaries.tokens import decode, usable_ids
from memaudit.seeds import derive_seed

IN_BAND = "model_scored_high_ppl"
OUT_OF_BAND = "model_sampled_outside_band"
_ROUNDS = 6
_SURPLUS = 2
_HOTTEST, _COLDEST = 4.0, 0.5


@dataclass(frozen=True, slots=True)
class _Candidate:
    settled: Settled
    perplexity: float
    temperature: float


def draw(request: Request) -> list[Draw]:
    """Draw secrets from the model inside the band, all candidates of a round in one batch.

    Without a model the tokens come from the corpus' rare words, and without a corpus uniformly from the
    vocabulary; ``generator`` of each draw, and a note, say so. The temperature follows the band between the
    rounds. Where the band cannot be met, the nearest candidates are kept under another generator's name.
    """
    if request.sampler is None:
        instead = "a corpus' rare tokens" if request.corpus is not None else "uniform draws"
        request.notes.append(f"high_ppl was asked for without a model: the secrets are {instead}")
        return unigram.draw(request) if request.corpus is not None else uniform.draw(request)
    kept, spare = _rounds(request, request.sampler)
    low, high = request.ppl_band
    missing = request.count - len(kept)
    if missing > 0:
        centre = _centre(request)
        spare.sort(key=lambda candidate: abs(math.log(candidate.perplexity) - centre))
        if len(spare) < missing:  # the model draws too few texts that keep their ids
            request.notes.append(
                f"{missing - len(spare)} secrets are uniform draws: too few samples were stable"
            )
        request.notes.append(
            f"{min(missing, len(spare))} of {request.count} secrets lie outside the perplexity band "
            f"{low:g}..{high:g}: the model gave too few inside it"
        )
    draws = [_draw(candidate, IN_BAND, request) for candidate in kept]
    draws += [_draw(candidate, OUT_OF_BAND, request) for candidate in spare[: max(missing, 0)]]
    if len(draws) < request.count:
        draws += uniform.draw(request)[: request.count - len(draws)]
    return draws[: request.count]


def _rounds(request: Request, sampler: Sampler) -> tuple[list[_Candidate], list[_Candidate]]:
    """Sample until enough candidates lie inside the band; return those inside and those outside it."""
    low, high = request.ppl_band
    prompt = lead_ids(request.tokenizer)
    allowed = usable_ids(request.tokenizer)
    kept: list[_Candidate] = []
    spare: list[_Candidate] = []
    seen: set[tuple[int, ...]] = set()
    temperature = request.temperature
    for attempt in range(_ROUNDS):
        wanted = request.count - len(kept)
        if wanted <= 0:
            break
        sampled = sampler.sample(
            max(8, _SURPLUS * wanted),
            request.length + 4,  # merges shorten what was drawn
            prompt=prompt,
            allowed=allowed,
            temperature=temperature,
            seed=derive_seed(request.seed, "sample", attempt),
        )
        settled = [
            (one, found)
            for one in sampled
            if (found := settle(request.tokenizer, decode(request.tokenizer, one.ids), request.length))
        ]
        scored = _perplexities(sampler, prompt, settled)
        for (_, found), perplexity in zip(settled, scored, strict=True):
            if found.ids in seen or not math.isfinite(perplexity):
                continue
            seen.add(found.ids)
            inside = low <= perplexity <= high
            (kept if inside else spare).append(_Candidate(found, perplexity, temperature))
        temperature = _next_temperature(temperature, scored, request)
    return kept, spare


def _perplexities(sampler: Sampler, prompt: list[int], settled: list[tuple[Sampled, Settled]]) -> list[float]:
    """Read perplexities off the log-probabilities kept while sampling; score only what encoding changed."""
    changed = [found.ids for one, found in settled if one.ids[: len(found.ids)] != found.ids]
    rescored = iter(sampler.perplexities(prompt, changed) if changed else ())
    return [
        next(rescored)
        if one.ids[: len(found.ids)] != found.ids
        else math.exp(-sum(one.logprobs[: len(found.ids)]) / len(found.ids))
        for one, found in settled
    ]


def _next_temperature(temperature: float, perplexities: list[float], request: Request) -> float:
    """Move the temperature towards the band's centre: log-perplexity grows about linearly with it."""
    logs = sorted(math.log(value) for value in perplexities if math.isfinite(value) and value > 0)
    if not logs:
        return temperature
    median = logs[len(logs) // 2]
    factor = min(max(_centre(request) / max(median, 0.1), 0.6), 1.5)
    return min(max(temperature * factor**0.5, _COLDEST), _HOTTEST)


def _centre(request: Request) -> float:
    low, high = request.ppl_band
    return (math.log(low) + math.log(high)) / 2


def _draw(candidate: _Candidate, generator: str, request: Request) -> Draw:
    metadata = {
        "perplexity": candidate.perplexity,
        "ppl_band": list(request.ppl_band),
        "temperature": candidate.temperature,
    }
    return Draw(candidate.settled.secret, candidate.settled.ids, generator, metadata)
