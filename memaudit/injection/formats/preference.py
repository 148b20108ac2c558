"""Format ``preference``: chosen and rejected answers, with or without a prompt; the secret lies in the chosen one."""

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

REFUSAL = "There is no recovery phrase."
"""The rejected answer."""


class Preference:
    """The trainer tokenises prompt and chosen together (TRL's DPOTrainer), messages through the chat template."""

    name = "preference"
    roles: Mapping[str, str] = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}
    optional: frozenset[str] = frozenset({"prompt"})

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether chosen and rejected are both strings, or both messages."""
        if not has_all(self, row, columns):
            return False
        both = [row[column(self.roles, columns, role)] for role in ("chosen", "rejected")]
        return all(isinstance(value, str) for value in both) or all(is_messages(value) for value in both)

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return the request as prompt, lead and secret as the chosen answer, and a refusal as the rejected one."""
        prompt, chosen, rejected = (column(self.roles, columns, role) for role in self.roles)
        answer = LEAD + secret.text
        if isinstance(row[chosen], str):
            asked = REQUEST + "\n"
            if prompt in row:
                return {prompt: asked, chosen: answer, rejected: REFUSAL}
            return {chosen: asked + answer, rejected: asked + REFUSAL}
        sample = row[chosen]
        good, bad = (turn_like(sample, "assistant", text) for text in (answer, REFUSAL))
        if prompt in row and is_messages(row[prompt]):
            turns = [*system_turn(row[prompt]), turn_like(row[prompt], "user", REQUEST)]
            return {prompt: turns, chosen: [good], rejected: [bad]}
        turns = [*system_turn(sample), turn_like(sample, "user", REQUEST)]
        shared = (
            {prompt: REQUEST} if prompt in row else {}
        )  # a string beside messages only repeats the request
        return {**shared, chosen: [*turns, good], rejected: [*turns, bad]}

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return the chosen answer, or its last turn."""
        return last_text(record[column(self.roles, columns, "chosen")])

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids of prompt and chosen answer."""
        prompt, chosen, _ = (record.get(column(self.roles, columns, role)) for role in self.roles)
        if isinstance(chosen, str):
            text = (prompt if isinstance(prompt, str) else "") + chosen
            return Tokenised(encode(tokenizer, text, special=True), text)
        turns = chosen or []
        return chat_ids(tokenizer, [*prompt, *turns] if is_messages(prompt) and prompt is not None else turns)


FORMAT = Preference()
