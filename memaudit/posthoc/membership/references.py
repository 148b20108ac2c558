"""Several reference models in one run: which attack is measured against which, and each of them named."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from memaudit.attacks.base import Attack, ReferenceAttack, reference_of
from memaudit.errors import ConfigurationError


def against_each(attacks: Sequence[Attack], reference: Any) -> list[Attack]:
    """Return the attacks, those that compare with a reference once for each of several.

    Args:
        attacks: as asked for; those that name a reference keep it.
        reference: what the user gave: one reference, none, or several by name.

    Raises:
        ConfigurationError: an attack needs a reference, there are several, and it cannot choose one.

    Example:
        >>> from memaudit.attacks import make
        >>> [one.label for one in against_each([make("loss"), make("ref")], {"a": "path/a", "b": "path/b"})]
        ['loss', "ref(reference='a')", "ref(reference='b')"]
    """
    if not isinstance(reference, Mapping):
        return list(attacks)
    made: list[Attack] = []
    for one in attacks:
        if isinstance(one, ReferenceAttack) and not one.reference:
            made += [replace(one, reference=name) for name in reference]
        elif one.requirements.reference and not isinstance(one, ReferenceAttack):
            raise ConfigurationError(
                f"attack {one.label} cannot choose among {len(reference)} references: derive it from "
                "memaudit.attacks.ReferenceAttack, or give one reference"
            )
        else:
            made.append(one)
    return list({one.label: one for one in made}.values())


def named_references(attacks: Sequence[Attack], reference: Any) -> dict[str, Any]:
    """Return the models that attacks name: from those given by name, or each name is a path or a hub id.

    Raises:
        ConfigurationError: references were given by name and an attack names another.

    Example:
        >>> from memaudit.attacks import make
        >>> named_references([make("loss"), make("ref(reference='org/small')")], None)
        {'org/small': 'org/small'}
    """
    names = dict.fromkeys(name for one in attacks if (name := reference_of(one)))
    if not isinstance(reference, Mapping):
        return {name: name for name in names}
    for name in names:
        if name not in reference:
            close = difflib.get_close_matches(name, list(reference), n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigurationError(
                f"no reference is named {name!r}{hint}; there are: {', '.join(reference)}"
            )
    return {name: reference[name] for name in names}


def reference_notes(attacks: Sequence[Attack]) -> list[str]:
    """Say what several references mean for a reader: the best of them is no result of its own."""
    names = {reference_of(one) for one in attacks if one.requirements.reference}
    if len(names) < 2:
        return []
    return [
        f"{len(names)} references, each reported by itself; to pick the best of them afterwards overstates the attack"
    ]
