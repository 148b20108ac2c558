"""The union of what attacks need, answered once: texts in, scores of every attack out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from memaudit.attacks.base import (
    TEXT,
    Attack,
    Generation,
    Record,
    UnscorableError,
    Variant,
    View,
    reference_of,
)
from memaudit.attacks.masked_lm import MaskedLM
from memaudit.attacks.tools import Tools
from memaudit.errors import ConfigurationError
from memaudit.files import sha256_bytes
from memaudit.posthoc.membership.backend import Answer, Backend, Which, reference_model
from memaudit.probes import Probe
from memaudit.signals import FLOAT_FIELDS, INT_FIELDS, TokenSignals
from memaudit.store import SignalStore


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """How many probes were asked for, forwarded and saved, target and references together.

    Args:
        requested: probes that the attacks ask for, each attack and text by itself.
        distinct: those left once equal ones are joined; the difference is ``saved_by_sharing``.
        reused: distinct ones whose signals the store had.
        forwarded: distinct ones that went through a model: what the run cost.
        prefix_tokens_saved: tokens of shared prefixes that were not forwarded again.
        forwards: batches of each rank, by model.
        generations, gradients: samples drawn and gradients taken, those the store had included.
    """

    requested: int = 0
    distinct: int = 0
    reused: int = 0
    forwarded: int = 0
    prefix_tokens_saved: int = 0
    forwards: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    generations: int = 0
    gradients: int = 0

    @property
    def saved_by_sharing(self) -> int:
        """Probes that another attack, variant or equal text had asked for already."""
        return self.requested - self.distinct

    def to_dict(self) -> dict[str, Any]:
        """Return all counts as a plain dictionary."""
        return {**asdict(self), "saved_by_sharing": self.saved_by_sharing}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Scores and reasons by attack label and record id, numbers of scored tokens by id, and the cost."""

    scores: dict[str, dict[str, float]]
    unscorable: dict[str, dict[str, str]]
    tokens: dict[str, int]
    cost: Cost


@dataclass(slots=True)
class _Wanted:
    """What one attack wants of one record, by name of the variant."""

    variants: Mapping[str, Variant]
    generation: Generation | None = None


def run_attacks(
    backend: Backend,
    texts: Mapping[str, str],
    attacks: Sequence[Attack],
    tools: Tools,
    *,
    token_counts: Sequence[int] | None = None,
    masked_lm: MaskedLM | None = None,
    store: SignalStore | None = None,
) -> Scored:
    """Score every text under every attack; each distinct probe is forwarded once.

    Args:
        backend: what answers; every rank calls with the same arguments.
        texts: the judged texts by id.
        attacks: the attacks.
        tools: policy, pools and seed.
        token_counts: of a reference corpus, by the target's token ids.
        masked_lm: what rewrites texts for ``neighbour``.
        store: where the rewritten texts are kept.

    Raises:
        ConfigurationError: an attack needs what is not there.
    """
    check_needs(backend, attacks, token_counts is not None, masked_lm is not None)
    if masked_lm is not None:
        _rewrite(backend, masked_lm, texts, attacks, tools, store)
    records, failed = _records(texts, tools)
    wanted: dict[tuple[str, str], _Wanted] = {}
    unscorable: dict[str, dict[str, str]] = {one.label: dict(failed) for one in attacks}
    for attack in attacks:
        for record in records.values():
            try:
                wanted[attack.label, record.id] = _Wanted(
                    attack.variants(record, tools), attack.generation(record, tools)
                )
            except UnscorableError as error:
                unscorable[attack.label][record.id] = str(error)
    population = _population(attacks, tools)
    answers, cost = _answer(backend, attacks, records, wanted, population)
    samples = _generate(backend, wanted)
    gradients = _gradients(backend, attacks, records)
    rows = {which: _population_rows(population, answers, which) for which in answers if which != "target"}
    scores: dict[str, dict[str, float]] = {}
    for attack in attacks:
        column = scores[attack.label] = {}
        other = reference_model(reference_of(attack))
        for record in records.values():
            one = wanted.get((attack.label, record.id))
            if one is None:
                continue
            view = View(
                id=record.id,
                text=record.text,
                target=_named(one.variants, answers["target"]),
                reference=_named({TEXT: record.variant}, answers[other]),
                generation=one.generation,
                samples=samples.get((attack.label, record.id), ()),
                gradient=gradients["target"].get(record.id),
                reference_gradient=gradients[other].get(record.id),
                token_counts=token_counts,
                population=rows[other],
            )
            try:
                column[record.id] = attack.evaluate(view)
            except UnscorableError as error:
                unscorable[attack.label][record.id] = str(error)
    tokens = {one.id: sum(probe.n_targets for probe in one.variant.probes) for one in records.values()}
    drawn = sum(len(one.generation.seeds) for one in wanted.values() if one.generation is not None)
    taken = sum(len(found) for found in gradients.values())
    cost = Cost(**{**_shallow(cost), "generations": drawn, "gradients": taken})
    return Scored(scores=scores, unscorable=unscorable, tokens=tokens, cost=cost)


def check_needs(backend: Backend, attacks: Sequence[Attack], corpus: bool, masked_lm: bool) -> None:
    """Refuse attacks that need what this run does not have, each by name and with what to give.

    Raises:
        ConfigurationError: there is such an attack.
    """
    lacking = {
        "distribution": (
            not backend.full_distribution,
            f"the whole next-token distribution, which backend {backend.name} does not give: use transformers",
        ),
        "corpus": (not corpus, "a reference corpus: name a file of texts with corpus"),
        "masked_lm": (not masked_lm, "a masked language model: name one with masked_lm"),
        "gradients": (
            backend.name == "vllm",
            "gradients, which backend vllm does not give: use transformers",
        ),
    }
    for attack in attacks:
        name = reference_of(attack)
        if name:
            lacking["reference"] = (
                name not in backend.references,
                f"the reference model {name}, which is not here",
            )
        else:
            lacking["reference"] = (not backend.has_reference, "a reference model: name one with reference")
        for need, (absent, what) in lacking.items():
            if absent and getattr(attack.requirements, need):
                raise ConfigurationError(f"attack {attack.label} needs {what}, or leave it out")


def _records(texts: Mapping[str, str], tools: Tools) -> tuple[dict[str, Record], dict[str, str]]:
    records: dict[str, Record] = {}
    failed: dict[str, str] = {}
    for id, text in texts.items():
        try:
            records[id] = Record(id=id, text=text, variant=tools.variant(text))
        except UnscorableError as error:
            failed[id] = str(error)
    return records, failed


def _rewrite(
    backend: Backend,
    masked_lm: MaskedLM,
    texts: Mapping[str, str],
    attacks: Sequence[Attack],
    tools: Tools,
    store: SignalStore | None,
) -> None:
    """Let each rank rewrite its share of the texts that the store lacks, and hand everyone the whole."""
    wanted: dict[str, tuple[Any, ...]] = {}
    for attack in attacks:
        if attack.requirements.masked_lm:
            settings = [attack.parameters[name] for name in ("n", "top_k", "dropout")]
            for text in sorted(set(texts.values())):
                key = (text, *settings, tools.seed_for(attack.name, text))
                wanted[sha256_bytes(repr(key).encode())] = key
    found: dict[str, list[str]] = {}
    if store is not None and wanted:
        stored = store.get_values("neighbours", wanted, masked_lm.fingerprint)
        common = frozenset.intersection(*backend.share([frozenset(stored)]))
        found = {name: stored[name] for name in common}
    missing = [name for name in wanted if name not in found]
    mine = {missing[i]: masked_lm.rewrite(*wanted[missing[i]]) for i in backend.my_part(len(missing))}
    if store is not None:
        store.put_values("neighbours", masked_lm.fingerprint, mine)
    found.update(dict(backend.share(list(mine.items()))))
    made = {wanted[name]: texts_made for name, texts_made in found.items()}
    tools.rewrite = lambda *key: made[key]


def _population(attacks: Sequence[Attack], tools: Tools) -> list[Variant]:
    if not any(one.requirements.population for one in attacks):
        return []
    found = []
    for text in tools.nonmembers:
        try:
            found.append(tools.variant(text))
        except UnscorableError:
            continue
    if not found:
        raise ConfigurationError(
            "attack rmia needs non-members held apart from the judged texts; there are none"
        )
    return found


def _population_rows(
    population: Sequence[Variant], answers: Mapping[Which, Answer], reference: Which
) -> list[tuple[float, float]]:
    rows = []
    for one in population:
        both = [_joined(one, answers[which].signals) for which in ("target", reference)]
        if all(signals is not None for signals in both):
            own, other = (float(signals.logprob.mean()) for signals in both if signals is not None)
            rows.append((own, other))
    return rows


def _answer(
    backend: Backend,
    attacks: Sequence[Attack],
    records: Mapping[str, Record],
    wanted: Mapping[tuple[str, str], _Wanted],
    population: Sequence[Variant],
) -> tuple[dict[Which, Answer], Cost]:
    asked: dict[Which, list[Probe]] = {which: [] for which in _models(attacks)}
    for attack in attacks:
        other = reference_model(reference_of(attack))
        for record in records.values():
            one = wanted.get((attack.label, record.id))
            if one is None or not _reads_signals(attack):
                continue
            for variant in one.variants.values():
                asked["target"] += variant.probes
            if attack.requirements.reference:
                asked[other] += record.variant.probes
    ratios = [one for one in attacks if one.requirements.population]
    for variant in population:
        for which in _models(ratios, unnamed=False):
            asked[which] += variant.probes
    answers: dict[Which, Answer] = {}
    for which in asked:
        distinct = {probe.key: probe for probe in asked[which]}
        answers[which] = backend.score(list(distinct.values()), which) if distinct else Answer(signals={})
    cost = Cost(
        requested=sum(map(len, asked.values())),
        distinct=sum(len({probe.key for probe in probes}) for probes in asked.values()),
        reused=sum(one.reused for one in answers.values()),
        forwarded=sum(one.needed for one in answers.values()),
        prefix_tokens_saved=sum(one.prefix_tokens_saved for one in answers.values()),
        forwards={which: one.forwards for which, one in answers.items() if one.signals},
    )
    return answers, cost


def _models(attacks: Sequence[Attack], *, unnamed: bool = True) -> list[Which]:
    """Return the target, the unnamed reference (where no attack asks for it only if ``unnamed``), and the named."""
    names = [*([""] if unnamed else []), *(reference_of(one) for one in attacks)]
    return ["target", *dict.fromkeys(reference_model(name) for name in names)]


def _reads_signals(attack: Attack) -> bool:
    """Whether an attack reads signals at all: samples and gradients alone need no scoring forward."""
    needs = attack.requirements
    return not (needs.generations or needs.gradients)


def _generate(
    backend: Backend, wanted: Mapping[tuple[str, str], _Wanted]
) -> dict[tuple[str, str], list[str]]:
    """Draw every distinct generation once and decode it."""
    distinct = list({one.generation: None for one in wanted.values() if one.generation is not None})
    if not distinct:
        return {}
    made = dict(zip(distinct, backend.generate(distinct), strict=True))
    result = {}
    for place, one in wanted.items():
        if one.generation is not None:
            result[place] = [
                str(
                    backend.tokenizer.decode(
                        list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
                    )
                )
                for ids in made[one.generation]
            ]
    return result


def _gradients(
    backend: Backend, attacks: Sequence[Attack], records: Mapping[str, Record]
) -> dict[Which, dict[str, float]]:
    found: dict[Which, dict[str, float]] = {which: {} for which in _models(attacks)}
    taking = [one for one in attacks if one.requirements.gradients]
    if not taking:
        return found
    whole = {id: one.variant.probes[0] for id, one in records.items() if len(one.variant.probes) == 1}
    distinct = {probe.key: probe for probe in whole.values()}
    for which in _models(taking, unnamed=False):
        if which == "reference" and not backend.has_reference:
            continue
        norms = backend.gradient_norms(list(distinct.values()), which)
        if norms is not None:
            by_key = dict(zip(distinct, norms, strict=True))
            found[which] = {id: by_key[probe.key] for id, probe in whole.items()}
    return found


def _named(variants: Mapping[str, Variant], answer: Answer) -> dict[str, TokenSignals]:
    found = {name: _joined(one, answer.signals) for name, one in variants.items()}
    return {name: signals for name, signals in found.items() if signals is not None}


def _joined(variant: Variant, signals: Mapping[str, TokenSignals]) -> TokenSignals | None:
    """Join the windows of a text; None where the model was not asked for it."""
    parts = [signals.get(probe.key) for probe in variant.probes]
    found = [one for one in parts if one is not None]
    if len(found) != len(parts):
        return None
    if len(found) == 1:
        return found[0]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in found]) for name in FLOAT_FIELDS + INT_FIELDS
    }
    return TokenSignals(**columns)


def _shallow(cost: Cost) -> dict[str, Any]:
    return {name: getattr(cost, name) for name in Cost.__dataclass_fields__}
