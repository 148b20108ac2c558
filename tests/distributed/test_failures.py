"""One rank raising, killed or stuck in the middle of an audit: every process ends in time and names it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.distributed.launcher import ROOT, free_port

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]


def two_ranks(mode: str, store: Path, limit: float) -> list[tuple[int | None, str]]:
    """Start two ranks by hand; return exit code and output of each. A rank that outlives ``limit`` has None."""
    port = free_port()
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, "-m", "tests.distributed.failure_worker", mode, str(store)]
        ranks.append(
            subprocess.Popen(
                command,
                env=environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    results: list[tuple[int | None, str]] = []
    deadline = time.monotonic() + limit
    try:
        for process in ranks:
            try:
                output, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
                results.append((process.returncode, output))
            except subprocess.TimeoutExpired:
                results.append((None, ""))
    finally:
        for process in ranks:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
    return results


def test_a_rank_that_raises_stops_all_with_its_error_and_the_ranks_stay_in_step(tmp_path: Path) -> None:
    for code, output in two_ranks("raise", tmp_path / "store", 120):
        assert code == 3, output
        assert "AuditError: scoring failed on rank 1 at record p" in output, output
        assert "no room on this rank" in output
        assert "ranks still in step: 2" in output


def test_a_killed_rank_ends_the_other_in_time_and_the_next_try_reuses_what_was_scored(tmp_path: Path) -> None:
    (code, output), (killed, _) = two_ranks("kill", tmp_path / "store", 120)
    assert killed == -signal.SIGKILL
    assert code == 3, output
    assert "rank 1 was killed or stopped answering" in output, output
    again = two_ranks("none", tmp_path / "store", 120)
    for code, output in again:
        assert code == 0, output
    reused = int(again[0][1].split("reused ")[1].split()[0])
    # Rank 1 died at its second batch of two probes; its first, and those of rank 0, had been written.
    assert reused >= 2, again[0][1]
    assert f"needed {16 - reused} reused {reused}" in again[1][1]


def test_a_stuck_rank_does_not_hang_the_other(tmp_path: Path) -> None:
    (code, output), (stuck, _) = two_ranks("stuck", tmp_path / "store", 90)
    assert stuck is None  # stopped by SIGSTOP, ended by the test
    assert code not in (0, None), output
    assert "rank 1 was killed or stopped answering" in output, output
