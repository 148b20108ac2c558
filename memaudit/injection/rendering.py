"""From a canary's record to the ids that the trainer of its format sees, and where the secret lies in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memaudit.canaries.tokens import TokenizerLike, decode
from memaudit.errors import InjectionError
from memaudit.injection.formats import find
from memaudit.manifest import Manifest, PlacedCanary

COLUMNS_KEY = "columns"
"""Where a placed canary's metadata keep the columns that have other than the usual names."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A record as tokens: ``ids``, the half-open ``span`` of the secret's tokens in them, and the text."""

    ids: tuple[int, ...]
    span: tuple[int, int]
    text: str = field(repr=False)


def render(canary: PlacedCanary, fmt: str, tokenizer: TokenizerLike) -> Rendered:
    """Return the canary's record as the trainer of its format tokenises it.

    Text, prompt and completion, and Alpaca rows are one text with the tokenizer's special tokens; turns go
    through its chat template; tokenised rows stand as they are.

    Args:
        canary: with its record.
        fmt: the manifest's format.
        tokenizer: the training's.

    Returns:
        The ids and the secret's span: ``ids[start:stop] == canary.secret_ids``.

    Raises:
        InjectionError: the secret's ids are not in the record's, so that nothing could be scored.
    """
    form = find(fmt)
    columns: Mapping[str, str] = canary.metadata.get(COLUMNS_KEY, {})
    try:
        tokenised = form.tokenise(canary.record, columns, tokenizer)
    except KeyError as error:
        raise InjectionError(
            f"canary {canary.id}: its record lacks the column {error} of the format {fmt}"
        ) from error
    start = last_occurrence(tokenised.ids, canary.secret_ids)
    if start is None:
        raise InjectionError(
            f"canary {canary.id}: its {len(canary.secret_ids)} ids do not stand in the {len(tokenised.ids)} ids of "
            f"its {fmt} record under this tokenizer; use the tokenizer and the chat template that the canaries were "
            "made with, or make them again"
        )
    text = tokenised.text if tokenised.text is not None else decode(tokenizer, tokenised.ids)
    return Rendered(tuple(tokenised.ids), (start, start + len(canary.secret_ids)), text)


def render_all(manifest: Manifest, tokenizer: TokenizerLike) -> dict[str, Rendered]:
    """Return every canary's record as training saw it, by id.

    Where the pre-flight saw the trainer put other tokens before the secrets than the format renders to, each
    secret stands after those: a score in a context that was never trained on would miss what was learnt.

    Args:
        manifest: with the observed context, where there is one.
        tokenizer: the training's.

    Raises:
        InjectionError: a secret's ids are not in its record's, and no context was observed.
    """
    if manifest.observed_prefix is None:
        return {canary.id: render(canary, manifest.fmt, tokenizer) for canary in manifest.canaries}
    before = manifest.observed_prefix
    return {
        canary.id: Rendered(
            (*before, *canary.secret_ids),
            (len(before), len(before) + len(canary.secret_ids)),
            decode(tokenizer, [*before, *canary.secret_ids]),
        )
        for canary in manifest.canaries
    }


def render_record(
    record: Mapping[str, Any], fmt: str, columns: Mapping[str, str], tokenizer: TokenizerLike
) -> int:
    """Return how many tokens the trainer makes of any record of the format."""
    return len(find(fmt).tokenise(record, columns, tokenizer).ids)


def last_occurrence(ids: Sequence[int], target: Sequence[int]) -> int | None:
    """Return where ``target`` starts in ``ids`` for the last time, or None.

    Example:
        >>> last_occurrence([1, 2, 3, 1, 2], [1, 2])
        3
    """
    wanted = list(target)
    size = len(wanted)
    for start in range(len(ids) - size, -1, -1) if size else ():
        if ids[start] == wanted[0] and list(ids[start : start + size]) == wanted:
            return start
    return None
