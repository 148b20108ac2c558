"""The command line: ``memaudit COMMAND``, one module a command, each loaded only when it is asked for.

A command ``name`` is the function ``name`` in ``memaudit/cli/name.py``. Its typed signature and its docstring
are its command line and its help (see :mod:`memaudit.cli._parser`); it returns its exit code, or None for 0.
A module may hold ``ALIASES = {"-o": "--output"}`` for short options.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence

from memaudit import __version__
from memaudit.errors import MemauditError

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("memaudit.cli.demo", "train a small model on shards, audit it in the loop, print the table"),
    "canaries": ("memaudit.cli.canaries", "make a set of canaries"),
    "inject": ("memaudit.cli.inject", "plant canaries in a dataset and write the manifest"),
    "preflight": ("memaudit.cli.preflight", "check that a training set-up does not silently undo the audit"),
    "attack": ("memaudit.cli.attack", "run membership attacks on a model and labelled records"),
    "audit": ("memaudit.cli.audit", "audit a checkpoint against a manifest"),
    "merge": ("memaudit.cli.merge", "join the signals that several jobs wrote"),
    "slurm": ("memaudit.cli.slurm", "write, submit and follow SLURM jobs that audit checkpoints"),
    "plan": ("memaudit.cli.plan", "foresee forwards, time, memory and communication of an audit"),
    "estimate": ("memaudit.cli.estimate", "bound epsilon from below, from a file of scores"),
    "power": ("memaudit.cli.power", "say what an audit of a given size could detect"),
    "report": ("memaudit.cli.report", "make a page, an annex or a model card section from a report"),
    "gate": ("memaudit.cli.gate", "pass or fail a report by thresholds, for CI"),
    "verify": ("memaudit.cli.verify", "check a report's checksums"),
    "compare": ("memaudit.cli.compare", "set two reports side by side"),
    "schema": ("memaudit.cli.schema", "print the JSON Schema of the report"),
    "doctor": ("memaudit.cli.doctor", "check this machine: versions, devices, back ends, a tiny run"),
    "launch": ("memaudit.cli.launch", "list or copy launch files for accelerate, Lightning and SLURM"),
}

EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


def available() -> dict[str, str]:
    """Return the commands whose module is there, with their one-line help."""
    return {name: text for name, (module, text) in COMMANDS.items() if importlib.util.find_spec(module)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        0, or what the command returns; 2 for input that cannot be used, 130 when interrupted, 70 for a bug.

    Example:
        >>> main(["--version"])
        memaudit ...
        0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except MemauditError as error:
        _complain(f"error: {' '.join(str(error).split())}")
        return error.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, for example head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        traceback.print_exc()
        _complain("this is a bug in memaudit; please report it with the lines above, private text taken out")
        return EXIT_BUG


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"memaudit {__version__}")
        return 0
    name, rest = arguments[0], arguments[1:]
    commands = available()
    if name not in commands:
        _complain(_unknown(name, list(commands)))
        return EXIT_USAGE
    return _run_command(name, rest)


def _run_command(name: str, rest: list[str]) -> int:
    from memaudit.cli._parser import UsageError, run_function  # jsonargparse takes longer than the overview

    module = importlib.import_module(COMMANDS[name][0])
    try:
        code = run_function(getattr(module, name), f"memaudit {name}", rest, getattr(module, "ALIASES", None))
    except UsageError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except SystemExit as stop:  # --help and --print_config end the process
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return int(code or 0)


def _overview() -> str:
    commands = available()
    width = max(map(len, commands), default=0)
    lines = [f"  {name:<{width}}  {text}" for name, text in commands.items()]
    return "\n".join(
        [
            f"memaudit {__version__}: audits fine-tunes of language models for memorisation",
            "",
            "usage: memaudit COMMAND [options]     memaudit COMMAND --help     memaudit --version",
            "",
            *lines,
        ]
    )


def _unknown(name: str, commands: list[str]) -> str:
    kind = "option" if name.startswith("-") else "command"
    close = difflib.get_close_matches(name, commands, n=1)
    guess = f"; did you mean {close[0]!r}? see" if close else "; see"
    return f"unknown {kind} {name!r}{guess} memaudit --help"


def _complain(text: str) -> None:
    print(f"memaudit: {text}", file=sys.stderr)
