"""Numbers that JSON can hold: what is not finite becomes null, and where it stood is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def finite(value: float | None) -> float | None:
    """Return a finite number as a float, anything else as None.

    Example:
        >>> finite(1), finite(float("nan")), finite(None)
        (1.0, None, None)
    """
    return float(value) if value is not None and math.isfinite(value) else None


def jsonable(value: Any, nulls: dict[str, str], path: str = "") -> Any:
    """Return ``value`` as JSON values, with each non-finite number as None and its path noted in ``nulls``.

    Mappings, sequences, sets, numpy scalars and arrays, and objects with ``to_dict`` are followed; anything
    else that JSON does not know becomes its ``str``.

    Example:
        >>> seen: dict[str, str] = {}
        >>> jsonable({"a": [1, float("inf")]}, seen), seen
        ({'a': [1, None]}, {'a.1': 'inf'})
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return jsonable(value.item(), nulls, path)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        nulls[path or "value"] = str(value)
        return None
    if hasattr(value, "to_dict"):
        return jsonable(value.to_dict(), nulls, path)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item, nulls, _join(path, key)) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist(), nulls, path)
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return [jsonable(item, nulls, _join(path, index)) for index, item in enumerate(value)]
    return str(value)


def percent(rate: float, digits: int = 3) -> str:
    """Return a rate in percent without a false 0: 0.001 is '0.1%', 0.0123456 is '1.23%'.

    Example:
        >>> percent(0.001), percent(0.01), percent(1.0)
        ('0.1%', '1%', '100%')
    """
    return f"{rate * 100:.{digits}g}%"


REASONS = {
    "skip_generation": "generation was switched off (skip_generation)",
    "not_requested": "it was not asked for",
    "no_dataset": "no dataset was given (no_dataset)",
    "real_sample_zero": "the sample size was 0 (real_sample_zero)",
    "no_extractable_records": "no record could be read (no_extractable_records)",
}
"""The names that reports give as reasons, in plain words."""


def reason_in_words(reason: str | None) -> str:
    """Return a reason in plain words; one that has no name stays as it is.

    Example:
        >>> reason_in_words("no_dataset"), reason_in_words(None)
        ('no dataset was given (no_dataset)', 'no reason is recorded')
    """
    return "no reason is recorded" if reason is None else REASONS.get(reason, reason)


def _join(path: str, part: Any) -> str:
    return f"{path}.{part}" if path else str(part)
