"""extract_all: from signals to every record's regurgitation, generating only what the signals leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.extraction.decide import SLACK, Decode, decide
from memaudit.extraction.generated import Task, stop_ids
from memaudit.extraction.near_verbatim import Answers, Question, answer
from memaudit.extraction.probabilistic import suffix_logprob, tries_needed
from memaudit.extraction.results import (
    CanaryExtraction,
    ExtractionOutcome,
    GenerationCounts,
    PrefixResult,
    Tries,
)
from memaudit.extraction.teacher_forced import (
    first_miss,
    longest_run,
    prefix_tokens,
    shortest_prefix,
    unscored,
)
from memaudit.signals import Decoding, TokenSignals

if TYPE_CHECKING:  # the protocol imports torch, extraction itself needs none
    from memaudit.strategies.base import Strategy


class Rendered(Protocol):
    """A record as the model saw it in training: token ids, and the secret's half-open range in them."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def span(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class _Rules:
    """What is the same for all records; the arguments of :func:`extract_all`."""

    fractions: tuple[float, ...]
    decodings: tuple[Decoding, ...]
    ps: tuple[float, ...]
    decode: Decode | None
    slack: int
    stops: tuple[int, ...]


@dataclass(slots=True)
class _State:
    """What is collected while the records are gone through."""

    by_id: dict[str, CanaryExtraction] = field(default_factory=dict)
    open: list[Question] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)
    unscorable: list[str] = field(default_factory=list)
    verbatim: int = 0
    decided: int = 0


def extract_all(
    rendered: Mapping[str, Rendered],
    target_signals: Mapping[str, TokenSignals],
    *,
    strategy: Strategy | None = None,
    fractions: Sequence[float] = (0.25, 0.5),
    decodings: Sequence[Decoding] = (),
    generate_open: bool = True,
    ps: Sequence[float] = (0.1, 0.5, 0.9, 0.99),
    decode: Decode | None = None,
    slack: int = SLACK,
    max_batch_size: int = 32,
    max_batch_tokens: int = 8192,
    failure_timeout: float = 60.0,
) -> ExtractionOutcome:
    """Say of every record what comes back out of the model: verbatim, near-verbatim and with which
    probability.

    Canaries, controls and real records go through it alike. Verbatim verdicts and probabilities are read off
    the signals; a generation is run only where neither they nor what they prove (extraction/decide.py) decide
    the near-verbatim verdict. Its prompt is the record's own context in token ids, up to and with the first
    token that greedy decoding gets wrong, so prefixes that share it share one generation. Every rank must
    call this with the same arguments; every rank gets the whole result.

    Args:
        rendered: id to the record as it was trained on.
        target_signals: id to the signals of its secret, scored by the audited model in that record.
        strategy: how the model lies on its ranks; needed for generations alone.
        fractions: shares of the secret that are given, each in (0, 1).
        decodings: schemes under which the probability of sampling the suffix is computed.
        generate_open: whether to generate what is open; where not, it is reported as "not_run".
        ps: probabilities p for which the samples n of (n, p)-discoverable extraction are computed.
        decode: token ids to text; near-verbatim then compares words and characters, and token ids else.
        slack: tokens that a generation may have beyond the suffix, at least 1.
        max_batch_size: rows of one scoring forward; a step of a generation has one token a row, so eight times
            as many prompts go through the model together.
        max_batch_tokens: tokens, prompts and new ones, whose keys and values are kept at a time.
        failure_timeout: seconds that a rank waits, after another one has failed, before it ends itself.

    Returns:
        Results by id, the counts of generations needed and skipped, and the ids that could not be judged.

    Raises:
        ConfigurationError: ids of records and signals differ, or a record's signals are of other tokens.
        SignalStoreError: the signals were scored without one of the decoding schemes.
        AuditError: a generation failed on some rank.

    Example:
        >>> from types import SimpleNamespace
        >>> record = SimpleNamespace(ids=[1, 4, 5, 6, 7], span=(1, 5))
        >>> signals = TokenSignals.from_lists(
        ...     token_ids=[4, 5, 6, 7], top1_id=[9, 5, 6, 7], rank=[1, 0, 0, 0],
        ...     logprob=[-2.0, -0.1, -0.1, -0.1],
        ...     mean=[-1.0] * 4, std=[1.0] * 4, top1_logprob=[-0.5, -0.1, -0.1, -0.1])
        >>> found = extract_all({"c": record}, {"c": signals}, decodings=[Decoding()])
        >>> one = found.by_id["c"].by_prefix[0]
        >>> one.verbatim, one.source, round(one.log_probability["t1-k0-p1"], 3), one.n_for_p["t1-k0-p1"][1].n
        (True, 'teacher_forced', -0.3, 1)
    """
    if set(rendered) != set(target_signals):
        odd = sorted(set(rendered) ^ set(target_signals))
        raise ConfigurationError(
            f"{len(odd)} ids have a record or signals but not both, first {odd[0]}; "
            "give both for the same ids"
        )
    if slack < 1:
        raise ConfigurationError(f"slack is {slack}; expected at least 1 token")
    stops = () if strategy is None else stop_ids(strategy.model)
    rules = _Rules(tuple(fractions), tuple(decodings), tuple(ps), decode, slack, stops)
    state = _State()
    for name in sorted(rendered):
        _read(state, rules, name, rendered[name], target_signals[name])
    ran: Answers | None = None
    if generate_open and strategy is not None:
        ran = answer(
            strategy,
            state.open,
            state.tasks,
            slack=slack,
            decode=decode,
            max_batch_size=max_batch_size,
            max_batch_tokens=max_batch_tokens,
            failure_timeout=failure_timeout,
        )
        _note(state, ran)
    counts = GenerationCounts(
        pairs=len(state.by_id) * len(rules.fractions),
        verbatim=state.verbatim,
        decided=state.decided,
        generated=0 if ran is None else len(state.open),
        not_run=len(state.open) if ran is None else 0,
        prompts=0 if ran is None else ran.prompts,
        given_up=0 if ran is None else ran.given_up,
        calls=0 if ran is None else ran.calls,
    )
    return ExtractionOutcome(
        by_id=state.by_id,
        counts=counts,
        unscorable=tuple(state.unscorable),
        unit="tokens" if decode is None else "text",
    )


def _read(state: _State, rules: _Rules, name: str, record: Rendered, signals: TokenSignals) -> None:
    """Take from one record's signals all that they say, and note what they leave open."""
    start, stop = record.span
    secret = tuple(int(token) for token in record.ids[start:stop])
    size = len(secret)
    try:
        offset = unscored(signals, size)
    except ConfigurationError as error:
        raise ConfigurationError(f"record {name}: {error}") from None
    if tuple(signals.token_ids.tolist()) != secret[offset:]:
        raise ConfigurationError(
            f"record {name}: the signals are of other tokens than the record's span; score the record again"
        )
    if np.isnan(signals.logprob).any() or np.isnan(signals.top1_logprob).any():
        state.unscorable.append(name)  # the argmax of a distribution that is not one says nothing
        return
    results = []
    for index in range(len(rules.fractions)):
        result = _prefix(state, rules, name, index, record, signals)
        if result.n_suffix_tokens:
            logs = {
                d.name: suffix_logprob(signals, d, result.n_prefix_tokens - offset) for d in rules.decodings
            }
            result = replace(result, log_probability=logs, n_for_p=_tries(logs, rules.ps))
        results.append(result)
    whole = {d.name: suffix_logprob(signals, d) for d in rules.decodings} if len(signals) else {}
    state.by_id[name] = CanaryExtraction(
        id=name,
        n_tokens=size,
        by_prefix=tuple(results),
        longest_run=longest_run(signals),
        shortest_prefix=shortest_prefix(signals, n_tokens=size),
        log_probability=whole,
        n_for_p=_tries(whole, rules.ps),
    )


def _prefix(
    state: _State, rules: _Rules, name: str, index: int, record: Rendered, signals: TokenSignals
) -> PrefixResult:
    """Judge one prefix of one record, or note its generation."""
    start, stop = record.span
    secret = tuple(int(token) for token in record.ids[start:stop])
    given = prefix_tokens(len(secret), rules.fractions[index])
    suffix = secret[given:]
    result = PrefixResult(
        fraction=rules.fractions[index],
        n_prefix_tokens=given,
        n_suffix_tokens=len(suffix),
        verbatim=False,
        near_verbatim=None,
        bleu=None,
        edit_distance=None,
        source="not_run",
    )
    if not suffix:  # one token: nothing is left to come back
        state.decided += 1
        return replace(result, near_verbatim=False, source="teacher_forced")
    miss = first_miss(signals, given, n_tokens=len(secret))
    if miss is None:
        state.verbatim += 1
        return replace(
            result, verbatim=True, near_verbatim=True, bleu=1.0, edit_distance=0.0, source="teacher_forced"
        )
    emitted = int(signals.top1_id[miss - unscored(signals, len(secret))])
    verdict = decide(
        suffix, miss - given, emitted, stop_ids=rules.stops, slack=rules.slack, decode=rules.decode
    )
    if verdict is not None:
        state.decided += 1
        figures = verdict.match
        return replace(
            result,
            near_verbatim=verdict.near,
            bleu=None if figures is None else figures.bleu,
            edit_distance=None if figures is None else figures.edit_distance,
            source="teacher_forced",
        )
    key = f"{name}@{miss}"
    # What remains after the wrong token is the same number whatever the prefix was.
    state.tasks[key] = Task(
        key, (*(int(t) for t in record.ids[: start + miss]), emitted), len(secret) - miss - 1 + rules.slack
    )
    state.open.append(Question(name, index, suffix, (*secret[given:miss], emitted), key))
    return result


def _note(state: _State, ran: Answers) -> None:
    """Put the answers where the questions were."""
    for question, found in zip(state.open, ran.answers, strict=True):
        record = state.by_id[question.id]
        results = list(record.by_prefix)
        results[question.index] = replace(
            results[question.index],
            near_verbatim=found.near,
            bleu=None if found.match is None else found.match.bleu,
            edit_distance=None if found.match is None else found.match.edit_distance,
            source="generated",
        )
        state.by_id[question.id] = replace(record, by_prefix=tuple(results))


def _tries(logs: Mapping[str, float], ps: Sequence[float]) -> dict[str, tuple[Tries, ...]]:
    return {scheme: tuple(tries_needed(min(0.0, value), p) for p in ps) for scheme, value in logs.items()}
