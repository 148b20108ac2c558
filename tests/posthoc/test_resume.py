"""An audit that is killed, told to end, or runs out of disk goes on where it stopped, to the same report."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from memaudit.cli import main
from memaudit.posthoc.stable import stable_content
from tests.posthoc.shards import scored_keys

REPORT = "memaudit-report.json"
Command = Callable[..., list[str]]


def content(folder: Path) -> str:
    return stable_content(json.loads((folder / REPORT).read_text()))


def start(arguments: list[str]) -> int:
    """Run the command in a forked process, which has the libraries loaded already; return its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        code = main(arguments)
    finally:
        os._exit(code)


def finish(child: int) -> int:
    """Wait for a process; return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """The report of an audit that nothing disturbed, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("whole")
    began = time.monotonic()
    arguments = [
        "audit", "--model", str(run / "checkpoint-30"), "--manifest", str(run / "manifest.json"),
        "--ref", str(run / "base"), "--output-dir", str(folder), "--batch-size", "4", "--real-sample", "0",
    ]  # fmt: skip
    # In this process, so that the children that are forked later have every library loaded.
    assert main(arguments) == 0
    seconds = time.monotonic() - began
    report = json.loads((folder / REPORT).read_text())
    assert report["step"] == 30 and report["reference"]["mode"] == "checkpoint"
    assert report["membership"]["headline_valid"] and report["membership"]["auc"] > 0.9
    return content(folder), seconds


@pytest.mark.slow
def test_killed_at_ten_moments(command: Command, tmp_path: Path, whole: tuple[str, float]) -> None:
    expected, seconds = whole
    rng = random.Random(20261201)
    killed_midway = 0
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        arguments = command(folder)
        child = start(arguments)
        time.sleep(rng.uniform(0.02, 1.0) * seconds)
        os.kill(child, signal.SIGKILL)
        finish(child)
        before = scored_keys(folder / "memaudit-signals")
        killed_midway += 0 < sum(len(keys) for keys in before.values()) < 2 * 108
        assert finish(start(arguments)) == 0
        assert content(folder) == expected, f"another report after the kill in attempt {attempt}"
        after = scored_keys(folder / "memaudit-signals")
        assert sorted(len(keys) for keys in after.values()) == [108, 108]
        assert all(count == 1 for keys in after.values() for count in keys.values()), "scored twice"
    assert killed_midway >= 2, "the kills missed the scoring: the test shows nothing"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_told_to_end(command: Command, tmp_path: Path, whole: tuple[str, float], number: int) -> None:
    arguments = command(tmp_path / "a")
    child = start(arguments)
    store = tmp_path / "a" / "memaudit-signals"
    deadline = time.monotonic() + 120
    while not list(store.glob("*/*.arrow")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(child, number)
    assert finish(child) == 75
    assert sum(len(keys) for keys in scored_keys(store).values()) > 0
    assert not (tmp_path / "a" / REPORT).exists()
    assert finish(start(arguments)) == 0
    assert content(tmp_path / "a") == whole[0]
    assert all(count == 1 for keys in scored_keys(store).values() for count in keys.values()), "scored twice"


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[Callable[[str], None]]:
    """Mount a tmpfs; the function remounts it with other options."""
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield (
            lambda options: (
                subprocess.run(
                    ["mount", "-o", f"remount,{options}", str(place)], check=True, capture_output=True
                )
                and None
            )
        )
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_disk_full(
    command: Command, tmp_path: Path, whole: tuple[str, float], capfd: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "256k") as remount:
        arguments = command(disk / "a")
        assert finish(start(arguments)) == 2
        message = [line for line in capfd.readouterr().err.splitlines() if line.startswith("memaudit: error")]
        assert len(message) == 1 and "No space left on device" in message[0], message
        kept = scored_keys(disk / "a" / "memaudit-signals")
        assert 0 < sum(len(keys) for keys in kept.values()) < 2 * 108, "the disk was not full midway"
        remount("size=32m")
        assert finish(start(arguments)) == 0
        assert content(disk / "a") == whole[0]
        after = scored_keys(disk / "a" / "memaudit-signals")
        assert all(count == 1 for keys in after.values() for count in keys.values())


def test_read_only_folder(
    command: Command, tmp_path: Path, whole: tuple[str, float], capfd: pytest.CaptureFixture[str]
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "8m") as remount:
        assert finish(start(command(disk / "a"))) == 0
        before = (disk / "a" / REPORT).read_bytes()
        remount("ro")
        capfd.readouterr()
        assert finish(start(command(disk / "a"))) == 2
        message = capfd.readouterr().err
        assert "Read-only file system" in message and "cannot write" in message
        assert (disk / "a" / REPORT).read_bytes() == before
        remount("rw")


def test_cut_off_shard_is_scored_again(command: Command, tmp_path: Path, whole: tuple[str, float]) -> None:
    assert main(command(tmp_path / "a")) == 0
    shards = sorted((tmp_path / "a" / "memaudit-signals").glob("*/*.arrow"))
    for shard in shards[:3]:
        shard.write_bytes(shard.read_bytes()[:-20])
    assert main(command(tmp_path / "a")) == 0
    assert content(tmp_path / "a") == whole[0]
