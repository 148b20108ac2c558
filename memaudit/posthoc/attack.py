"""attack(): every membership attack on a model and labelled texts, or on signals that are there already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from memaudit.attacks.base import TEXT, Attack, UnscorableError, View
from memaudit.attacks.canary import check_canary_attack
from memaudit.attacks.dcpdd import count_tokens
from memaudit.attacks.masked_lm import MaskedLM
from memaudit.attacks.registry import make_all, split_specs
from memaudit.attacks.stack import stack as stack_scores
from memaudit.attacks.stack import usable
from memaudit.attacks.tools import LongTexts, Tools
from memaudit.errors import ConfigurationError, InputTypeError
from memaudit.posthoc.membership.backend import Backend
from memaudit.posthoc.membership.inputs import Groups, Labels, Texts, groups_by_id, labels_by_id, texts_by_id
from memaudit.posthoc.membership.metrics import length_groups, metrics_of
from memaudit.posthoc.membership.models import open_backend
from memaudit.posthoc.membership.pools import Pools, hold_apart
from memaudit.posthoc.membership.references import against_each, named_references, reference_notes
from memaudit.posthoc.membership.result import STACK, AttackResult
from memaudit.posthoc.membership.run import Cost, Scored, run_attacks
from memaudit.seeds import derive_seed
from memaudit.signals import TokenSignals
from memaudit.stats.set_tests import blind_baseline, dataset_inference
from memaudit.store import SignalStore

ALONE = ("loss", "zlib", "mink", "minkpp", "gapk", "surp")
REFERENCED = ("ref", "ratio", "ref_minkpp", "wbc", "ez")
MIN_DATASET = 16
"""Members and non-members below which no dataset-level test is made."""

MANY_FILES = 64
"""Files of a signal store above which a run joins them: each batch and each model leaves one."""


def attack(
    model: Any,
    texts: Texts,
    labels: Labels = None,
    *,
    attacks: str | Iterable[str | Attack] | None = None,
    tokenizer: Any = None,
    reference: Any = None,
    groups: Groups = None,
    nonmembers: Sequence[str] = (),
    members: Sequence[str] = (),
    corpus: Iterable[str] | Sequence[int] | None = None,
    masked_lm: Any = None,
    store: SignalStore | str | Path | None = None,
    seed: int = 0,
    long_texts: LongTexts = "window",
    max_length: int | None = None,
    spaced: bool = True,
    level: float = 0.95,
    stack: bool = True,
    max_batch_size: int = 32,
    max_batch_tokens: int = 8192,
    max_batch_targets: int = 512,
    fixed_batches: bool = False,
    backend: str = "transformers",
    **loading: Any,
) -> AttackResult:
    """Run membership attacks on texts; each distinct probe is forwarded once, whatever attacks share it.

    Every rank of a process group calls with the same arguments and gets the same result.

    Args:
        model: a model, Accelerator, Trainer, strategy or backend, or the path of any checkpoint.
        texts: the judged texts, in a list or by id.
        labels: 1 for members, 0 for non-members, in the order of the texts or by id; None where unknown.
        attacks: names such as ``"loss,mink(ratio=0.1),stack"``, or attacks; by default all that share the
            forwards of the texts under the target and the reference.
        tokenizer: the model's; by default the one beside the checkpoint.
        reference: a reference model or checkpoint; by default the target's adapters off, where it has any. Several
            by name ({"small": model, ...}): each attack that compares with a reference runs against each, in
            columns such as ``ref(reference='small')``. An attack may also name one by its path.
        groups: the source of each text, by which metrics are split as well.
        nonmembers: texts known not to be members, apart from the judged, for prefixes and populations. Where
            attacks need them and none are given, some are drawn from the labelled texts and not judged.
        members: texts known to be members, likewise.
        corpus: texts of a reference corpus, or its counts by token id, for dcpdd.
        masked_lm: a :class:`memaudit.attacks.masked_lm.MaskedLM`, a path or a hub id, for neighbour.
        store: folder of the signal store; a second run forwards only what is not there.
        seed: root of every random choice.
        long_texts: ``window``, ``truncate`` or ``refuse``.
        max_length: tokens of the context; by default the model's.
        spaced: whether words are separated by spaces.
        level: confidence of the intervals.
        stack: whether a cross-fitted combination is reported beside the attacks.
        max_batch_size, max_batch_tokens, max_batch_targets: limits of one forward; the last is the rows of
            vocabulary size that are in memory at once.
        fixed_batches: whether batches must not depend on the number of ranks.
        backend: ``transformers`` or ``vllm``.
        loading: for a path, choices of :class:`memaudit.posthoc.checkpoints.Loading`, or vLLM's engine options.

    Returns:
        Scores, metrics, costs, settings.

    Raises:
        ConfigurationError: an attack needs what is not there, or an argument cannot be used.
    """
    by_id = texts_by_id(texts)
    if attacks is not None and not isinstance(attacks, str):
        attacks = list(attacks)
    known, sources = labels_by_id(labels, by_id), groups_by_id(groups, by_id)
    kept_signals = _store(store)
    several = isinstance(reference, Mapping)
    asked = None if attacks is None else _attacks(_without_stack(attacks), False)
    named = named_references(against_each(asked or [], reference), reference)
    opened = open_backend(
        model,
        tokenizer=tokenizer,
        reference=None if several else reference,
        references=dict(reference) if several and asked is None else named,
        store=kept_signals,
        max_batch_size=max_batch_size,
        max_batch_tokens=max_batch_tokens,
        max_batch_targets=max_batch_targets,
        fixed_batches=fixed_batches,
        backend=backend,
        **loading,
    )
    made = asked if asked is not None else _attacks(None, opened.has_reference or several)
    made = against_each(made, reference)
    if not opened.full_distribution and attacks is None:
        made = [one for one in made if not one.requirements.distribution]
    pools = hold_apart(by_id, known, made, Pools(tuple(nonmembers), tuple(members)), seed=seed)
    tools = Tools(
        tokenizer=opened.tokenizer,
        max_length=min(max_length or opened.max_length, opened.max_length),
        seed=seed,
        long_texts=long_texts,
        spaced=spaced,
        nonmembers=pools.pools.nonmembers,
        members=pools.pools.members,
        judged=[(by_id[id], known.get(id)) for id in pools.judged],
    )
    judged = {id: by_id[id] for id in pools.judged}
    scored = run_attacks(
        opened,
        judged,
        made,
        tools,
        token_counts=_counts(corpus, opened),
        masked_lm=MaskedLM.load(masked_lm) if isinstance(masked_lm, str) else masked_lm,
        store=kept_signals,
    )
    if kept_signals is not None and opened.rank == 0 and kept_signals.n_files > MANY_FILES:
        kept_signals.compact()
    kept = {id: label for id, label in known.items() if id in judged}
    settings = {
        "attacks": {one.label: {"source": one.source, **one.parameters} for one in made},
        "seed": seed,
        "level": level,
        "beginning": _beginning(tools),
        "long_texts": long_texts,
        "max_length": tools.max_length,
        "texts_longer_than_context": len(tools.longer),
        "spaced": spaced,
        "shots_used": dict(tools.shots_used),
        "held_apart": {"nonmembers": len(tools.nonmembers), "members": len(tools.members)},
        **opened.facts(),
    }
    if _asks_for_stack(attacks) and not (stack and usable(scored.scores, kept)):
        raise ConfigurationError(
            "stack needs stack=True, two attacks, and ten members and ten non-members that all of them score"
        )
    notes = [*pools.notes, *_both_labels(judged, kept), *_notes(made, tools), *reference_notes(made)]
    sources = {id: one for id, one in sources.items() if id in judged}
    result = _finish(scored, kept, sources, level, stack, seed, settings, notes)
    return replace(result, dataset=_dataset(scored, kept, judged, seed))


def attack_signals(
    target: Mapping[str, TokenSignals],
    reference: Mapping[str, TokenSignals] | None = None,
    *,
    labels: Mapping[str, int] | None = None,
    attacks: str | Iterable[str | Attack] | None = None,
    texts: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    token_counts: Sequence[int] | None = None,
    level: float = 0.95,
    stack: bool = False,
    seed: int = 0,
) -> AttackResult:
    """Run attacks on signals that are there already: no model, no tokenizer, no forward.

    Args:
        target: the target's signals by record id.
        reference: the reference's of the same records.
        labels, groups, level, stack, seed: as in :func:`attack`.
        attacks: those that need nothing but signals (and texts, or token counts); by default all of them.
        texts: by record id, for zlib.
        token_counts: of a reference corpus by token id, for dcpdd.

    Raises:
        ConfigurationError: an attack needs more than there is.
    """
    if attacks is None:
        names = [*ALONE, *(REFERENCED if reference is not None else ())]
        attacks = [name for name in names if texts is not None or name != "zlib"]
    made = _attacks(attacks, reference is not None)
    for one in made:
        if not (one.requirements.corpus and token_counts is not None):
            check_canary_attack(one, reference is not None, texts is not None)
    scores: dict[str, dict[str, float]] = {one.label: {} for one in made}
    unscorable: dict[str, dict[str, str]] = {one.label: {} for one in made}
    for one in made:
        for id, signals in target.items():
            other = {} if reference is None or id not in reference else {TEXT: reference[id]}
            text = None if texts is None else texts.get(id)
            view = View(id=id, target={TEXT: signals}, reference=other, text=text, token_counts=token_counts)
            try:
                scores[one.label][id] = one.evaluate(view)
            except UnscorableError as error:
                unscorable[one.label][id] = str(error)
    tokens = {id: len(signals) for id, signals in target.items()}
    scored = Scored(scores=scores, unscorable=unscorable, tokens=tokens, cost=Cost())
    settings = {"attacks": {one.label: one.parameters for one in made}, "level": level, "backend": "signals"}
    return _finish(scored, dict(labels or {}), dict(groups or {}), level, stack, seed, settings, [])


def _finish(
    scored: Scored,
    labels: dict[str, int],
    groups: dict[str, str],
    level: float,
    stack: bool,
    seed: int,
    settings: dict[str, Any],
    notes: list[str],
) -> AttackResult:
    """Add the stack and the metrics."""
    scores: dict[str, Mapping[str, float]] = dict(scored.scores)
    stacked = None
    if stack and usable(scores, labels):
        stacked = stack_scores(scores, labels, seed=seed)
        scores[STACK] = stacked.scores
    metrics, by_group = {}, {}
    parts = {
        f"source {one}": [id for id in groups if groups[id] == one] for one in sorted(set(groups.values()))
    }
    parts.update(length_groups(scored.tokens))
    for name, column in scores.items():
        missing = sum(id in labels for id in scored.unscorable.get(name, {}))
        found = metrics_of(column, labels, level=level, unscorable=missing)
        if found is None:
            continue
        metrics[name] = found
        split = {part: metrics_of(column, labels, level=level, only=ids) for part, ids in parts.items()}
        by_group[name] = {part: one for part, one in split.items() if one is not None}
        if found.inverted:
            notes.append(f"{name} orders members below non-members (AUC {found.auc:.3f}): that leaks as well")
    unscored = {name: len(column) for name, column in scored.unscorable.items() if column}
    if unscored:
        counts = ", ".join(f"{name} {count}" for name, count in unscored.items())
        notes.append(f"unscorable records, left out of the metrics: {counts}")
    return AttackResult(
        scores=scores,
        unscorable=scored.unscorable,
        labels=labels,
        metrics=metrics,
        by_group=by_group,
        tokens=scored.tokens,
        groups=groups,
        cost=scored.cost,
        stacked=stacked,
        settings=settings,
        notes=tuple(notes),
    )


def _dataset(
    scored: Scored, labels: Mapping[str, int], texts: Mapping[str, str], seed: int
) -> dict[str, Any] | None:
    """Test the sets against each other (Maini et al. 2024), and whether they differ without the model at all."""
    ids = [id for id in labels if all(id in column for column in scored.scores.values())]
    sides = [[id for id in ids if labels[id] == label] for label in (1, 0)]
    if min(map(len, sides)) < MIN_DATASET:
        return None
    features = [
        np.array([[column[id] for column in scored.scores.values()] for id in side]) for side in sides
    ]
    # Ranks: ratios of losses can be so large that they would carry the fit alone.
    pooled = np.concatenate(features)
    ranks = pooled.argsort(axis=0, kind="stable").argsort(axis=0) / len(pooled)
    found = dataset_inference(
        ranks[: len(sides[0])], ranks[len(sides[0]) :], seed=derive_seed(seed, "dataset")
    )
    blind = blind_baseline(*([texts[id] for id in side] for side in sides), seed=derive_seed(seed, "blind"))
    return {
        "inference": found.to_dict(),
        "blind_baseline": blind.to_dict(),
        "shift": blind.pvalue < 0.05,
        "says": "the sets differ without the model: membership is not what tells them apart"
        if blind.pvalue < 0.05
        else "no shift between the sets was found without the model",
    }


def _attacks(attacks: str | Iterable[str | Attack] | None, reference: bool) -> list[Attack]:
    if attacks is None:
        attacks = [*ALONE, *(REFERENCED if reference else ())]
    return make_all(split_specs(attacks) if isinstance(attacks, str) else attacks)


def _asks_for_stack(attacks: str | Iterable[str | Attack] | None) -> bool:
    named = split_specs(attacks) if isinstance(attacks, str) else attacks
    return named is not None and STACK in [one for one in named if isinstance(one, str)]


def _without_stack(attacks: str | Iterable[str | Attack] | None) -> list[str | Attack] | None:
    """Leave the stack out: it is made of the others' scores."""
    if attacks is None:
        return None
    named: Iterable[str | Attack] = split_specs(attacks) if isinstance(attacks, str) else attacks
    return [one for one in named if not (isinstance(one, str) and one == STACK)]


def _store(store: SignalStore | str | Path | None) -> SignalStore | None:
    return store if store is None or isinstance(store, SignalStore) else SignalStore(store)


def _counts(corpus: Iterable[str] | Sequence[int] | None, backend: Backend) -> Sequence[int] | None:
    if corpus is None:
        return None
    if isinstance(corpus, (str, Path)):
        raise InputTypeError("corpus is a path; read it first, or give its texts or token counts")
    rows: list[Any] = list(corpus)
    if rows and isinstance(rows[0], str):
        counts: list[int] = count_tokens(rows, backend.tokenizer, backend.vocabulary).tolist()
        return counts
    return [int(one) for one in rows]


def _beginning(tools: Tools) -> str:
    if tools.bos:
        return "the tokenizer puts a beginning before each text, so the first token is scored"
    return "the tokenizer puts nothing before a text, so its first token is not scored"


def _both_labels(texts: Mapping[str, str], labels: Mapping[str, int]) -> list[str]:
    sides: list[set[str]] = [{texts[id] for id, label in labels.items() if label == one} for one in (1, 0)]
    both = len(sides[0] & sides[1])
    return (
        [f"{both} texts are labelled member and non-member alike; no attack can tell them apart"]
        if both
        else []
    )


def _notes(attacks: Sequence[Attack], tools: Tools) -> list[str]:
    notes = []
    for one in attacks:
        if one.parameters.get("shots") == "judged":
            notes.append(
                f"{one.label}: its shots are among the judged texts and drawn by their labels; not comparable"
            )
        asked = one.parameters.get("n_shots")
        for kind in ("nonmembers", "members"):
            used = tools.shots_used.get(f"{one.name}/{kind}")
            if asked is not None and used is not None and used < asked:
                notes.append(f"{one.label}: {used} of {asked} shots ({kind}) were there and fit the context")
    if tools.longer:
        done = {"window": "scored in windows", "truncate": "cut to the context", "refuse": "not scored"}
        number = len(tools.longer)
        notes.append(
            f"{number} texts, variants included, are longer than the context: {done[tools.long_texts]}"
        )
    return notes
