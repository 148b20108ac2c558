"""The signal store: what comes back, what is not believed, and several processes at once."""

from __future__ import annotations

import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memaudit.errors import SignalStoreError
from memaudit.signals import FLOAT_FIELDS, INT_FIELDS, Decoding, TokenSignals
from memaudit.store import SignalStore


def make(seed: int, n: int = 5, decodings: tuple[str, ...] = ()) -> TokenSignals:
    rng = np.random.default_rng(seed)
    return TokenSignals(
        token_ids=rng.integers(0, 100, n),
        logprob=-rng.exponential(size=n),
        mean=-rng.exponential(size=n),
        std=rng.exponential(size=n),
        top1_logprob=-rng.exponential(size=n),
        top1_id=rng.integers(0, 100, n),
        rank=rng.integers(0, 100, n),
        decodings={name: -rng.exponential(size=n) for name in decodings},
    )


def same(a: TokenSignals, b: TokenSignals) -> bool:
    equal = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in FLOAT_FIELDS + INT_FIELDS)
    return (
        equal
        and set(a.decodings) == set(b.decodings)
        and all(np.array_equal(a.decodings[name], b.decodings[name]) for name in a.decodings)
    )


def test_what_is_put_comes_back_bit_for_bit_in_a_new_process_view(tmp_path: Path) -> None:
    signals = {f"k{i}": make(i, n=1 + i) for i in range(20)}
    signals["empty"] = make(99, n=0)
    SignalStore(tmp_path / "s").put_many("m", signals)
    back = SignalStore(tmp_path / "s").get_many([*signals, "absent"], "m")
    assert set(back) == set(signals)
    assert all(same(back[key], signals[key]) for key in signals)


def test_another_model_adapter_or_precision_shares_nothing(tmp_path: Path) -> None:
    store = SignalStore(tmp_path)
    store.put_many("weights=a|adapters=on|float32", {"k": make(0)})
    for other in (
        "weights=b|adapters=on|float32",
        "weights=a|adapters=off|float32",
        "weights=a|adapters=on|bf16",
    ):
        assert store.get_many(["k"], other) == {}
        assert SignalStore(tmp_path).get_many(["k"], other) == {}


def test_a_decoding_scheme_that_was_not_stored_counts_as_missing_and_is_joined_later(tmp_path: Path) -> None:
    hot, cold = Decoding(temperature=2.0), Decoding(temperature=0.5)
    store = SignalStore(tmp_path)
    store.put_many("m", {"k": make(0, decodings=(hot.name,)), "plain": make(1)})
    assert set(SignalStore(tmp_path).get_many(["k", "plain"], "m", decodings=[hot])) == {"k"}
    assert SignalStore(tmp_path).get_many(["k"], "m", decodings=[hot, cold]) == {}
    store.put_many("m", {"k": make(0, decodings=(cold.name,))})
    back = SignalStore(tmp_path).get_many(["k"], "m", decodings=[hot, cold])["k"]
    assert set(back.decodings) == {hot.name, cold.name}


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = SignalStore(tmp_path / "s")
        store.put_many("m", {"k": make(0)})
        store.put_values("generations", "m", {"k": ["text"]})
    finally:
        os.umask(old)
    files = list((tmp_path / "s").rglob("*"))
    assert len(files) == 3
    for one in [tmp_path / "s", *files]:
        assert stat.S_IMODE(one.stat().st_mode) == (0o700 if one.is_dir() else 0o600)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_file_is_found_and_its_probes_count_as_missing(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = SignalStore(tmp_path)
    store.put_many("m", {"bad": make(0)})
    (victim,) = tmp_path.rglob("*.arrow")
    store.put_many("m", {"good": make(1)})
    data = victim.read_bytes()
    middle = len(data) // 2
    if damage == "cut":
        victim.write_bytes(data[:middle])
    elif damage == "flip":
        victim.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    else:
        victim.write_bytes(b"")
    again = SignalStore(tmp_path)
    assert set(again.get_many(["bad", "good"], "m")) == {"good"}
    assert again.damaged == [victim]
    assert "damaged" in caplog.text
    again.put_many("m", {"bad": make(0)})  # the same content has the same name: the damaged file is replaced
    assert same(SignalStore(tmp_path).get_many(["bad"], "m")["bad"], make(0))


def _write(folder: str, worker: int) -> None:
    store = SignalStore(folder)
    for i in range(10):
        store.put_many("m", {f"{worker}-{i}": make(worker * 100 + i), "shared": make(7)})
        if i == 5:
            store.compact()


def test_several_processes_write_and_compact_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(str(tmp_path), w)) for w in range(3)]
    for one in workers:
        one.start()
    for one in workers:
        one.join(60)
        assert one.exitcode == 0
    keys = [f"{w}-{i}" for w in range(3) for i in range(10)] + ["shared"]
    store = SignalStore(tmp_path)
    back = store.get_many(keys, "m")
    assert set(back) == set(keys)
    assert store.compact() > 0
    assert len(list(tmp_path.rglob("*.arrow"))) == 1
    again = SignalStore(tmp_path).get_many(keys, "m")
    assert all(same(again[key], back[key]) for key in keys)
    assert store.compact() == 0


def test_a_writer_killed_in_the_middle_leaves_no_file_that_is_believed(tmp_path: Path) -> None:
    script = (
        "import os, sys, memaudit.files as f; from memaudit.store import SignalStore\n"
        "from tests.store.test_store import make\n"
        "store = SignalStore(sys.argv[1]); store.put_many('m', {'a': make(0)})\n"
        "os.replace = lambda *a: os._exit(9)\n"
        "store.put_many('m', {'b': make(1)})\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 9, done.stderr
    store = SignalStore(tmp_path)
    assert set(store.get_many(["a", "b"], "m")) == {"a"}
    assert store.damaged == []


def test_a_store_that_is_open_sees_what_others_write_and_survives_their_compaction(tmp_path: Path) -> None:
    reader, writer = SignalStore(tmp_path), SignalStore(tmp_path)
    writer.put_many("m", {"a": make(0)})
    assert set(reader.get_many(["a", "b"], "m")) == {"a"}
    writer.put_many("m", {"b": make(1)})
    writer.put_values("generations", "m", {"x": ["one", "two"], "y": 3.5})
    writer.compact()
    assert set(reader.get_many(["a", "b"], "m")) == {"a", "b"}
    assert reader.get_values("generations", ["x", "y", "z"], "m") == {"x": ["one", "two"], "y": 3.5}
    assert reader.get_values("generations", ["x"], "other") == {}


def test_a_store_that_compacts_still_finds_what_others_wrote_since_it_last_looked(tmp_path: Path) -> None:
    one, two = SignalStore(tmp_path), SignalStore(tmp_path)
    one.put_many("m", {"a": make(0)})
    two.put_many("m", {"b": make(1)})
    two.put_values("generations", "m", {"x": 1})
    assert one.compact() == 2 and one.n_files == 2  # the lone file of samples stays as it is
    assert set(one.get_many(["a", "b"], "m")) == {"a", "b"}
    assert one.get_values("generations", ["x"], "m") == {"x": 1}
    assert set(two.get_many(["a", "b"], "m")) == {"a", "b"}


def test_clear_errors(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(SignalStoreError, match="is a file"):
        SignalStore(file)
    with pytest.raises(SignalStoreError, match="cannot be written"):
        SignalStore(file / "below").put_many("m", {"k": make(0)})
    with pytest.raises(SignalStoreError, match="put_many"):
        SignalStore(tmp_path / "s").put_values("signals", "m", {"k": 1})
