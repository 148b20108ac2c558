"""Generations that the signals could not decide: planned on every rank alike, run on the shards, joined by
id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memaudit.beginnings import carriers
from memaudit.errors import AuditError

if TYPE_CHECKING:  # the protocol imports torch, extraction itself needs none
    from memaudit.strategies.base import Strategy

Hopeless = Callable[[str, Sequence[int]], bool]
"""Whether the task of a key, with the new tokens so far, can no longer be what is looked for."""

GREEDY: Mapping[str, Any] = {
    "do_sample": False,
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "exponential_decay_length_penalty": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": None,
    "min_length": 0,
    "min_new_tokens": None,
    "stop_strings": None,
    "num_return_sequences": 1,
    "prompt_lookup_num_tokens": None,
}
"""Plain argmax decoding. Checkpoints ship penalties and suppressed tokens in their generation_config; with
them the output is no longer what the model's distribution says, and "greedy" means another thing for each
model."""


@dataclass(frozen=True, slots=True)
class Task:
    """One generation: a key, the prompt's token ids, and how many new tokens are wanted."""

    key: str
    prompt: tuple[int, ...]
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """One call of Strategy.generate on every rank: the tasks of each record rank, and one length for all."""

    by_rank: tuple[tuple[Task, ...], ...]
    max_new_tokens: int


def plan_rounds(
    tasks: Sequence[Task],
    *,
    ranks: int,
    max_batch_size: int = 128,
    max_batch_tokens: int = 8192,
    max_positions: int | None = None,
) -> list[Round]:
    """Deal tasks to rounds and record ranks; the result depends on the set of tasks alone.

    Args:
        tasks: what is to be generated; keys are unique.
        ranks: record ranks that share the work.
        max_batch_size: prompts per rank and call at most.
        max_batch_tokens: tokens per rank and call at most, prompts and new ones, padded: what keys and values
            are kept for. A longer single task has a call of its own.
        max_positions: prompt and new tokens together at most, None where the model has no limit.

    Returns:
        Rounds with the same number of calls and of new tokens for every rank.

    Example:
        >>> [len(r) for r in plan_rounds([Task("a", (1,), 4), Task("b", (2,), 3)], ranks=2)[0].by_rank]
        [1, 1]
    """
    rounds: list[Round] = []
    current: list[list[Task]] = []

    def close() -> None:
        if current:
            dealt = _deal(current, ranks)
            rounds.append(Round(dealt, max(task.max_new_tokens for share in dealt for task in share)))
            current.clear()

    for group in _groups(tasks, max_positions):
        longest = max(len(task.prompt) for task in group) + group[0].max_new_tokens
        for one in _cut(group, min(max_batch_size, max(1, max_batch_tokens // longest))):
            both = [*current, one]
            everything = [task for some in both for task in some]
            length = max(len(t.prompt) for t in everything) + max(t.max_new_tokens for t in everything)
            rows = max(map(len, _deal(both, ranks)))
            if (
                rows > max_batch_size
                or rows * length > max_batch_tokens
                or (max_positions is not None and length > max_positions)
            ):
                close()
            current.append(one)
    close()
    return rounds


def _groups(tasks: Sequence[Task], max_positions: int | None) -> list[list[Task]]:
    """Return tasks by the longest prompt that begins with theirs: it goes through the model once for all.

    Like lengths stand together, since a round lasts as long as its longest task.
    """
    fitting = []
    for task in sorted(tasks, key=lambda t: t.key):
        room = task.max_new_tokens if max_positions is None else max_positions - len(task.prompt)
        if room >= 1:  # else no position is left: nothing can follow, as though the text ended
            fitting.append(Task(task.key, task.prompt, min(task.max_new_tokens, room)))
    # What stands before the last token is what can be shared: prompts of a record differ in their last one.
    kept, position = carriers([task.prompt[:-1] for task in fitting])
    groups: dict[tuple[int, int], list[Task]] = {}
    for task, index in zip(fitting, position, strict=True):
        groups.setdefault((-task.max_new_tokens, index), []).append(task)
    order = sorted(groups, key=lambda key: (key[0], -len(kept[key[1]]), key[1]))
    return [groups[key] for key in order]


def _cut(group: list[Task], size: int) -> list[list[Task]]:
    return [group[i : i + size] for i in range(0, len(group), size)]


def _deal(groups: Sequence[list[Task]], ranks: int) -> tuple[tuple[Task, ...], ...]:
    """Give each group, as a whole, to the rank that has the fewest tasks."""
    dealt: list[list[Task]] = [[] for _ in range(ranks)]
    for group in groups:
        min(dealt, key=len).extend(group)
    return tuple(map(tuple, dealt))


def run_rounds(
    strategy: Strategy,
    rounds: Sequence[Round],
    *,
    hopeless: Hopeless,
    stop_ids: Sequence[int] = (),
    batch_size: int = 32,
    failure_timeout: float = 60.0,
) -> dict[str, list[int] | None]:
    """Run the rounds on the shards and return every task's new token ids by key, or None where it was given up.

    Every rank calls this with the same rounds. A rank whose generation raises goes on with the calls that
    were planned, so that no other waits for it, and all raise together at the end.

    Args:
        strategy: how the model lies on its ranks.
        rounds: what :func:`plan_rounds` returned.
        hopeless: whether a task, with its new tokens so far, need not go on.
        stop_ids: ids that end a generation; they and what follows are cut off.
        batch_size: prompts that go through the model together; a round has no more on any rank.
        failure_timeout: seconds that a rank waits, after another one has failed, before it ends itself.

    Raises:
        AuditError: a generation failed on some rank, or answered another number of prompts.
    """
    from memaudit.failure import FailureWatch

    rows: list[tuple[str, list[int] | None]] = []
    failures: list[tuple[int, str]] = []
    answers: list[tuple[str, list[int] | None]] = []
    failed: list[tuple[int, str]] = []
    world = {"rank": strategy.rank, "world_size": strategy.world_size}
    with FailureWatch(**world, timeout=failure_timeout) as watch:
        for one in rounds:
            mine = one.by_rank[strategy.record_rank]
            given_up: set[int] = set()

            def give_up(
                index: int,
                new: Sequence[int],
                mine: Sequence[Task] = mine,
                given_up: set[int] = given_up,
            ) -> bool:
                task = mine[index]
                # A text that is whole is judged: the batch may go on for longer ones.
                if len(new) < task.max_new_tokens and hopeless(task.key, new):
                    given_up.add(index)
                return index in given_up or len(new) >= task.max_new_tokens

            try:
                outputs = strategy.generate(
                    [list(task.prompt) for task in mine],
                    max_new_tokens=one.max_new_tokens,
                    batch_size=batch_size,
                    give_up=give_up,
                    **GREEDY,
                )
                if len(outputs) != len(mine):
                    raise AuditError(f"{len(mine)} prompts were given and {len(outputs)} answers came back")
                rows += [
                    (
                        task.key,
                        None if index in given_up else _until_stop(output[: task.max_new_tokens], stop_ids),
                    )
                    for index, (task, output) in enumerate(zip(mine, outputs, strict=True))
                ]
            except Exception as error:  # the other ranks rely on this one's planned calls
                cause = f"{type(error).__name__}: {str(error)[:200]}"
                failures.append((strategy.rank, cause))
                watch.post(f"generation: {cause}")
            watch.tick()
        for rank_rows, rank_failures in strategy.gather([(rows, failures)]):
            answers += rank_rows
            failed += rank_failures
    if failed:
        rank, cause = failed[0]
        raise AuditError(
            f"generation failed on rank {rank} ({cause}); {len(failed)} failures in all; correct the cause, "
            "or run with generation switched off to keep the verbatim verdicts"
        )
    return dict(answers)  # ranks of one tensor-parallel group give equal rows


def stop_ids(model: Any) -> tuple[int, ...]:
    """Return the ids that end a generation of this model, from its generation_config or config."""
    for holder in ("generation_config", "config"):
        value = getattr(getattr(model, holder, None), "eos_token_id", None)
        if value is not None:
            return (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)
    return ()


def max_positions(model: Any) -> int | None:
    """Return how many positions the model has, None where its config names no limit."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    for name in ("max_position_embeddings", "n_positions", "max_sequence_length"):
        value = getattr(text, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _until_stop(output: Sequence[int], stops: Sequence[int]) -> list[int]:
    for index, token in enumerate(output):
        if token in stops:
            return list(output[:index])
    return list(output)
