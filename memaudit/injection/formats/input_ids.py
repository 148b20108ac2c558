"""Format ``input_ids``: rows that are tokenised already, with or without labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memaudit.canaries.contexts import lead_ids
from memaudit.canaries.tokens import TokenizerLike, decode
from memaudit.errors import InjectionError
from memaudit.injection.formats.base import Secret, Tokenised, column, has_all


class InputIds:
    """The ids are trained on as they stand; labels leave out what comes before the secret."""

    name = "input_ids"
    roles: Mapping[str, str] = {
        "input_ids": "input_ids",
        "labels": "labels",
        "attention_mask": "attention_mask",
    }
    optional: frozenset[str] = frozenset({"labels", "attention_mask"})

    def fits(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> bool:
        """Whether the column is there."""
        return has_all(self, row, columns) and not isinstance(
            row[column(self.roles, columns, "input_ids")], str
        )

    def build(
        self,
        secret: Secret,
        row: Mapping[str, Any],
        columns: Mapping[str, str],
        tokenizer: TokenizerLike | None,
    ) -> dict[str, Any]:
        """Return the ids of lead and secret, and the end-of-text id; labels for the secret and the end.

        Raises:
            InjectionError: there is no tokenizer to make the lead's ids.
        """
        if tokenizer is None:
            raise InjectionError(
                "the rows are tokenised already: pass tokenizer= to inject(), which plants ids"
            )
        lead = lead_ids(tokenizer)
        end = getattr(tokenizer, "eos_token_id", None)
        tail = [] if end is None else [int(end)]
        ids = [*lead, *secret.ids, *tail]
        values = {
            "input_ids": ids,
            "labels": [-100] * len(lead) + [*secret.ids, *tail],
            "attention_mask": [1] * len(ids),
        }
        record = {
            column(self.roles, columns, role): value
            for role, value in values.items()
            if column(self.roles, columns, role) in row
        }
        for extra in ("token_type_ids", "special_tokens_mask"):
            if extra in row:
                record[extra] = [0] * len(ids)
        if "completion_mask" in row:
            record["completion_mask"] = [0] * len(lead) + [1] * (len(ids) - len(lead))
        if "position_ids" in row:
            record["position_ids"] = list(range(len(ids)))
        return record

    def answer(self, record: Mapping[str, Any], columns: Mapping[str, str]) -> str | None:
        """Return None: the ids speak for themselves."""
        return None

    def tokenise(
        self, record: Mapping[str, Any], columns: Mapping[str, str], tokenizer: TokenizerLike
    ) -> Tokenised:
        """Return the ids as they stand."""
        ids = [int(token) for token in record[column(self.roles, columns, "input_ids")]]
        return Tokenised(ids, decode(tokenizer, ids))


FORMAT = InputIds()
