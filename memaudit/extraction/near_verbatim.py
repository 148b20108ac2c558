"""Near-verbatim verdicts by generation: a few tokens of everything that is open, the rest of what still can
match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memaudit.extraction.decide import Decode, compare, still_possible
from memaudit.extraction.generated import Task, max_positions, plan_rounds, run_rounds, stop_ids
from memaudit.extraction.matching import Match

if TYPE_CHECKING:  # the protocol imports torch, extraction itself needs none
    from memaudit.strategies.base import Strategy

HEAD = 8
"""Tokens of the first part: after so many, and the slack, text that is not the suffix is told from it."""


@dataclass(frozen=True, slots=True)
class Question:
    """One record and prefix whose near-verbatim verdict is open.

    Args:
        id: the record's id.
        index: position of the prefix among the fractions.
        suffix: true token ids after the prefix.
        known: what greedy decoding emits after the prefix, the first wrong token included.
        task: key of the generation that goes on from there.
    """

    id: str
    index: int
    suffix: tuple[int, ...]
    known: tuple[int, ...]
    task: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether the output is near-verbatim, its figures where it was generated to its end, else None."""

    near: bool
    match: Match | None


@dataclass(frozen=True, slots=True)
class Answers:
    """One answer per question, in their order, and what they took."""

    answers: tuple[Answer, ...]
    prompts: int
    calls: int


def answer(
    strategy: Strategy,
    questions: Sequence[Question],
    tasks: Mapping[str, Task],
    *,
    slack: int,
    decode: Decode | None = None,
    max_batch_size: int = 32,
    failure_timeout: float = 60.0,
) -> Answers:
    """Answer every question by greedy generation on the shards; every rank calls and gets all answers.

    Args:
        strategy: how the model lies on its ranks.
        questions: what is open.
        tasks: the generations that the questions name, by key.
        slack: tokens that an output may have beyond the suffix.
        decode: token ids to text; text is compared where it is given.
        max_batch_size: prompts per rank and call.
        failure_timeout: seconds that a rank waits, after another one has failed, before it ends itself.

    Raises:
        AuditError: a generation failed on some rank.
    """
    model = strategy.model
    stops, positions = stop_ids(model), max_positions(model)

    def run(work: Sequence[Task]) -> tuple[dict[str, list[int]], int]:
        rounds = plan_rounds(
            work, ranks=strategy.record_world, max_batch_size=max_batch_size, max_positions=positions
        )
        outputs = run_rounds(
            strategy, rounds, stop_ids=stops, batch_size=max_batch_size, failure_timeout=failure_timeout
        )
        return outputs, len(rounds)

    heads = [replace(task, max_new_tokens=min(HEAD, task.max_new_tokens)) for task in tasks.values()]
    found, calls = run(heads)
    # Shorter than asked: the text ended, or no position was left. A task of no position has no output at all.
    going = {
        head.key: tasks[head.key]
        for head in heads
        if len(found.get(head.key, ())) == head.max_new_tokens < tasks[head.key].max_new_tokens
    }
    lost = {
        index
        for index, one in enumerate(questions)
        if one.task in going
        and not still_possible(one.suffix, [*one.known, *found[one.task]], slack=slack, decode=decode)
    }
    wanted = {one.task for index, one in enumerate(questions) if one.task in going and index not in lost}
    tails = [
        Task(key, (*task.prompt, *found[key]), task.max_new_tokens - len(found[key]))
        for key, task in going.items()
        if key in wanted
    ]
    if tails:  # planned from gathered outputs: every rank comes to the same
        rest, more = run(tails)
        calls += more
        found.update({key: [*found[key], *new] for key, new in rest.items()})
    answers = []
    for index, one in enumerate(questions):
        if index in lost:
            answers.append(Answer(False, None))
            continue
        output = [*one.known, *found.get(one.task, ())][: len(one.suffix) + slack]
        match = compare(one.suffix, output, slack=slack, decode=decode)
        answers.append(Answer(match.near, match))
    return Answers(tuple(answers), prompts=len(heads) + len(tails), calls=calls)
