"""Files: the host's rows byte for byte, private modes, damaged input in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memaudit import generate_canaries, inject
from memaudit.errors import InjectionError
from memaudit.manifest import CanarySet
from tests.helpers import sample_text, tiny_tokenizer

TEXTS = [*sample_text(40, seed=4), 'He said "no",\nthen left; naïve 🙂', "tab\there"]


@pytest.fixture(scope="module")
def canaries() -> CanarySet:
    return generate_canaries(tiny_tokenizer(), n=12, n_controls=6, family="random", repetitions=(1, 4))


def jsonl(path: Path) -> Path:
    # Spacing, key order and escapes that a rewrite would change.
    lines = [
        f'{{"n":  {index}, "text": {json.dumps(text, ensure_ascii=index % 2 == 0)}, "f": 1.50}}'
        for index, text in enumerate(TEXTS)
    ]
    path.write_bytes("\n".join(lines).encode())  # no line end at the end
    return path


def test_jsonl(tmp_path: Path, canaries: CanarySet) -> None:
    source = jsonl(tmp_path / "data.jsonl")
    target, manifest = inject(source, canaries, tokenizer=tiny_tokenizer())
    assert target == tmp_path / "data.memaudit.jsonl"
    assert target.stat().st_mode & 0o777 == 0o600
    lines = target.read_bytes().splitlines()
    rows = [json.loads(line) for line in lines]
    mine = [any(c.secret in row["text"] for c in manifest.members) for row in rows]
    assert [
        line for line, own in zip(lines, mine, strict=True) if not own
    ] == source.read_bytes().splitlines()
    assert sum(mine) == manifest.n_inserted_rows > 0
    assert all(set(row) == {"n", "text", "f"} for row in rows)
    assert manifest.n_host_rows == len(TEXTS)


def test_jsonl_same_seed_same_bytes(tmp_path: Path, canaries: CanarySet) -> None:
    source = jsonl(tmp_path / "data.jsonl")
    one, _ = inject(source, canaries, seed=5, output=tmp_path / "a.jsonl")
    two, _ = inject(str(source), canaries, seed=5, output=tmp_path / "b.jsonl")
    three, _ = inject(source, canaries, seed=6, output=tmp_path / "c.jsonl")
    assert one.read_bytes() == two.read_bytes() != three.read_bytes()


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_csv(tmp_path: Path, canaries: CanarySet, ending: str) -> None:
    source = tmp_path / "data.csv"
    with open(source, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle, lineterminator=ending, quoting=csv.QUOTE_ALL)
        writer.writerow(["id", "text", "label"])
        for index, text in enumerate(TEXTS):
            writer.writerow([index, text, ""])
    target, manifest = inject(source, canaries, output=tmp_path / "out.csv")
    raw = target.read_bytes().decode()
    with open(target, encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    members = {c.secret for c in manifest.members}
    assert [r["text"] for r in rows if not any(s in r["text"] for s in members)] == TEXTS
    assert len(rows) == len(TEXTS) + manifest.n_inserted_rows
    for line in source.read_bytes().decode().split(ending)[:5]:
        assert line in raw  # quotes as they were
    if ending == "\n":
        assert "\r" not in raw


@pytest.mark.parametrize("compression", ["zstd", "snappy", "none"])
def test_parquet(tmp_path: Path, canaries: CanarySet, compression: str) -> None:
    schema = pa.schema(
        [
            pa.field("text", pa.large_string()),
            pa.field("n", pa.int8()),
            pa.field("d", pa.dictionary(pa.int32(), pa.string())),
            pa.field("l", pa.list_(pa.struct([("a", pa.float32())]))),
        ],
        metadata={"made": "by a test"},
    )
    host = pa.Table.from_pylist(
        [{"text": text, "n": 1, "d": "x", "l": [{"a": 0.5}]} for text in TEXTS], schema=schema
    )
    source = tmp_path / "data.parquet"
    pq.write_table(host, source, row_group_size=7, compression=compression)
    target, manifest = inject(source, canaries, output=tmp_path / "out.parquet")
    table = pq.read_table(target)
    assert table.schema.equals(host.schema)
    members = {c.secret for c in manifest.members}
    kept = [row for row in table.to_pylist() if not any(secret in row["text"] for secret in members)]
    assert kept == host.to_pylist()
    assert len(table) == len(host) + manifest.n_inserted_rows
    used = pq.ParquetFile(target).metadata.row_group(0).column(0).compression
    assert used.lower() == ("uncompressed" if compression == "none" else compression)


def test_many_rows_are_inserted_at_their_places(tmp_path: Path, canaries: CanarySet) -> None:
    """The three readers agree on the places: they are one function of the seed."""
    host = [{"text": f"row {index}"} for index in range(25_000)]
    pq.write_table(pa.Table.from_pylist(host), tmp_path / "a.parquet", row_group_size=3000)
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in host) + "\n")
    from_parquet, _ = inject(tmp_path / "a.parquet", canaries)
    from_lines, _ = inject(tmp_path / "a.jsonl", canaries)
    from_list, _ = inject(host, canaries)
    texts = [row["text"] for row in from_list]
    assert pq.read_table(from_parquet)["text"].to_pylist() == texts
    assert [json.loads(line)["text"] for line in from_lines.read_text().splitlines()] == texts


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', r"a.jsonl, line 2: not a JSON object"),
        ("a.jsonl", b'["x"]\n', "a row is a JSON list"),
        ("a.jsonl", b'{"text": "\xff"}\n', "not a JSON object"),
        ("a.jsonl", b"", "holds no rows"),
        ("a.csv", b'text\n"open\n', "not a CSV file"),
        ("a.csv", b"text,n\na,1,2\n", "line 2: 3 fields where the header has 2"),
        ("a.csv", b"text\n\xff\xfe\n", "not UTF-8"),
        ("a.csv", b"text\n", "holds no rows"),
        ("a.parquet", b"PAR1 and no more", "not a whole Parquet file"),
        ("a.txt", b"x", "expected a .jsonl, .csv or .parquet file"),
    ],
)
def test_damaged_files(tmp_path: Path, canaries: CanarySet, name: str, content: bytes, what: str) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    with pytest.raises(InjectionError, match=what) as caught:
        inject(source, canaries)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]  # nothing half-written is left


def test_a_truncated_parquet_file(tmp_path: Path, canaries: CanarySet) -> None:
    source = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{"text": text} for text in TEXTS]), source)
    source.write_bytes(source.read_bytes()[:-40])
    with pytest.raises(InjectionError, match="not a whole Parquet file"):
        inject(source, canaries)


def test_paths_that_are_wrong(tmp_path: Path, canaries: CanarySet) -> None:
    with pytest.raises(InjectionError, match="no file"):
        inject(tmp_path / "missing.jsonl", canaries)
    source = jsonl(tmp_path / "data.jsonl")
    with pytest.raises(InjectionError, match="is the input"):
        inject(source, canaries, output=source)
    with pytest.raises(InjectionError, match="has another kind"):
        inject(source, canaries, output=tmp_path / "out.csv")


def test_a_secret_in_the_file_already(tmp_path: Path, canaries: CanarySet) -> None:
    source = jsonl(tmp_path / "data.jsonl")
    target, _ = inject(source, canaries)
    with pytest.raises(InjectionError, match="stands in the data already"):
        inject(target, canaries, output=tmp_path / "again.jsonl")
    assert not (tmp_path / "again.jsonl").exists()


def test_wrong_columns(tmp_path: Path, canaries: CanarySet) -> None:
    source: Any = tmp_path / "a.jsonl"
    source.write_text('{"colour": "red"}\n')
    with pytest.raises(InjectionError, match="no record format fits the columns colour"):
        inject(source, canaries)
