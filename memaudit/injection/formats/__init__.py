"""Record formats, and finding the one that a row has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.errors import InjectionError
from memaudit.injection.formats import (
    alpaca,
    input_ids,
    messages,
    preference,
    prompt_completion,
    sharegpt,
    text,
)
from memaudit.injection.formats.base import Format, Secret, Tokenised, column

__all__ = ["ALIASES", "FORMATS", "Format", "Secret", "Tokenised", "column", "detect", "find"]

FORMATS: dict[str, Format] = {
    form.name: form
    for form in (
        # In the order in which trainers look at columns: TRL reads prompt and messages before text.
        input_ids.FORMAT,
        preference.FORMAT,
        prompt_completion.FORMAT,
        messages.FORMAT,
        sharegpt.FORMAT,
        alpaca.FORMAT,
        text.FORMAT,
    )
}

ALIASES = {
    "chat": "messages",
    "conversational": "messages",
    "dpo": "preference",
    "instruction": "alpaca",
    "lm": "text",
    "prompt/completion": "prompt_completion",
    "prompt-completion": "prompt_completion",
    "tokenized": "input_ids",
    "tokenised": "input_ids",
}


def find(name: str) -> Format:
    """Return the format called ``name`` or an alias of it.

    Raises:
        InjectionError: there is none.
    """
    found = FORMATS.get(ALIASES.get(name, name))
    if found is None:
        raise InjectionError(f"no record format {name!r}; choose auto or one of {', '.join(FORMATS)}")
    return found


def detect(
    row: Mapping[str, Any], fmt: str = "auto", columns: Mapping[str, str] | None = None
) -> tuple[Format, dict[str, str], list[str]]:
    """Return the format of a row, the columns that differ from the usual names, and warnings.

    Raises:
        InjectionError: the row fits no format, or not the one that was named, or a named column is missing.
    """
    renamed = dict(columns or {})
    missing = sorted(set(renamed.values()) - set(row))
    present = ", ".join(map(str, row)) or "none"
    if missing:
        raise InjectionError(f"columns={renamed}: the data has no column {missing[0]!r}; it has {present}")
    if fmt != "auto":
        form = find(fmt)
        unknown = sorted(set(renamed) - set(form.roles))
        if unknown:
            raise InjectionError(
                f"columns names the role {unknown[0]!r}; the format {form.name} has {', '.join(form.roles)}"
            )
        if form.fits(row, renamed):
            return form, renamed, []
        alternative = _turns_under_other_name(row) if form.name == "messages" and not renamed else None
        if alternative:
            return form, alternative, []
        needed = [column(form.roles, renamed, role) for role in form.roles if role not in form.optional]
        raise InjectionError(
            f"fmt={fmt!r} needs the columns {', '.join(needed)} with values of its kind; the data has {present}; "
            "name the right fmt, or map roles to columns with columns="
        )
    fitting = [
        form for form in FORMATS.values() if set(renamed) <= set(form.roles) and form.fits(row, renamed)
    ]
    if not fitting:
        alternative = _turns_under_other_name(row)
        if alternative and not renamed:
            return messages.FORMAT, alternative, []
        raise InjectionError(
            f"no record format fits the columns {present}; expected one of text, prompt + completion, messages, "
            "conversations, instruction + output, chosen + rejected or input_ids; map yours with "
            "fmt= and columns={role: column}"
        )
    others = [form.name for form in fitting[1:] if not (fitting[0].name == "alpaca" and form.name == "text")]
    warnings = []
    if others:
        warnings.append(
            f"the columns fit {fitting[0].name} and also {', '.join(others)}; the secret stands in the columns of "
            f"{fitting[0].name} alone, name fmt= if the trainer reads others"
        )
    return fitting[0], renamed, warnings


def _turns_under_other_name(row: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the column that holds role/content turns, where it is the only one and has another name."""
    names = [name for name in row if messages.FORMAT.fits(row, {"messages": name})]
    return {"messages": names[0]} if len(names) == 1 else None
