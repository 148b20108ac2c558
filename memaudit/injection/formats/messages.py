"""Format ``messages``: one column with turns of role and content; assistant turns are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.canaries.contexts import LEAD, REQUEST
from memaudit.canaries.tokens import TokenizerLike
from memaudit.injection.formats.base import (
    Secret,
    Tokenised,
    chat_ids,
    column,
    has_all,
    is_messages,
    last_text,
    system_turn,
    turn_like,
)


class Messages:
    """The trainer applies the tokenizer's chat template."""

    name = "messages"
    roles: Mapping[str, str] = {"messages": "messages"}
    optional: frozenset[str] = frozenset()

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether the column holds turns of role and content."""
        return has_all(self, row, columns) and is_messages(row[column(self.roles, columns, "messages")])

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return the request as the user's turn, and lead and secret as the assistant's."""
        name = column(self.roles, columns, "messages")
        sample = row[name]
        asked = turn_like(sample, "user", REQUEST)
        return {name: [*system_turn(sample), asked, turn_like(sample, "assistant", LEAD + secret.text)]}

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return the last turn of the assistant."""
        turns = record[column(self.roles, columns, "messages")]
        return last_text([turn for turn in turns if turn["role"] == "assistant"])

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids of the conversation."""
        return chat_ids(tokenizer, record[column(self.roles, columns, "messages")])


FORMAT = Messages()
