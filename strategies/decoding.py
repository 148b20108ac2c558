"""One batch of generate in which a row ends, and leaves the batch, as soon as its caller needs no more of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from memaudit.strategies.forward import cache_argument

GiveUp = Callable[[int, Sequence[int]], bool]
"""Whether the prompt at a position of the caller's list, with its new tokens so far, need not go on."""

EVERY = 4
"""New tokens between two questions: each costs time beside a step of the model."""


def cut(new: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the ids before the first end token.

    Example:
        >>> cut([4, 5, 2, 0], [2])
        [4, 5]
    """
    for index, token in enumerate(new):
        if token in ends:
            return list(new[:index])
    return list(new)


def first_given_up(give_up: GiveUp, index: int, new: Sequence[int]) -> int | None:
    """Return after how many of a text's new tokens it is given up, None where it is not.

    Example:
        >>> first_given_up(lambda _, new: len(new) > 5, 0, range(20))
        8
    """
    looks = range(EVERY, len(new) + 1, EVERY)
    return next((length for length in looks if give_up(index, new[:length])), None)


def decode_batch(
    model: nn.Module,
    ids: Tensor,
    mask: Tensor,
    *,
    rows: Sequence[int],
    settings: Any,
    stops: Sequence[int],
    give_up: GiveUp,
    leave: bool,
    keywords: dict[str, Any],
) -> list[list[int]]:
    """Generate from one padded batch; a row that is given up ends there.

    Rows leave the batch where nothing else holds them in it, so that a batch does not cost its full width until
    its last row is done.

    Args:
        model: whose ``generate`` is called.
        ids: int64 [batch, length], padded on the left.
        mask: int64 [batch, length].
        rows: for each row the position of its prompt, which ``give_up`` is asked with; rows beyond are dummies.
        settings: a GenerationConfig with ``max_new_tokens``.
        stops: ids that end a text.
        give_up: asked every few tokens.
        leave: whether rows may leave, which changes the number of forwards: not where ranks keep step.
        keywords: others of generate; keys and values of the prompts among them.

    Returns:
        For each of ``rows`` the new ids, cut before the first end token or where it was given up.
    """
    found: list[list[int]] = [[] for _ in rows]
    if not leave:
        from transformers import StoppingCriteriaList

        criterion = _ends_rows(ids.shape[1], rows, stops, give_up)
        given = StoppingCriteriaList([*keywords.pop("stopping_criteria", ()), criterion])
        whole = _generate(model, ids, mask, settings, {**keywords, "stopping_criteria": given})
        for row, new in enumerate(whole.sequences[: len(rows), ids.shape[1] :].tolist()):
            found[row] = cut(new[: criterion.ended.get(row)], stops)
        return found
    alive, left = list(range(len(rows))), int(settings.max_new_tokens)
    start, held = ids.shape[1], cache_argument(model)[0]
    while alive and left > 0:
        stage = copy(settings)
        stage.max_new_tokens = min(EVERY, left)
        output = _generate(model, ids, mask, stage, keywords)
        left -= stage.max_new_tokens
        kept = []
        for place, new in enumerate(output.sequences[:, start:].tolist()):
            row = alive[place]
            found[row] = cut(new, stops)
            ended = len(found[row]) < len(new) or len(new) % EVERY != 0
            if not ended and not give_up(rows[row], found[row]):
                kept.append(place)
        ids, cache = output.sequences, getattr(output, held)
        mask = torch.cat([mask, mask.new_ones(len(mask), ids.shape[1] - mask.shape[1])], dim=1)
        if len(kept) < len(alive) and kept:
            chosen = torch.tensor(kept, device=ids.device)
            ids, mask = ids[chosen], mask[chosen]
            cache.batch_select_indices(chosen)
        alive = [alive[place] for place in kept]
        keywords = {**keywords, held: cache}
    return found


def _generate(model: Any, ids: Tensor, mask: Tensor, settings: Any, keywords: dict[str, Any]) -> Any:
    settings = copy(settings)
    settings.return_dict_in_generate = True
    return model.generate(input_ids=ids, attention_mask=mask, generation_config=settings, **keywords)


def _ends_rows(start: int, rows: Sequence[int], stops: Sequence[int], give_up: GiveUp) -> Any:
    """Return a stopping criterion that ends given up rows of one batch; ``ended`` says after how many tokens."""
    from transformers import StoppingCriteria

    class EndsRows(StoppingCriteria):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            self.ended: dict[int, int] = {}

        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            length = input_ids.shape[1] - start
            if length % EVERY == 0:
                for row, new in enumerate(input_ids[: len(rows), start:].tolist()):
                    over = row in self.ended or any(token in stops for token in new)
                    if not over and give_up(rows[row], new):
                        self.ended[row] = length
            # A dummy ends at once; it keeps ranks in step for as long as one of them has a row.
            done = [row in self.ended or row >= len(rows) for row in range(len(input_ids))]
            return torch.tensor(done, device=input_ids.device)

    return EndsRows()
