"""SignalStore: the signals of finished forwards on disk, so that nothing is forwarded twice; no torch."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from memaudit.errors import MemauditError, SignalStoreError
from memaudit.files import PRIVATE, sha256_bytes, write_atomic
from memaudit.signals import FLOAT_FIELDS, INT_FIELDS, Decoding, TokenSignals

FORMAT_VERSION = 1
"""Raised whenever a number's meaning changes: shards of another version are not read."""

_SIGNALS = "signals"
_DECODING = "decoding:"
_STALE_SECONDS = 86_400.0

_log = logging.getLogger(__name__)


class SignalStore:
    """A folder of Arrow files, each written once and never changed, that any number of processes may share.

    Every flush is one new file, put in place by a rename and named by the SHA-256 of its bytes. A file whose
    bytes do not have that hash (cut off, damaged) is counted in ``damaged``, logged, and never believed: its
    probes are scored again. Folders have mode 0700 and files 0600, since signals tell about secrets.

    Args:
        path: the folder; made when first written to.

    Raises:
        SignalStoreError: ``path`` is a file.

    Example:
        >>> import tempfile
        >>> one = TokenSignals.from_lists(token_ids=[3], logprob=[-0.5], mean=[-1.0], std=[0.2],
        ...                               top1_logprob=[-0.5], top1_id=[3], rank=[0])
        >>> folder = tempfile.mkdtemp()
        >>> SignalStore(folder).put_many("model-a", {"k": one})
        >>> float(SignalStore(folder).get_many(["k", "other"], "model-a")["k"].logprob[0])
        -0.5
        >>> SignalStore(folder).get_many(["k"], "model-b")
        {}
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise SignalStoreError(f"signal store {self.path} is a file; name a folder")
        self.damaged: list[Path] = []
        self._seen: dict[str, set[str]] = {}
        self._signals: dict[str, dict[str, TokenSignals]] = {}
        self._values: dict[tuple[str, str], dict[str, Any]] = {}

    def get_many(
        self, keys: Iterable[str], fingerprint: str, *, decodings: Iterable[Decoding | str] = ()
    ) -> dict[str, TokenSignals]:
        """Return the stored signals among ``keys``; those that are missing are left out.

        Args:
            keys: ``Probe.key`` of each probe wanted.
            fingerprint: names everything that the numbers depend on besides the probe: weights, adapter
                state, precision.
            decodings: decoding schemes that the signals must hold; those that lack one count as missing.

        Returns:
            Signals by key.

        Raises:
            SignalStoreError: the folder cannot be read.
        """
        self._refresh(fingerprint)
        wanted = [one if isinstance(one, str) else one.name for one in decodings]
        known = self._signals.get(fingerprint, {})
        found = {key: known[key] for key in keys if key in known}
        return {key: one for key, one in found.items() if all(name in one.decodings for name in wanted)}

    def put_many(self, fingerprint: str, signals: Mapping[str, TokenSignals]) -> None:
        """Write the signals, keyed by ``Probe.key``, as one new file that is there whole or not at all.

        Raises:
            SignalStoreError: the folder cannot be written.
        """
        if signals:
            self._write(fingerprint, _SIGNALS, _signals_table(signals))
            self._merge(fingerprint, signals)

    def get_values(self, kind: str, keys: Iterable[str], fingerprint: str) -> dict[str, Any]:
        """Return stored JSON values of one kind (generations, gradient norms) among ``keys``.

        Raises:
            SignalStoreError: the folder cannot be read.
        """
        self._refresh(fingerprint)
        known = self._values.get((fingerprint, kind), {})
        return {key: known[key] for key in keys if key in known}

    def put_values(self, kind: str, fingerprint: str, values: Mapping[str, Any]) -> None:
        """Write JSON values of one kind as one new file.

        Raises:
            SignalStoreError: the folder cannot be written, or ``kind`` is the one of the signals.
        """
        if kind == _SIGNALS:
            raise SignalStoreError(f"the kind {kind!r} is taken by token signals; use put_many for those")
        if values:
            self._write(fingerprint, kind, _values_table(values))
            self._values.setdefault((fingerprint, kind), {}).update(values)

    def compact(self) -> int:
        """Join each model's files into one and remove the damaged ones and temporary files of dead writers.

        Safe beside readers and writers: the joined file is in place before the old ones go, and only one
        process compacts at a time.

        Returns:
            The number of files removed.

        Raises:
            SignalStoreError: the folder cannot be written.
        """
        from filelock import FileLock

        removed = 0
        if not self.path.is_dir():
            return removed
        with FileLock(self.path / ".compact.lock", mode=PRIVATE):
            for folder in sorted(one for one in self.path.iterdir() if one.is_dir()):
                removed += self._compact_folder(folder)
        return removed

    @property
    def n_files(self) -> int:
        """Number of files, damaged ones included."""
        return sum(1 for _ in self.path.rglob("*.arrow"))

    # Reading

    def _folder(self, fingerprint: str) -> Path:
        return self.path / f"v{FORMAT_VERSION}-{sha256_bytes(fingerprint.encode())[:24]}"

    def _refresh(self, fingerprint: str) -> None:
        """Read the files that other processes have written since the last look."""
        folder = self._folder(fingerprint)
        if not folder.is_dir():
            return
        seen = self._seen.setdefault(fingerprint, set())
        new = [one for one in sorted(folder.glob("*.arrow")) if one.name not in seen]
        vanished = False
        for file in new:
            try:
                table = self._read(file)
            except FileNotFoundError:  # joined by a compaction into a file that is there already
                vanished = True
                continue
            seen.add(file.name)
            if table is not None and _facts(table).get("fingerprint") == fingerprint:
                self._load(fingerprint, table)
        if vanished:
            self._refresh(fingerprint)

    def _read(self, file: Path) -> Any:
        """Return the table in ``file``, or None where its bytes are not those that were written."""
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SignalStoreError(
                f"signal store file {file} cannot be read: {error.strerror}; check its owner and mode"
            ) from error
        if sha256_bytes(data) != file.stem:
            if file not in self.damaged:
                self.damaged.append(file)
                _log.warning(
                    "signal store %s: %s is cut off or damaged and is not used; its probes are scored again "
                    "(%d such files so far; SignalStore.compact removes them)",
                    self.path,
                    file.name[:16],
                    len(self.damaged),
                )
            return None
        with pa.ipc.open_file(io.BytesIO(data)) as reader:
            return reader.read_all()

    def _load(self, fingerprint: str, table: Any) -> None:
        kind = _facts(table)["kind"]
        if kind == _SIGNALS:
            self._merge(fingerprint, dict(_signals_rows(table)))
        else:
            keys, values = table.column("key").to_pylist(), table.column("value").to_pylist()
            known = self._values.setdefault((fingerprint, kind), {})
            known.update({key: json.loads(value) for key, value in zip(keys, values, strict=True)})

    def _merge(self, fingerprint: str, signals: Mapping[str, TokenSignals]) -> None:
        """Add signals; one probe that was scored under several decoding schemes keeps them all."""
        known = self._signals.setdefault(fingerprint, {})
        for key, one in signals.items():
            old = known.get(key)
            if old is not None and set(old.decodings) - set(one.decodings):
                columns = {name: getattr(one, name) for name in FLOAT_FIELDS + INT_FIELDS}
                one = TokenSignals(**columns, decodings={**old.decodings, **one.decodings})
            known[key] = one

    # Writing

    def _write(self, fingerprint: str, kind: str, table: Any) -> Path:
        facts = {"fingerprint": fingerprint, "kind": kind, "version": str(FORMAT_VERSION)}
        table = table.replace_schema_metadata({"memaudit": json.dumps(facts, sort_keys=True)})
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue()
        folder = self._folder(fingerprint)
        try:
            for one in (self.path, folder):
                one.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = write_atomic(folder / f"{sha256_bytes(data)}.arrow", data, mode=PRIVATE)
        except (MemauditError, OSError) as error:
            raise SignalStoreError(f"signal store {self.path} cannot be written: {error}") from error
        self._seen.setdefault(fingerprint, set()).add(file.name)
        return file

    def _compact_folder(self, folder: Path) -> int:
        files = sorted(folder.glob("*.arrow"))
        tables = [(file, self._read(file)) for file in files]
        good = [(file, table) for file, table in tables if table is not None]
        keep: set[str] = set()
        if len(good) > 1:
            joined = SignalStore(self.path)
            for _, table in good:
                joined._load(_facts(table)["fingerprint"], table)
            for fingerprint, signals in joined._signals.items():
                keep.add(self._write(fingerprint, _SIGNALS, _signals_table(signals)).name)
            for (fingerprint, kind), values in joined._values.items():
                keep.add(self._write(fingerprint, kind, _values_table(values)).name)
            for seen in self._seen.values():
                seen -= keep  # they hold what other processes wrote and this one may not have read yet
        else:
            keep = {file.name for file, _ in good}
        dead = [file for file in files if file.name not in keep]
        now = time.time()
        dead += [one for one in folder.glob(".*.tmp") if now - one.stat().st_mtime > _STALE_SECONDS]
        for file in dead:
            file.unlink(missing_ok=True)
        return len(dead)


def _facts(table: Any) -> dict[str, str]:
    facts: dict[str, str] = json.loads((table.schema.metadata or {}).get(b"memaudit", b"{}"))
    return facts


def _signals_table(signals: Mapping[str, TokenSignals]) -> Any:
    """One row a probe; each field a list column, each decoding scheme one that is null where not asked."""
    keys = sorted(signals)
    rows = [signals[key] for key in keys]
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in rows])]).astype(np.int32)
    columns: dict[str, Any] = {"key": pa.array(keys, pa.string())}
    for name in FLOAT_FIELDS + INT_FIELDS:
        values = np.concatenate([getattr(one, name) for one in rows])
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
    for name in sorted({name for one in rows for name in one.decodings}):
        lists = [None if name not in one.decodings else one.decodings[name].tolist() for one in rows]
        columns[_DECODING + name] = pa.array(lists, pa.list_(pa.float64()))
    return pa.table(columns)


def _values_table(values: Mapping[str, Any]) -> Any:
    keys = sorted(values)
    return pa.table({"key": keys, "value": [json.dumps(values[key], sort_keys=True) for key in keys]})


def _signals_rows(table: Any) -> Iterator[tuple[str, TokenSignals]]:
    table = table.combine_chunks()
    keys = table.column("key").to_pylist()
    fields = {name: _split(table.column(name)) for name in table.column_names if name != "key"}
    for row, key in enumerate(keys):
        base = {name: fields[name][row] for name in FLOAT_FIELDS + INT_FIELDS}
        schemes = {
            name.removeprefix(_DECODING): values[row]
            for name, values in fields.items()
            if name.startswith(_DECODING) and values[row] is not None
        }
        yield key, TokenSignals(**base, decodings=schemes)


def _split(column: Any) -> list[Any]:
    """Cut a list column into numpy arrays, without going through Python numbers."""
    pieces: list[Any] = []
    for chunk in column.chunks:
        offsets = chunk.offsets.to_numpy()
        flat = chunk.values.to_numpy()
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        pieces += [flat[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(chunk))]
    return pieces
