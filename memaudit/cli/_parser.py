"""From a command's typed function to its command line, through jsonargparse.

A function's signature is its command line: positional parameters without a default are positional arguments,
everything else is an option, spelled with dashes. Options may also come from YAML (``--config``), and
``--print_config`` writes the YAML that a command line stands for.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, get_args

from jsonargparse import ArgumentParser


class UsageError(Exception):
    """A command line that cannot be understood; the shell prints it in one line and exits with 2."""


class CommandParser(ArgumentParser):
    """A jsonargparse parser that raises :class:`UsageError` where others print their usage and exit."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        command = self.prog.split(" [")[0]
        raise UsageError(f"{command}: {_one_line(message)}; {self._suggestion(message)}see {command} --help")

    def _suggestion(self, message: str) -> str:
        if not (unknown := re.search(r"[Uu]nrecognized arguments: (--[\w.-]+)", message)):
            return ""
        known = [option for action in self._actions for option in action.option_strings[:1]]
        close = difflib.get_close_matches(unknown.group(1), known, n=1)
        return f"did you mean {close[0]}? " if close else ""


def build_parser(
    function: Callable[..., int | None], prog: str, aliases: Mapping[str, str] | None = None
) -> CommandParser:
    """Return the parser for a command's function.

    Args:
        function: the command; required keyword-only parameters become required options.
        prog: how the command is called, for example ``memaudit audit``.
        aliases: short options, for example ``{"-o": "--output"}``.

    Returns:
        A parser whose namespace holds an entry for each parameter, and ``config`` where it is none of them.
    """
    parameters = inspect.signature(function).parameters
    parser = CommandParser(prog=prog, description=_summary(function), allow_abbrev=False)
    if "config" not in parameters:
        parser.add_argument("--config", action="config", help="YAML file with options; later ones win.")
    named = {p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY}
    ordered = set(parameters) - named
    for as_positional, skip in ((True, named), (False, ordered)):
        if skip != set(parameters):
            parser.add_function_arguments(
                function, as_group=False, as_positional=as_positional, skip=set(skip), sub_configs=True
            )
    _spell_with_dashes(parser)
    for short, long in (aliases or {}).items():
        action = parser._option_string_actions[long]
        action.option_strings = [*action.option_strings, short]
        parser._option_string_actions[short] = action
    return parser


def run_function(
    function: Callable[..., int | None],
    prog: str,
    argv: Sequence[str],
    aliases: Mapping[str, str] | None = None,
) -> int | None:
    """Parse ``argv`` for a command's function, call it and return what it returns (its exit code or None).

    Raises:
        UsageError: the arguments cannot be understood.
    """
    parser = build_parser(function, prog, aliases)
    values: dict[str, Any] = dict(parser.instantiate(parser.parse_args(_explicit(argv, parser))))
    accepted = inspect.signature(function).parameters
    return function(**{name: value for name, value in values.items() if name in accepted})


def _spell_with_dashes(parser: ArgumentParser) -> None:
    """Show ``--output-dir`` for a parameter ``output_dir``; ``--output_dir`` goes on working."""
    for action in parser._actions:
        for option in list(action.option_strings):
            dashed = option.replace("_", "-")
            if dashed not in parser._option_string_actions and action.dest != "print_config":
                action.option_strings = [dashed, *(o for o in action.option_strings if o != option)]
                parser._option_string_actions[dashed] = action


def _explicit(argv: Sequence[str], parser: ArgumentParser) -> list[str]:
    """Return ``argv`` with each bare switch given its value: ``--submit`` becomes ``--submit=true``."""
    switches = {
        option
        for option, action in parser._option_string_actions.items()
        if (hint := getattr(action, "_typehint", None)) is bool or set(get_args(hint)) == {bool, type(None)}
    }
    following = [*argv, ""][1:]
    return [
        f"{token}=true" if token in switches and after.lower() not in ("true", "false") else _known(token)
        for token, after in zip(argv, following, strict=True)
    ]


def _known(token: str) -> str:
    return (
        token.replace("--print-config", "--print_config", 1) if token.startswith("--print-config") else token
    )


def _summary(function: Callable[..., Any]) -> str:
    return (inspect.getdoc(function) or "").split("\n\n")[0]


def _one_line(message: str) -> str:
    """Return jsonargparse's message in one line, its list of every attempt at a union left out."""
    line = re.sub(r'^Parser key "([\w.-]+)":', r"--\1:", " ".join(message.split()), count=1)
    line = re.sub(
        r"Does not validate against any of the Union subtypes Subtypes: \[(.*?)\] Errors: .*"
        r"Given value type: .*? Given value: (.*)$",
        r"\2 is none of \1",
        line,
    )
    return (
        line.replace("typing.Literal", "")
        .replace("<class '", "")
        .replace("'>", "")
        .replace("NoneType", "null")
        .rstrip(".")
    )
