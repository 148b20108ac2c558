"""Format ``text``: one column with the whole text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.canaries.contexts import LEAD
from memaudit.canaries.tokens import TokenizerLike, encode
from memaudit.injection.formats.base import Secret, Tokenised, column, has_all


class Text:
    """The trainer tokenises the column with the tokenizer's special tokens."""

    name = "text"
    roles: Mapping[str, str] = {"text": "text"}
    optional: frozenset[str] = frozenset()

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether the column holds a string."""
        return has_all(self, row, columns) and isinstance(row[column(self.roles, columns, "text")], str)

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return lead and secret."""
        return {column(self.roles, columns, "text"): LEAD + secret.text}

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return the text."""
        return str(record[column(self.roles, columns, "text")])

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids of the text."""
        text = str(record[column(self.roles, columns, "text")])
        return Tokenised(encode(tokenizer, text, special=True), text)


FORMAT = Text()
