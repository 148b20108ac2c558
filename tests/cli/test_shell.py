"""The command line's shell: listing, lazy loading, one-line errors and exit codes."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from memaudit import __version__, cli
from memaudit.errors import AuditError, ManifestError


@dataclass(frozen=True)
class Limits:
    """Limits of a run.

    Args:
        max_length: tokens in a record.
    """

    max_length: int = 128


def probe(
    data: str,
    *,
    manifest: str,
    output_dir: str | None = None,
    every: Literal["end", "epoch"] | int = "end",
    dry_run: bool = False,
    limits: Limits = Limits(),
) -> int | None:
    """Show what was given.

    Args:
        data: the data file.
        manifest: the manifest file.
        output_dir: where to write.
        every: when to audit.
        dry_run: only look.
        limits: what a record may be.
    """
    print(f"{data=} {manifest=} {output_dir=} {every=} {dry_run=} {limits.max_length=}")
    return 3 if data == "three" else None


Register = Callable[[Callable[..., object]], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Put a function in as the command ``probe``."""

    def put(function: Callable[..., object]) -> None:
        module = types.ModuleType("memaudit_test_probe")
        module.__spec__ = types.SimpleNamespace(name=module.__name__)  # type: ignore[assignment]
        module.probe = function  # type: ignore[attr-defined]
        if function is probe:
            module.ALIASES = {"-o": "--output-dir"}  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.COMMANDS, "probe", (module.__name__, "a command for tests"))

    yield put


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("\n") and err.count("\n") == 1, err
    return err.strip()


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_overview_lists_the_commands_that_exist(arguments, capsys, register, monkeypatch):
    register(probe)
    monkeypatch.setitem(cli.COMMANDS, "ghost", ("memaudit.cli.no_such_module", "not written"))
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert "a command for tests" in out
    assert "ghost" not in out


@pytest.mark.parametrize("name", sorted(cli.available()))
def test_help_of_every_listed_command(name, capsys):
    assert cli.main([name, "--help"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"usage: memaudit {name}")
    assert err == ""


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"memaudit {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_overview_is_fast_and_needs_no_torch(arguments):
    code = (
        "import sys; from memaudit.cli import main; assert main(sys.argv[1:]) == 0;"
        "heavy = {'torch', 'transformers', 'numpy', 'jsonargparse', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    seconds = []
    for _ in range(3):  # the fastest of three: the machine may be busy
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.5


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "memaudit", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"memaudit {__version__}\n")


def test_unknown_command_suggests_a_near_one(capsys, register):
    register(probe)
    assert cli.main(["porbe"]) == 2
    assert one_line(capsys) == "memaudit: unknown command 'porbe'; did you mean 'probe'? see memaudit --help"


def test_unknown_option_before_the_command(capsys):
    assert cli.main(["--frobnicate"]) == 2
    assert one_line(capsys) == "memaudit: unknown option '--frobnicate'; see memaudit --help"


def test_arguments_options_and_exit_code(capsys, register):
    register(probe)
    assert cli.main(["probe", "three", "--manifest", "m"]) == 3
    assert cli.main(["probe", "d", "--manifest=m", "-o", "out", "--every", "5", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == ("data='d' manifest='m' output_dir='out' every=5 dry_run=True limits.max_length=128")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--dry-run", "d", "--manifest", "m"], "dry_run=True"),
        (["d", "--manifest", "m", "--dry-run", "false"], "dry_run=False"),
        (["d", "--manifest", "m", "--output_dir", "under"], "output_dir='under'"),
        (["d", "--manifest", "m", "--limits.max-length", "7"], "limits.max_length=7"),
        (["d", "--manifest", "m", "--limits.max_length=8"], "limits.max_length=8"),
    ],
)
def test_spellings(arguments, expected, capsys, register):
    register(probe)
    assert cli.main(["probe", *arguments]) == 0
    assert expected in capsys.readouterr().out


def test_help_spells_options_with_dashes(capsys, register):
    register(probe)
    assert cli.main(["probe", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--output-dir" in out and "--output_dir" not in out
    assert "where to write" in out and "Show what was given." in out


def test_config_file_and_print_config(tmp_path, capsys, register):
    register(probe)
    assert cli.main(["probe", "d", "--manifest", "m", "--every", "epoch", "--print_config"]) == 0
    config = tmp_path / "run.yaml"
    config.write_text(capsys.readouterr().out)
    assert cli.main(["probe", "--config", str(config)]) == 0
    assert "data='d' manifest='m' output_dir=None every='epoch'" in capsys.readouterr().out
    assert cli.main(["probe", "--config", str(config), "--limits.max-length=9"]) == 0
    assert "every='epoch' dry_run=False limits.max_length=9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "required: data"),
        (["d"], "required: manifest"),
        (["d", "--manifest", "m", "--outpt-dir", "x"], "--outpt-dir x; did you mean --output-dir? see"),
        (
            ["d", "--manifest", "m", "--every", "sometimes"],
            "--every: sometimes is none of ['end', 'epoch'], int",
        ),
        (["d", "--manifest", "m", "--limits.max-length", "long"], "long"),
        (["d", "--manifest", "m", "--output", "x"], "unrecognized arguments: --output x"),
        (["d", "e", "--manifest", "m"], "unrecognized arguments: e"),
        (["d", "--config", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(arguments, expected, capsys, register):
    register(probe)
    assert cli.main(["probe", *arguments]) == 2
    line = one_line(capsys)
    assert line.startswith("memaudit probe: ")
    assert expected in line
    assert line.endswith("see memaudit probe --help")


def test_a_broken_config_file_is_one_line_and_exit_2(tmp_path, capsys, register):
    register(probe)
    (tmp_path / "bad.yaml").write_text("every: [end\n")
    assert cli.main(["probe", "d", "--manifest", "m", "--config", str(tmp_path / "bad.yaml")]) == 2
    assert "memaudit probe: " in one_line(capsys)


@pytest.mark.parametrize("error", [ManifestError, AuditError])
def test_expected_errors_are_one_line_with_their_exit_code(error, capsys, register):
    def fail() -> None:
        raise error("damaged file;\n write it again")

    register(fail)
    assert cli.main(["probe"]) == error.exit_code == 2
    assert one_line(capsys) == "memaudit: error: damaged file; write it again"


def test_interrupt(capsys, register):
    def fail() -> None:
        raise KeyboardInterrupt

    register(fail)
    assert cli.main(["probe"]) == 130
    assert one_line(capsys) == "memaudit: interrupted"


def test_a_bug_keeps_its_traceback(capsys, register):
    def fail() -> None:
        raise ZeroDivisionError("never expected")

    register(fail)
    assert cli.main(["probe"]) == 70
    err = capsys.readouterr().err
    assert "Traceback" in err and "ZeroDivisionError: never expected" in err
    assert "please report it" in err.splitlines()[-1]


def test_a_closed_pipe_is_quiet():
    done = subprocess.run(
        f"set -o pipefail; {sys.executable} -m memaudit --help | true",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        cwd=Path.home(),
    )
    assert done.stderr == ""
