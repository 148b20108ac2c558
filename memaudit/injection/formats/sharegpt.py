"""Format ``sharegpt``: one column with turns of from and value; the model's turns are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.canaries.contexts import LEAD, REQUEST
from memaudit.canaries.tokens import TokenizerLike
from memaudit.errors import InjectionError
from memaudit.injection.formats.base import (
    Secret,
    Tokenised,
    chat_ids,
    column,
    has_all,
    is_messages,
    last_text,
)

_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "bing": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
}
"""ShareGPT's names for the roles of a chat template; other names stay as they are."""


class ShareGPT:
    """The trainer renames the turns' keys to role and content, and applies the tokenizer's chat template."""

    name = "sharegpt"
    roles: Mapping[str, str] = {"conversations": "conversations"}
    optional: frozenset[str] = frozenset()

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether the column holds turns of from and value."""
        return has_all(self, row, columns) and is_messages(
            row[column(self.roles, columns, "conversations")], "from", "value"
        )

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return the request as the human's turn, and lead and secret as the model's, named as the row's are."""
        name = column(self.roles, columns, "conversations")
        sample = row[name]
        keys = dict.fromkeys(key for turn in sample for key in turn)
        names = [str(turn["from"]) for turn in sample]
        human = next((given for given in names if role_of(given) == "user"), "human")
        model = next((given for given in names if role_of(given) == "assistant"), "gpt")
        system = [dict(sample[0])] if names[0] == "system" else []
        return {
            name: [
                *system,
                {**keys, "from": human, "value": REQUEST},
                {**keys, "from": model, "value": LEAD + secret.text},
            ]
        }

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return the model's last turn."""
        turns = as_messages(record[column(self.roles, columns, "conversations")], rename=True)
        return last_text([turn for turn in turns if turn["role"] == "assistant"])

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids of the conversation: roles as the turns name them, which is what TRL does.

        Where the chat template refuses or drops such roles, they are renamed to user and assistant.
        """
        turns = record[column(self.roles, columns, "conversations")]
        try:
            kept = chat_ids(tokenizer, as_messages(turns))
            if str(turns[-1]["value"]).strip() in (kept.text or ""):
                return kept
        except InjectionError:
            if not getattr(tokenizer, "chat_template", None):
                raise
        return chat_ids(tokenizer, as_messages(turns, rename=True))


def as_messages(turns: list[dict[str, Any]], *, rename: bool = False) -> list[dict[str, str]]:
    """Return ShareGPT turns as messages of role and content.

    Example:
        >>> as_messages([{"from": "human", "value": "Hi"}], rename=True)
        [{'role': 'user', 'content': 'Hi'}]
    """
    return [
        {"role": role_of(str(turn["from"])) if rename else str(turn["from"]), "content": str(turn["value"])}
        for turn in turns
    ]


def role_of(name: str) -> str:
    """Return the chat template's role for a ShareGPT name.

    Example:
        >>> role_of("gpt"), role_of("system")
        ('assistant', 'system')
    """
    return _ROLES.get(name, name)


FORMAT = ShareGPT()
