"""Starting a script on several ranks with torchrun, as a subprocess with a time-out and a free port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Return a TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Finished:
    """What a start of torchrun left behind.

    ``returncode`` is None where the time-out ended it; ``ranks`` holds every rank's stdout and stderr.
    """

    returncode: int | None
    seconds: float
    output: str
    ranks: tuple[str, ...]

    @property
    def everything(self) -> str:
        """The launcher's and every rank's output, for a failure's message."""
        parts = [f"exit code {self.returncode} after {self.seconds:.1f} s", self.output[-4000:]]
        parts += [f"----- rank {rank}\n{text[-6000:]}" for rank, text in enumerate(self.ranks)]
        return "\n".join(parts)


def torchrun(
    script: Path | str,
    arguments: Sequence[str] = (),
    *,
    ranks: int = 2,
    timeout: float = 240.0,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run ``script`` on ``ranks`` processes of this machine; every process is gone when it returns."""
    with tempfile.TemporaryDirectory() as logs:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}"),
            *("--master-addr=127.0.0.1", f"--master-port={free_port()}", "--log-dir", logs, "--redirects=3"),
            *(str(script), *arguments),
        ]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            # ninja for DeepSpeed's CPU op lies beside the interpreter.
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            **(env or {}),
        }
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        returncode: int | None
        try:
            output, _ = process.communicate(timeout=timeout)
            returncode = process.returncode
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            returncode = None
        except BaseException:  # an interrupted test leaves no ranks behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        seconds = time.monotonic() - started
        return Finished(returncode, seconds, output, tuple(_rank_logs(Path(logs), ranks)))


def _rank_logs(folder: Path, ranks: int) -> list[str]:
    texts = []
    for rank in range(ranks):
        files = sorted(folder.glob(f"**/{rank}/std*.log"))
        texts.append("\n".join(f"[{f.name}]\n{f.read_text(errors='replace')}" for f in files))
    return texts


def run_checked(
    script: Path | str,
    arguments: Sequence[str] = (),
    *,
    ranks: int = 2,
    timeout: float = 240.0,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """As :func:`torchrun`; a failure raises AssertionError with every rank's stderr."""
    finished = torchrun(script, arguments, ranks=ranks, timeout=timeout, env=env)
    if finished.returncode != 0:
        raise AssertionError(f"{script} {' '.join(arguments)} on {ranks} ranks failed: {finished.everything}")
    return finished
