"""JSONL, CSV and Parquet files: read and written piece by piece, the host's rows byte for byte as they were."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from memaudit.errors import InjectionError
from memaudit.files import PRIVATE, sha256_file, write_atomic_with
from memaudit.injection.duplicates import strings
from memaudit.injection.inject import Job
from memaudit.injection.placement import Row, merge, positions
from memaudit.injection.share import SAMPLE
from memaudit.manifest import Manifest

_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


def into_file(job: Job, path: Path, output: Path | None) -> tuple[Path, Manifest]:
    """Plant in a file; return the path of the new one, which only its owner may read, and the manifest.

    Raises:
        InjectionError: the file is missing, empty, damaged, of another kind, or would be overwritten.
    """
    host = open_rows(path)
    target = path.with_name(f"{path.stem}.memaudit{path.suffix}") if output is None else output
    if target.resolve() == path.resolve():
        raise InjectionError(
            f"the output {target} is the input; name another file, the original rows are kept"
        )
    if _ENDINGS.get(target.suffix.lower()) != _ENDINGS[path.suffix.lower()]:
        raise InjectionError(
            f"the output {target} has another kind than the input {path}; give it {path.suffix}"
        )
    count, sample = _survey(job, host)
    planted, fmt, columns, warnings = job.plant(sample[:1], str(path))
    manifest = job.manifest(
        planted, fmt, columns, warnings, n_host=count, host_sample=sample, fingerprint=sha256_file(path)
    )
    places = positions(len(planted.rows), count, job.seed).tolist()
    write_atomic_with(target, lambda handle: host.write(handle, list(planted.rows), places), mode=PRIVATE)
    return target, manifest


def open_rows(path: Path) -> RowFile:
    """Return the reader of a file by its ending.

    Raises:
        InjectionError: the file is missing or of another kind.
    """
    kind = _ENDINGS.get(path.suffix.lower())
    if kind is None:
        raise InjectionError(
            f"{path} is of kind {path.suffix or 'unknown'!r}; expected a .jsonl, .csv or .parquet file"
        )
    if not path.is_file():
        raise InjectionError(f"no file {path}; correct the path")
    readers: dict[str, Callable[[Path], RowFile]] = {"jsonl": _Jsonl, "csv": _Csv, "parquet": _Parquet}
    return readers[kind](path)


def _survey(job: Job, host: RowFile) -> tuple[int, list[Row]]:
    """Read the file once: count the rows, keep evenly spread ones, and look for the secrets."""
    kept: list[Row] = []
    every = 1
    count = 0

    def texts() -> Iterator[str]:
        nonlocal count, every, kept
        for row in host.rows():
            if count % every == 0:
                kept.append(row)
                if len(kept) > 2 * SAMPLE:  # half of them go, and from here on every second row is looked at
                    kept = kept[::2]
                    every *= 2
            count += 1
            yield from strings(row)

    job.watch.check(texts())
    return count, kept


class RowFile:
    """A file of rows that can be read, and written again with rows added."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> Iterator[Row]:
        """Yield the rows."""
        raise NotImplementedError

    def write(self, handle: IO[bytes], added: list[Row], places: list[int]) -> None:
        """Write the host's rows with the added ones at their places."""
        raise NotImplementedError

    def damaged(self, what: str, number: int | None = None) -> InjectionError:
        """Return the error for a file that cannot be read."""
        where = "" if number is None else f", line {number}"
        return InjectionError(f"{self.path}{where}: {what}; repair the file or export it again")


class _Jsonl(RowFile):
    def _lines(self) -> Iterator[bytes]:
        with open(self.path, "rb") as handle:
            yield from (line for line in handle if line.strip())

    def rows(self) -> Iterator[Row]:
        for number, line in enumerate(self._lines(), start=1):
            try:
                row = json.loads(line)
            except (ValueError, UnicodeDecodeError) as error:
                raise self.damaged("not a JSON object", number) from error
            if not isinstance(row, dict):
                raise self.damaged(f"a row is a JSON {type(row).__name__}, expected an object", number)
            yield row

    def write(self, handle: IO[bytes], added: list[Row], places: list[int]) -> None:
        lines = [json.dumps(row, ensure_ascii=False).encode() for row in added]
        for line in merge(self._lines(), lines, places):
            handle.write(line if line.endswith(b"\n") else line + b"\n")


class _Csv(RowFile):
    """Records are cut out of the file as they stand, quotes and line ends included."""

    def _records(self) -> Iterator[tuple[str, list[str]]]:
        try:
            with open(self.path, encoding="utf-8", newline="") as handle:
                raw: list[str] = []

                def lines() -> Iterator[str]:
                    for line in handle:
                        raw.append(line)
                        yield line

                for fields in csv.reader(lines(), strict=True):
                    text = "".join(raw)
                    raw.clear()
                    if fields:
                        yield text, fields
        except UnicodeDecodeError as error:
            raise self.damaged("not UTF-8") from error
        except csv.Error as error:
            raise self.damaged(f"not a CSV file ({error})") from error

    def rows(self) -> Iterator[Row]:
        records = self._records()
        header = next(records, ("", []))[1]
        for number, (_, fields) in enumerate(records, start=2):
            if len(fields) != len(header):
                raise self.damaged(f"{len(fields)} fields where the header has {len(header)}", number)
            yield dict(zip(header, fields, strict=True))

    def write(self, handle: IO[bytes], added: list[Row], places: list[int]) -> None:
        records = self._records()
        first, header = next(records)
        ending = "\r\n" if first.endswith("\r\n") else "\n"
        handle.write(_ended(first, ending).encode())
        lines = []
        for row in added:
            buffer = io.StringIO()
            csv.writer(buffer, lineterminator=ending).writerow(
                ["" if row.get(name) is None else row[name] for name in header]
            )
            lines.append(buffer.getvalue())
        for text in merge((text for text, _ in records), lines, places):
            handle.write(_ended(text, ending).encode())


def _ended(text: str, ending: str) -> str:
    return text if text.endswith(("\n", "\r")) else text + ending


class _Parquet(RowFile):
    def _open(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError) as error:
            raise self.damaged("not a whole Parquet file") from error

    def rows(self) -> Iterator[Row]:
        import pyarrow as pa

        try:
            for batch in self._open().iter_batches(batch_size=2000):
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise self.damaged("not a whole Parquet file") from error

    def write(self, handle: IO[bytes], added: list[Row], places: list[int]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        source = self._open()
        schema = source.schema_arrow
        try:
            extra = pa.Table.from_pylist(added, schema=schema)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InjectionError(
                f"{self.path}: the columns' types do not take a canary's record ({type(error).__name__}); check "
                "fmt= and columns="
            ) from error
        used = (
            source.metadata.row_group(0).column(0).compression.lower() if source.num_row_groups else "snappy"
        )
        with pq.ParquetWriter(
            handle, schema, compression="none" if used == "uncompressed" else used
        ) as writer:
            seen = pending = 0
            for batch in source.iter_batches(batch_size=10_000):
                table = pa.Table.from_batches([batch], schema=schema)
                pieces, cut = [], 0
                while pending < len(places) and places[pending] < seen + len(table):
                    at = places[pending] - seen
                    pieces += [table.slice(cut, at - cut), extra.slice(pending, 1)]
                    cut, pending = at, pending + 1
                writer.write_table(pa.concat_tables([*pieces, table.slice(cut)]))
                seen += len(table)
            if pending < len(places):
                writer.write_table(extra.slice(pending))
