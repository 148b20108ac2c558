"""memaudit schema: the JSON Schema of the report."""

from __future__ import annotations

import json

ALIASES = {"-o": "--output"}


def schema(output: str | None = None) -> int:
    """Print the JSON Schema of the report, or write it to a file.

    Args:
        output: where to write it; the screen when not given.
    """
    from memaudit.files import write_atomic
    from memaudit.report.schema import json_schema

    text = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    if output is None:
        print(text, end="")
    else:
        write_atomic(output, text)
    return 0
