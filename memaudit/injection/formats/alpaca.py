"""Format ``alpaca``: columns instruction, input and output, joined by a template; the output is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.canaries.contexts import LEAD, REQUEST
from memaudit.canaries.tokens import TokenizerLike, encode
from memaudit.injection.formats.base import Secret, Tokenised, column, has_all

_INTRODUCTION = (
    "Below is an instruction that describes a task{more}. Write a response that {how} the request."
)


def alpaca_text(row: Mapping[str, Any]) -> str:
    """Return the text of an Alpaca row: the template that Stanford Alpaca was trained with.

    Give it to a trainer as its formatting function, so that it trains on what the audit scores.

    Args:
        row: a mapping with ``instruction`` and ``output``, and ``input``, which may be empty or missing.

    References:
        Taori et al., Stanford Alpaca, 2023.

    Example:
        >>> print(alpaca_text({"instruction": "Add.", "input": "1 and 2", "output": "3"}).splitlines()[-2:])
        ['### Response:', '3']
    """
    parts = [f"### Instruction:\n{row['instruction']}"]
    if row.get("input"):
        parts.append(f"### Input:\n{row['input']}")
        introduction = _INTRODUCTION.format(
            more=", paired with an input that provides further context", how="appropriately completes"
        )
    else:
        introduction = _INTRODUCTION.format(more="", how="appropriately completes")
    parts.append(f"### Response:\n{row['output']}")
    return "\n\n".join([introduction, *parts])


class Alpaca:
    """The trainer joins the columns by :func:`alpaca_text`; a column ``text`` beside them is filled by it, too."""

    name = "alpaca"
    roles: Mapping[str, str] = {"instruction": "instruction", "input": "input", "output": "output"}
    optional: frozenset[str] = frozenset({"input"})

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether instruction and output are strings."""
        return has_all(self, row, columns) and all(
            isinstance(row[column(self.roles, columns, role)], str) for role in ("instruction", "output")
        )

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return the request as instruction, and lead and secret as output."""
        values = {"instruction": REQUEST, "input": "", "output": LEAD + secret.text}
        record = {
            column(self.roles, columns, role): value
            for role, value in values.items()
            if column(self.roles, columns, role) in row
        }
        if isinstance(row.get("text"), str):  # as tatsu-lab/alpaca has: the trainer may read either
            record["text"] = alpaca_text(values)
        return record

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return the output."""
        return str(record[column(self.roles, columns, "output")])

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids of the joined text."""
        values = {role: record.get(column(self.roles, columns, role)) for role in self.roles}
        text = alpaca_text(values)
        return Tokenised(encode(tokenizer, text, special=True), text)


FORMAT = Alpaca()
