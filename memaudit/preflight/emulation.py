"""A data file as TRL's SFTTrainer would tokenise, mask and cut it: the pre-flight before there is a trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memaudit.canaries.tokens import TokenizerLike, encode
from memaudit.errors import InjectionError
from memaudit.injection.files import open_rows
from memaudit.injection.formats import column, find
from memaudit.injection.formats.base import chat_ids
from memaudit.injection.formats.sharegpt import as_messages
from memaudit.manifest import Manifest
from memaudit.preflight.rows import IGNORED


class TokenisedFile:
    """Iterates over a file's rows as mappings of ``input_ids`` and ``labels``; knows their number.

    Raises:
        InjectionError: the file cannot be read, or a row lacks a column of the manifest's format.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        tokenizer: TokenizerLike,
        *,
        max_length: int | None = None,
        completion_only_loss: bool | None = None,
        assistant_only_loss: bool = False,
    ) -> None:
        self._file = open_rows(path)
        self._form = find(manifest.fmt)
        self._columns: dict[str, str] = {}
        for canary in manifest.canaries[:1]:
            self._columns = dict(canary.metadata.get("columns", {}))
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._completion_only = True if completion_only_loss is None else completion_only_loss
        self._assistant_only = assistant_only_loss
        self._size = sum(1 for _ in self._file.rows())

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(self._file.rows(), start=1):
            try:
                yield self._row(row)
            except (KeyError, TypeError) as error:
                raise InjectionError(
                    f"row {number} lacks what the manifest's format {self._form.name} needs ({error}); "
                    "pass the file that `memaudit inject` wrote with this manifest"
                ) from error

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        ids = self._form.tokenise(row, self._columns, self._tokenizer).ids
        labels = self._labels(row, ids)
        end = self._max_length
        return {"input_ids": ids[:end], "labels": labels[:end]}

    def _labels(self, row: Mapping[str, Any], ids: list[int]) -> list[int]:
        name = self._form.name
        if name == "input_ids":
            given = row.get(column(self._form.roles, self._columns, "labels"))
            return ids if given is None else [int(label) for label in given]
        masked = 0
        if name == "preference" or (name == "prompt_completion" and self._completion_only):
            masked = _common_prefix(self._prompt(row), ids)
        labels = [IGNORED] * masked + ids[masked:]
        if self._assistant_only and name in ("messages", "sharegpt", "prompt_completion"):
            kept = self._assistant_mask(row)
            labels = [label if keep else IGNORED for label, keep in zip(labels, kept, strict=True)]
        return labels

    def _prompt(self, row: Mapping[str, Any]) -> list[int]:
        prompt = row.get(column(self._form.roles, self._columns, "prompt"))
        if prompt is None:
            return []
        if isinstance(prompt, str):
            return encode(self._tokenizer, prompt, special=True)
        return chat_ids(self._tokenizer, prompt, add_generation_prompt=True).ids

    def _assistant_mask(self, row: Mapping[str, Any]) -> Sequence[int]:
        role = next(iter(self._form.roles))
        turns = row[column(self._form.roles, self._columns, role)]
        if self._form.name == "sharegpt":
            turns = as_messages(turns)
        elif self._form.name == "prompt_completion":
            turns = [*turns, *row[column(self._form.roles, self._columns, "completion")]]
        apply: Any = self._tokenizer
        made = apply.apply_chat_template(
            turns, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        mask: Sequence[int] = made["assistant_masks"]
        return mask


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
