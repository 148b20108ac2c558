"""Existing records as canaries: nothing is planted, a coin decided which of them stay in the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from memaudit.canaries.tokens import TokenizerLike, decode, encode, tokenizer_identity
from memaudit.errors import InjectionError, InputTypeError
from memaudit.injection.formats import Format, Tokenised, column, detect
from memaudit.injection.rendering import COLUMNS_KEY
from memaudit.manifest import Manifest, PlacedCanary

FAMILY = "record"


class CoinFlipLike(Protocol):
    """What :func:`memaudit.privacy.coin_flip` returns, as far as it is needed here."""

    canary_indices: Any
    included: Any
    dataset_size: int
    probability: float


def canaries_from_records(
    dataset: Any,
    coin_flip: CoinFlipLike,
    fmt: str = "auto",
    tokenizer: TokenizerLike | None = None,
    *,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Manifest:
    """Return the manifest of an audit whose canaries are records of the dataset itself.

    What is scored of each record is the side that is trained on: the text, the completion, the last answer. Train
    on ``dataset.select(coin_flip.train_indices(len(dataset)))``.

    Args:
        dataset: with ``len()`` and rows by index; the one that the coins were flipped for.
        coin_flip: which records are canaries and which of them stay in, of :func:`memaudit.privacy.coin_flip`.
        fmt: the record format, or auto.
        tokenizer: the training's; a fast one, since it must tell where each token lies.
        columns: which column plays a role of the format.
        seed: recorded in the manifest, for the reader.

    Returns:
        A manifest without controls: the records that the coin kept out are the comparison group.

    Raises:
        InjectionError: a record has no two tokens that are trained on, or the format does not fit.
        InputTypeError: no tokenizer, or a slow one.

    References:
        Steinke et al., Privacy Auditing with One (1) Training Run, 2023.
    """
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        raise InputTypeError(
            "tokenizer= must be a fast tokenizer, which tells where each token lies in the text"
        )
    if len(dataset) != int(coin_flip.dataset_size):
        raise InjectionError(
            f"the dataset has {len(dataset)} rows and the coins were flipped for {coin_flip.dataset_size}; "
            "pass the same dataset"
        )
    form: Format | None = None
    named: dict[str, str] = {}
    placed = []
    for index, coin in zip(coin_flip.canary_indices, coin_flip.included, strict=True):
        record = dict(dataset[int(index)])
        if form is None:
            form, named, _ = detect(record, fmt, columns)
        ids = trained_ids(record, form, named, tokenizer)
        if len(ids) < 2:
            raise InjectionError(
                f"record {int(index)} has {len(ids)} tokens that are trained on; a canary needs two, so leave such "
                "records out with candidate_indices="
            )
        metadata: dict[str, Any] = {"dataset_index": int(index)}
        if named:
            metadata[COLUMNS_KEY] = named
        placed.append(
            PlacedCanary(
                id=f"record-{int(index):07d}",
                family=FAMILY,
                generator="existing_record",
                secret=decode(tokenizer, ids),
                secret_ids=tuple(ids),
                role="candidate",
                included=bool(coin),
                metadata=metadata,
                record=record,
            )
        )
    if form is None:
        raise InjectionError("the coin flip names no canaries")
    twice = len(placed) - len({canary.secret_ids for canary in placed})
    warnings = (
        [f"{twice} canary records repeat another one: their coins are not independent"] if twice else []
    )
    return Manifest(
        seed=seed,
        fmt=form.name,
        include_prob=float(coin_flip.probability),
        repetitions=(1,),
        family=FAMILY,
        profile="records",
        tokenizer=tokenizer_identity(tokenizer),
        canaries=tuple(placed),
        n_host_rows=len(dataset),
        dataset_fingerprint=getattr(dataset, "_fingerprint", None),
        warnings=tuple(warnings),
    )


def trained_ids(
    record: Mapping[str, Any], form: Format, columns: Mapping[str, str], tokenizer: TokenizerLike
) -> list[int]:
    """Return the ids of a record's side that is trained on, the first token of the record never among them."""
    tokenised = form.tokenise(record, columns, tokenizer)
    answer = form.answer(record, columns)
    if answer is None:
        return _labelled(record, form, columns, tokenised.ids)
    text = tokenised.text or ""
    start = text.rfind(answer.strip())
    if start < 0 or not answer.strip():
        return []
    stop = start + len(answer.strip())
    offsets = _offsets(tokenizer, text, tokenised)
    inside = [
        index
        for index, (low, high) in enumerate(offsets)
        # A token that begins before the answer belongs to it where only spaces lie there.
        if low < stop
        and high > start
        and low < high
        and not text[low:start].strip()
        and not text[stop:high].strip()
    ]
    return [tokenised.ids[index] for index in inside if index > 0]


def _labelled(
    record: Mapping[str, Any], form: Format, columns: Mapping[str, str], ids: list[int]
) -> list[int]:
    labels = record.get(column(form.roles, columns, "labels"))
    if labels is None:
        return ids[1:]
    trained = [index for index, label in enumerate(labels) if int(label) != -100]
    if not trained:
        return []
    last = first = trained[-1]
    for index in reversed(trained[:-1]):  # the last run of labels: what lies between runs is not trained on
        if index != first - 1:
            break
        first = index
    return ids[max(first, 1) : last + 1]


def _offsets(tokenizer: TokenizerLike, text: str, tokenised: Tokenised) -> list[tuple[int, int]]:
    """Return where each token lies in the text, with special tokens added as the format adds them.

    Raises:
        InjectionError: encoding the text again gives other ids.
    """
    for special in (True, False):
        if encode(tokenizer, text, special=special) == tokenised.ids:
            found = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)["offset_mapping"]
            return [(int(low), int(high)) for low, high in found]
    raise InjectionError(
        "encoding a record's text again gives other ids than its trainer makes; use another fmt"
    )
