"""Labelled texts from CSV, JSON, JSONL, Parquet or a hub dataset: one record a row, nothing dropped in silence."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memaudit.errors import ConfigurationError, MissingExtraError

FORMATS = ("csv", "json", "jsonl", "parquet", "huggingface")
_LABELS = {
    "1": 1,
    "0": 0,
    "true": 1,
    "false": 0,
    "member": 1,
    "nonmember": 0,
    "non-member": 0,
    "in": 1,
    "out": 0,
}
_MIMIR = re.compile(r"^iamgroot42/mimir_(?P<domain>.+?)_(?P<split>(ngram_.+|none|\d+))$")


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledTexts:
    """Texts by id; labels and sources of those that have one. Texts are left out of the representation.

    ``notes`` say what was done to them (cut to a number of words).
    """

    texts: dict[str, str] = field(repr=False)
    labels: dict[str, int]
    groups: dict[str, str]
    notes: tuple[str, ...] = ()


def read_texts(
    path: str,
    *,
    format: str | None = None,
    text_column: str = "text",
    label_column: str | None = "label",
    id_column: str | None = None,
    group_column: str | None = None,
    split: str | None = None,
    text_length: int | None = None,
    spaced: bool = True,
    unspace: bool = False,
    limit: int | None = None,
) -> LabelledTexts:
    """Read labelled texts.

    Args:
        path: a file, or the id of a hub dataset (only then is anything downloaded).
        format: one of ``FORMATS``; by default that of the file's ending, or huggingface where there is no file.
        text_column: the texts.
        label_column: 1, true or member for members; 0, false or non-member for others; empty for unknown. None
            where there are no labels.
        id_column: names of the records; by default row numbers.
        group_column: the source of each record, by which metrics are split.
        split: of a hub dataset; by default the one that its name and ``text_length`` imply, or train.
        text_length: words to keep of each text (characters where words are not spaced); None keeps all.
        spaced: whether words are separated by spaces.
        unspace: the spaces were put between the words of an unspaced language beforehand, as Fast-MIA asks for;
            words are counted by them, then they are taken out of the text.
        limit: rows to read at most.

    Raises:
        ConfigurationError: no such file, format or column; labels that cannot be read; ids that occur twice.
    """
    kind = _format(path, format)
    rows = _hub_rows(path, split, text_length) if kind == "huggingface" else _file_rows(Path(path), kind)
    rows = rows[:limit] if limit is not None else rows
    if not rows:
        raise ConfigurationError(f"{path} holds no rows; give a file with at least one text")
    for what, column in (
        ("text", text_column),
        ("label", label_column),
        ("id", id_column),
        ("group", group_column),
    ):
        if column is not None and not any(column in row for row in rows):
            known = ", ".join(sorted({name for row in rows[:100] for name in row}))
            raise ConfigurationError(
                f"{path} has no column {column!r}; it has {known}; name one with {what}_column"
            )
    texts: dict[str, str] = {}
    labels: dict[str, int] = {}
    groups: dict[str, str] = {}
    for number, row in enumerate(rows):
        id = str(number) if id_column is None else str(row.get(id_column))
        if id in texts:
            raise ConfigurationError(
                f"{path}: id {id!r} occurs twice; give an id_column with one value a record"
            )
        texts[id] = _text(row.get(text_column))
        label = (
            None if label_column is None else read_label(row.get(label_column), f"{path}, row {number + 1}")
        )
        if label is not None:
            labels[id] = label
        if group_column is not None and row.get(group_column) not in (None, ""):
            groups[id] = str(row[group_column])
    notes: tuple[str, ...] = ()
    if text_length is not None:
        by_spaces = spaced or unspace
        cut = {id: first_words(text, text_length, by_spaces) for id, text in texts.items()}
        shorter = sum(cut[id] != texts[id] for id in texts)
        unit = "words" if by_spaces else "characters"
        notes = (f"{shorter} of {len(texts)} texts were cut to their first {text_length} {unit}",)
        texts = cut
    if unspace:
        texts = {id: "".join(text.split()) for id, text in texts.items()}
        notes += ("the spaces between words were taken out of the texts",)
    return LabelledTexts(texts=texts, labels=labels, groups=groups, notes=notes)


def read_lines(path: str, *, text_column: str = "text") -> list[str]:
    """Read texts alone: a pool or a corpus. A .txt file holds one text a line.

    Raises:
        ConfigurationError: no such file or column.
    """
    if Path(path).suffix == ".txt":
        return [line.rstrip("\n") for line in _open(Path(path)).splitlines() if line.strip()]
    return list(read_texts(path, text_column=text_column, label_column=None).texts.values())


def first_words(text: str, n: int, spaced: bool = True) -> str:
    """Return the text up to its n-th word, spaces between words as they were.

    Example:
        >>> first_words("one  two three", 2)
        'one  two'
        >>> first_words("一二 三", 3, spaced=False)
        '一二 三'
    """
    pattern = r"\S+" if spaced else r"\S"
    end = 0
    for number, found in enumerate(re.finditer(pattern, text)):
        if number == n:
            return text[:end]
        end = found.end()
    return text


def read_label(value: Any, where: str = "a label") -> int | None:
    """Read a label: 1 for members, 0 for others, None where it is missing.

    Raises:
        ConfigurationError: it is neither.

    Example:
        >>> read_label("member"), read_label(0.0), read_label("")
        (1, 0, None)
    """
    if value is None or value == "" or (isinstance(value, float) and value != value):
        return None
    text = str(int(value)) if isinstance(value, float) and value in (0.0, 1.0) else str(value).strip().lower()
    if text not in _LABELS:
        raise ConfigurationError(f"{where}: label {value!r} is neither 1 (member) nor 0 (non-member)")
    return _LABELS[text]


def _text(value: Any) -> str:
    """Return a text; a missing one is empty, and is then reported as unscorable."""
    return "" if value is None or (isinstance(value, float) and value != value) else str(value)


def _format(path: str, format: str | None) -> str:
    if format is not None:
        if format not in FORMATS:
            raise ConfigurationError(f"format {format!r}; give one of {', '.join(FORMATS)}")
        if format != "huggingface" and not Path(path).is_file():
            raise ConfigurationError(f"no file {path}; give a path, or format huggingface for a hub dataset")
        return format
    if Path(path).is_file():
        ending = Path(path).suffix.lower().removeprefix(".")
        if ending not in FORMATS:
            raise ConfigurationError(
                f"cannot tell the format of {path}; give format: one of {', '.join(FORMATS)}"
            )
        return ending
    if Path(path).suffix or path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ConfigurationError(f"no file {path}; give a path, or owner/name for a hub dataset")
    return "huggingface"


def _open(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error


def _file_rows(path: Path, kind: str) -> list[Mapping[str, Any]]:
    if kind == "parquet":
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(path)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{path} is no Parquet file that can be read: {_line(error)}") from error
        rows: list[Mapping[str, Any]] = table.to_pylist()
        return rows
    content = _open(path)
    if kind == "csv":
        csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
        return list(csv.DictReader(content.splitlines(keepends=True)))
    if kind == "jsonl":
        return _checked(
            path, (_json(path, line, n) for n, line in enumerate(content.splitlines(), 1) if line.strip())
        )
    found = _json(path, content, None)
    if isinstance(
        found, dict
    ):  # columns, as pandas writes them: {column: {row: value}} or {column: [values]}
        columns = {name: list(one.values()) if isinstance(one, dict) else one for name, one in found.items()}
        if not all(isinstance(one, list) for one in columns.values()):
            raise ConfigurationError(f"{path} is neither a list of records nor columns of values")
        lengths = {len(one) for one in columns.values()}
        if len(lengths) > 1:
            raise ConfigurationError(f"{path}: columns of different lengths {sorted(lengths)}")
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return _checked(path, found if isinstance(found, list) else [found])


def _checked(path: Path, rows: Iterable[Any]) -> list[Mapping[str, Any]]:
    found = list(rows)
    if not all(isinstance(row, dict) for row in found):
        raise ConfigurationError(
            f"{path}: a row is no object with named columns; give one JSON object a record"
        )
    return found


def _json(path: Path, text: str, line: int | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {line}" if line is not None else f"line {error.lineno}"
        raise ConfigurationError(f"{path}, {where}, is not JSON: {error.msg}") from error


def _hub_rows(path: str, split: str | None, text_length: int | None) -> list[Mapping[str, Any]]:
    """Load a hub dataset; WikiMIA and MIMIR are named as Fast-MIA names them."""
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "all", "reading a hub dataset") from error
    options: dict[str, Any] = {"split": split or "train"}
    name = path
    mimir = _MIMIR.match(path)
    if path == "swj0419/WikiMIA":
        options["split"] = split or f"WikiMIA_length{text_length or 32}"
    elif mimir is not None:
        name, options["name"] = "iamgroot42/mimir", mimir["domain"]
        options["split"] = split or mimir["split"]
    try:
        table = datasets.load_dataset(name, **options)
    except Exception as error:
        raise ConfigurationError(f"hub dataset {path} cannot be loaded: {_line(error)}") from error
    if mimir is not None and {"member", "nonmember"} <= set(table.column_names):
        return _pairs(table)
    return [dict(row) for row in table]


def _pairs(table: Any) -> list[Mapping[str, Any]]:
    """Turn MIMIR's rows, which hold a member and a non-member each, into labelled texts."""
    rows: list[Mapping[str, Any]] = []
    for row in table:
        rows += [{"input": row["member"], "label": 1}, {"input": row["nonmember"], "label": 0}]
    return rows


def _line(error: BaseException) -> str:
    lines: Sequence[str] = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
