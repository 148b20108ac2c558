"""Ending generations that cannot match any more, from within transformers' own generate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Hopeless = Callable[[str, Sequence[int]], bool]
"""Whether the task of a key, with the new tokens so far, can no longer be what is looked for."""

EVERY = 4
"""New tokens between two looks: a look costs time beside a step of the model."""


def give_up(
    prompts: Sequence[tuple[str, Sequence[int]]], hopeless: Hopeless, *, stop_ids: Sequence[int] = ()
) -> tuple[Any, set[str]]:
    """Return stopping criteria for one call of generate, and the set that will hold the keys given up.

    Rows are known by their prompts, which end where the new tokens begin, since generate's rows are padded on
    the left and may be in any order.

    Args:
        prompts: key and token ids of every prompt of the call.
        hopeless: asked every few tokens.
        stop_ids: ids that end a text; a row that has one is left alone.

    Returns:
        A ``StoppingCriteriaList`` to pass as ``stopping_criteria``, and the keys, filled while it runs.
    """
    from transformers import StoppingCriteria, StoppingCriteriaList

    by_length: dict[int, dict[tuple[int, ...], list[str]]] = {}
    for key, prompt in prompts:
        by_length.setdefault(len(prompt), {}).setdefault(tuple(prompt), []).append(key)
    given_up: set[str] = set()

    class GivesUp(StoppingCriteria):  # type: ignore[misc,unused-ignore]
        """Ends a row whose every task is hopeless; the call ends when no row is left."""

        def __init__(self) -> None:
            self.start = self.length = 0
            self.rows: list[list[str]] = []
            self.done: list[bool] = []

        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            length = int(input_ids.shape[1])
            if length <= self.length or not self.rows:  # the first token of another batch
                self.start = length - 1
                self.rows = [_keys(by_length, row) for row in input_ids[:, : self.start].tolist()]
                self.done = [not keys for keys in self.rows]  # a dummy that keeps ranks in step
            self.length = length
            if (length - self.start) % EVERY == 0 and not all(self.done):
                for index, new in enumerate(input_ids[:, self.start :].tolist()):
                    ended = self.done[index] or any(token in stop_ids for token in new)
                    if not ended and all(hopeless(key, new) for key in self.rows[index]):
                        self.done[index] = True
                        given_up.update(self.rows[index])
            return input_ids.new_tensor(self.done).bool()

    return StoppingCriteriaList([GivesUp()]), given_up


def _keys(by_length: dict[int, dict[tuple[int, ...], list[str]]], row: Sequence[int]) -> list[str]:
    """Return the keys of every prompt that the row ends with: where it is in doubt, all must be hopeless."""
    return [
        key
        for length, prompts in by_length.items()
        if length <= len(row)
        for key in prompts.get(tuple(row[len(row) - length :]), ())
    ]
