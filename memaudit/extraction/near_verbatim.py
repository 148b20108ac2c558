"""Near-verbatim verdicts by generation, each ended as soon as it cannot match any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memaudit.extraction.decide import Decode, compare, still_possible
from memaudit.extraction.generated import Hopeless, Task, max_positions, plan_rounds, run_rounds, stop_ids
from memaudit.extraction.matching import Match

if TYPE_CHECKING:  # the protocol imports torch, extraction itself needs none
    from memaudit.strategies.base import Strategy


HEAD = 12
"""New tokens after which ranks in lockstep put together anew what goes on: by then most texts are given up.

Where ranks need not keep step, a text that is given up leaves its batch at once."""

ROWS = 8
"""Prompts that are generated together for each row of a scoring forward."""


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
    given_up: int
    calls: int


def answer(
    strategy: Strategy,
    questions: Sequence[Question],
    tasks: Mapping[str, Task],
    *,
    slack: int,
    decode: Decode | None = None,
    max_batch_size: int = 32,
    max_batch_tokens: int = 8192,
    failure_timeout: float = 60.0,
) -> Answers:
    """Answer every question by greedy generation on the shards; every rank calls and gets all answers.

    Args:
        strategy: how the model lies on its ranks.
        questions: what is open.
        tasks: the generations that the questions name, by key.
        slack: tokens that an output may have beyond the suffix.
        decode: token ids to text; text is compared where it is given.
        max_batch_size: rows of one scoring forward; a step of a generation has one token a row, so eight times
            as many prompts go through the model together.
        max_batch_tokens: tokens, prompts and new ones, whose keys and values are kept at a time.
        failure_timeout: seconds that a rank waits, after another one has failed, before it ends itself.

    Raises:
        AuditError: a generation failed on some rank.
    """
    of_task: dict[str, list[Question]] = {}
    for one in questions:
        of_task.setdefault(one.task, []).append(one)

    def hopeless(key: str, new: Sequence[int]) -> bool:
        return not any(
            still_possible(one.suffix, [*one.known, *new], slack=slack, decode=decode) for one in of_task[key]
        )

    def run(work: Sequence[Task], ends: Hopeless) -> tuple[dict[str, list[int] | None], int]:
        rounds = plan_rounds(
            work,
            ranks=strategy.record_world,
            max_batch_size=ROWS * max_batch_size,
            max_batch_tokens=max_batch_tokens,
            max_positions=max_positions(strategy.model),
        )
        found = run_rounds(
            strategy,
            rounds,
            hopeless=ends,
            stop_ids=stop_ids(strategy.model),
            batch_size=ROWS * max_batch_size,
            failure_timeout=failure_timeout,
        )
        return found, len(rounds)

    heads = [
        replace(task, max_new_tokens=min(HEAD, task.max_new_tokens)) if strategy.lockstep else task
        for task in tasks.values()
    ]
    outputs, calls = run(heads, hopeless)
    # A batch lasts as long as its last row, so the few that can still match go on in batches of their own.
    tails = []
    for head in heads:
        task, new = tasks[head.key], outputs.get(head.key)
        if new is None or len(new) < head.max_new_tokens or len(new) == task.max_new_tokens:
            continue  # given up, ended by itself, or whole
        if hopeless(head.key, new):
            outputs[head.key] = None
        else:
            tails.append(Task(task.key, (*task.prompt, *new), task.max_new_tokens - len(new)))
    starts = {task.key: outputs[task.key] or [] for task in tails}
    if tails:  # planned from gathered outputs: every rank comes to the same

        def later(key: str, new: Sequence[int]) -> bool:
            return hopeless(key, [*starts[key], *new])

        rest, more = run(tails, later)
        calls += more
        outputs.update({key: new if new is None else [*starts[key], *new] for key, new in rest.items()})
    answers = []
    for one in questions:
        new = outputs.get(one.task, [])  # without a task's output no position was left to generate into
        if new is None:
            answers.append(Answer(False, None))
            continue
        output = [*one.known, *new][: len(one.suffix) + slack]
        match = compare(one.suffix, output, slack=slack, decode=decode)
        answers.append(Answer(match.near, match))
    return Answers(
        tuple(answers),
        prompts=len(heads),
        given_up=sum(new is None for new in outputs.values()),
        calls=calls,
    )
