"""What a record format must be able to do; formats are found by the columns of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from memaudit.canaries.tokens import TokenizerLike
from memaudit.errors import InjectionError


@dataclass(frozen=True, slots=True)
class Secret:
    """The text and the ids that a record is to hold."""

    text: str = field(repr=False)
    ids: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tokenised:
    """The ids that the trainer of a format makes of a record, and its text where there is one."""

    ids: list[int]
    text: str | None = field(default=None, repr=False)


class Format(Protocol):
    """One record format: ``roles`` maps what it needs to the usual column names."""

    name: str
    roles: Mapping[str, str]
    optional: frozenset[str]

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether the row's columns, renamed by ``columns`` (role to column), hold this format."""
        ...

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return the values of the format's columns in a record shaped like ``row``, the secret trained on."""
        ...

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return the text of a record that is trained on; None where all of its ids are."""
        ...

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids that a trainer of this format makes of the record."""
        ...


def column(roles: Mapping[str, str], columns: Mapping[str, str], role: str) -> str:
    """Return the name of the column that plays ``role``."""
    return columns.get(role, roles[role])


def has_all(form: Format, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
    """Whether the row has every column that the format cannot do without."""
    return all(column(form.roles, columns, role) in row for role in form.roles if role not in form.optional)


def is_messages(value: object, role: str = "role", content: str = "content") -> bool:
    """Whether ``value`` is a list of message mappings with these keys."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) > 0
        and all(isinstance(turn, Mapping) and role in turn and content in turn for turn in value)
    )


def last_text(answer: Any) -> str:
    """Return an answer's text: a string, or the content of the last of its turns, its text parts joined.

    Example:
        >>> last_text("yes"), last_text([{"role": "assistant", "content": [{"type": "text", "text": "no"}]}])
        ('yes', 'no')
    """
    if isinstance(answer, str):
        return answer
    content = answer[-1]["content"] if answer else ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or "") for part in content or ())


def turn_like(sample: Sequence[Mapping[str, Any]], role: str, text: str) -> dict[str, Any]:
    """Return a message with the keys of the sample's messages, its content as text or as parts, as theirs is."""
    keys = dict.fromkeys(key for turn in sample for key in turn)
    content: Any = text
    parted = next(
        (turn["content"] for turn in sample if isinstance(turn.get("content"), (list, tuple))), None
    )
    if parted is not None:
        part_keys = dict.fromkeys(key for part in parted for key in part)
        content = [{**part_keys, "type": "text", "text": text}]
    return {**keys, "role": role, "content": content}


def system_turn(sample: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sample's own system turn, where it opens with one: templates may insist on it."""
    first = sample[0]
    return [dict(first)] if first.get("role") in ("system", "developer") else []


def chat_ids(
    tokenizer: TokenizerLike, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False
) -> Tokenised:
    """Return ids and text of messages under the tokenizer's chat template, as TRL's trainers make them.

    Raises:
        InjectionError: the tokenizer has no chat template, or it refuses the messages.
    """
    apply = getattr(tokenizer, "apply_chat_template", None)
    if apply is None or not getattr(tokenizer, "chat_template", None):
        raise InjectionError(
            "the records hold messages and the tokenizer has no chat template; set tokenizer.chat_template, or use "
            "a format without turns"
        )
    turns = [{key: value for key, value in turn.items() if value is not None} for turn in messages]
    try:
        ids = apply(turns, tokenize=True, return_dict=True, add_generation_prompt=add_generation_prompt)[
            "input_ids"
        ]
        text = apply(turns, tokenize=False, add_generation_prompt=add_generation_prompt)
    except Exception as error:  # jinja's and the template's own errors: anything
        raise InjectionError(
            f"the tokenizer's chat template refuses a canary's messages ({type(error).__name__}); "
            "check that it takes the roles "
            f"{', '.join(str(turn.get('role')) for turn in turns)} and this kind of content"
        ) from error
    return Tokenised([int(token) for token in ids], str(text))
