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
_PILOT = 16
"""Candidates of the first round: a ladder of temperatures, from which later rounds' temperature is read off."""
_SURPLUS = 1.3
_MERGED = 4  # tokens that are drawn beyond the length, since encoding merges some
_HOTTEST, _COLDEST = 4.0, 0.3


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
    observed: list[tuple[float, float]] = []
    for attempt in range(_ROUNDS):
        wanted = request.count - len(kept)
        if wanted <= 0:
            break
        temperatures = _temperatures(observed, wanted, request)
        sampled = sampler.sample(
            len(temperatures),
            request.length + _MERGED,
            prompt=prompt,
            allowed=allowed,
            temperatures=temperatures,
            seed=derive_seed(request.seed, "sample", attempt),
        )
        settled = [
            (one, found, temperature)
            for one, temperature in zip(sampled, temperatures, strict=True)
            if (found := settle(request.tokenizer, decode(request.tokenizer, one.ids), request.length))
        ]
        scored = _perplexities(sampler, prompt, [(one, found) for one, found, _ in settled])
        for (_, found, temperature), perplexity in zip(settled, scored, strict=True):
            if found.ids in seen or not math.isfinite(perplexity):
                continue
            seen.add(found.ids)
            observed.append((temperature, math.log(perplexity)))
            inside = low <= perplexity <= high
            (kept if inside else spare).append(_Candidate(found, perplexity, temperature))
    return kept, spare


def _temperatures(observed: list[tuple[float, float]], wanted: int, request: Request) -> list[float]:
    """Return each candidate's temperature: a ladder first, then the one whose texts fall amid the band.

    Log-perplexity grows about linearly with temperature, so a line through what was seen gives it.
    """
    if len(observed) < 4:
        return [request.temperature * rung for rung in (0.4, 0.6, 0.8, 1.0) for _ in range(_PILOT // 4)]
    near = sorted(observed, key=lambda pair: abs(pair[1] - _centre(request)))[: max(8, len(observed) // 2)]
    mean_t = sum(t for t, _ in near) / len(near)
    mean_y = sum(y for _, y in near) / len(near)
    spread = sum((t - mean_t) ** 2 for t, _ in near)
    slope = sum((t - mean_t) * (y - mean_y) for t, y in near) / spread if spread > 1e-9 else 0.0
    step = (_centre(request) - mean_y) / max(slope, 0.5)
    chosen = min(max(mean_t + step, _COLDEST), _HOTTEST)
    return [chosen] * max(8, math.ceil(_SURPLUS * wanted))


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
