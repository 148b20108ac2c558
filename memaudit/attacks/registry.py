"""The registry of attacks: ours by name, third parties' through the entry-point group "memaudit.attacks"."""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Iterable
from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from memaudit.attacks.base import Attack
from memaudit.errors import ConfigurationError

GROUP = "memaudit.attacks"

_BUILT_IN = {
    "loss": "Loss",
    "zlib": "Zlib",
    "ref": "Ref",
    "ratio": "Ratio",
    "mink": "MinK",
    "minkpp": "MinKPP",
    "ref_minkpp": "RefMinKPP",
    "dcpdd": "DCPDD",
    "lower": "Lower",
    "neighbour": "Neighbour",
    "pac": "PAC",
    "recall": "ReCaLL",
    "conrecall": "ConReCaLL",
    "samia": "SaMIA",
    "wbc": "WBC",
    "ez": "EZ",
    "gapk": "GapK",
    "surp": "Surp",
    "gradnorm": "GradNorm",
    "rmia": "RMIA",
}
"""Name, which is also the module's, to class; in the order of the documentation's table."""

_registered: dict[str, type[Attack]] = {}


def names() -> list[str]:
    """Return the names of all attacks: ours first, then those registered and installed by others.

    Example:
        >>> names()[:4]
        ['loss', 'zlib', 'ref', 'ratio']
    """
    others = {*_registered, *(one.name for one in entry_points(group=GROUP))}
    return [*_BUILT_IN, *sorted(others - set(_BUILT_IN))]


def is_built_in(name: str) -> bool:
    """Whether an attack is one of ours."""
    return name in _BUILT_IN


def register(cls: type[Attack]) -> type[Attack]:
    """Register an attack under its ``name`` in this process; usable as a decorator.

    Raises:
        ConfigurationError: the name is taken by another class.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Median(Attack):
        ...     name = "median_example"
        ...     def score(self, view):
        ...         import numpy as np
        ...         return float(np.median(view.signals.logprob))
        >>> register(Median) is Median and "median_example" in names()
        True
    """
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ConfigurationError(
            f"attack class {cls.__name__}: its name {name!r} must be a Python identifier"
        )
    taken = _registered.get(name)
    if name in _BUILT_IN or (taken is not None and taken.__qualname__ != cls.__qualname__):
        raise ConfigurationError(f"attack name {name!r} is taken; give {cls.__name__} another")
    _registered[name] = cls
    return cls


def get(name: str) -> type[Attack]:
    """Return the class of the attack called ``name``.

    Raises:
        ConfigurationError: there is none, or an installed one cannot be imported or is no attack.

    Example:
        >>> get("loss").name
        'loss'
    """
    if name in _BUILT_IN:
        found: type[Attack] = getattr(importlib.import_module(f"memaudit.attacks.{name}"), _BUILT_IN[name])
        return found
    if name in _registered:
        return _registered[name]
    for entry in entry_points(group=GROUP, name=name):
        try:
            cls = entry.load()
        except Exception as error:
            raise ConfigurationError(
                f"attack {name!r} of {entry.value} cannot be imported: {error}; update or remove that package"
            ) from error
        if not (isinstance(cls, type) and issubclass(cls, Attack)):
            raise ConfigurationError(
                f"attack {name!r} of {entry.value} does not derive from memaudit.attacks.Attack"
            )
        return cls
    raise ConfigurationError(
        f"no attack is called {name!r}{_hint(name, names())}; there are: {', '.join(names())}"
    )


def make(spec: str | Attack, **parameters: Any) -> Attack:
    """Make an attack from its name, or from a name with parameters such as ``"mink(ratio=0.1)"``.

    Args:
        spec: name, name with parameters in brackets, or an attack, which is returned as it is.
        parameters: values of parameters; every one must be known to the attack.

    Raises:
        ConfigurationError: no such attack, a parameter that it does not know, or a value it refuses.

    Example:
        >>> make("mink(ratio=0.3)").ratio
        0.3
    """
    if isinstance(spec, Attack):
        if parameters:
            raise ConfigurationError(
                f"attack {spec.label} is made already; give parameters with its name instead"
            )
        return spec
    name, written = _parse(spec)
    cls = get(name)
    given = {**written, **parameters}
    known = [one.name for one in fields(cls)]
    unknown = [one for one in given if one not in known]
    if unknown:
        which = ", ".join(known) or "none"
        raise ConfigurationError(
            f"attack {name} has no parameter {unknown[0]!r}{_hint(unknown[0], known)}; it has: {which}"
        )
    try:
        return cls(**given)
    except TypeError as error:
        raise ConfigurationError(f"attack {name}: parameters {given} cannot be used: {error}") from error


def make_all(specs: Iterable[str | Attack]) -> list[Attack]:
    """Make several attacks; the same attack with the same parameters twice is refused.

    Raises:
        ConfigurationError: as :func:`make`, an attack occurs twice, or there is none.
    """
    attacks = [make(one) for one in specs]
    if not attacks:
        raise ConfigurationError(f"no attack is named; there are: {', '.join(names())}")
    labels = [one.label for one in attacks]
    twice = sorted({one for one in labels if labels.count(one) > 1})
    if twice:
        raise ConfigurationError(f"attack {twice[0]} occurs twice; name each attack and parameters once")
    return attacks


def split_specs(text: str) -> list[str]:
    """Split a comma-separated list of attacks, leaving the commas inside brackets alone.

    Example:
        >>> split_specs("loss, conrecall(gamma=0.5, shots='judged'),zlib")
        ['loss', "conrecall(gamma=0.5, shots='judged')", 'zlib']
    """
    parts: list[str] = [""]
    depth = 0
    for letter in text:
        depth += letter in "([" and 1
        depth -= letter in ")]" and 1
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _parse(spec: str) -> tuple[str, dict[str, Any]]:
    if "(" not in spec:
        return spec.strip(), {}
    problem = f"attack {spec!r} cannot be read; write it as name(parameter=value, ...)"
    try:
        call = ast.parse(spec.strip(), mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args):
            raise ConfigurationError(problem)
        return call.func.id, {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ConfigurationError(problem) from error


def _hint(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
