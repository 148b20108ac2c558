"""Format ``prompt_completion``: two columns, strings or lists of messages; the completion is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.canaries.contexts import LEAD, REQUEST
from memaudit.canaries.tokens import TokenizerLike, encode
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


class PromptCompletion:
    """The trainer tokenises prompt and completion together (TRL), messages through the chat template."""

    name = "prompt_completion"
    roles: Mapping[str, str] = {"prompt": "prompt", "completion": "completion"}
    optional: frozenset[str] = frozenset()

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether both columns hold strings, or both messages."""
        if not has_all(self, row, columns):
            return False
        both = [row[column(self.roles, columns, role)] for role in self.roles]
        return all(isinstance(value, str) for value in both) or all(is_messages(value) for value in both)

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return the request as prompt, and lead and secret as completion."""
        prompt, completion = (column(self.roles, columns, role) for role in self.roles)
        if isinstance(row[prompt], str):
            # Both sides of the boundary stay apart under every tokenizer: the prompt ends its line.
            return {prompt: REQUEST + "\n", completion: LEAD + secret.text}
        asked = [*system_turn(row[prompt]), turn_like(row[prompt], "user", REQUEST)]
        return {prompt: asked, completion: [turn_like(row[completion], "assistant", LEAD + secret.text)]}

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return the completion, or its last turn."""
        return last_text(record[column(self.roles, columns, "completion")])

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids of prompt and completion."""
        prompt, completion = (record[column(self.roles, columns, role)] for role in self.roles)
        if isinstance(prompt, str):
            return Tokenised(encode(tokenizer, prompt + completion, special=True), prompt + completion)
        return chat_ids(tokenizer, [*prompt, *completion])


FORMAT = PromptCompletion()
