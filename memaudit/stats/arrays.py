"""Checked inputs of the statistics: one-dimensional float scores without NaN, boolean coins, rates in range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def as_scores(values: Any, name: str, *, minimum: int = 0) -> Floats:
    """Return ``values`` as a one-dimensional float64 array; infinities are allowed, NaN is not.

    Args:
        values: scores, shape (n,), anything numpy reads as numbers.
        name: what the scores are, for the message.
        minimum: the fewest scores that make sense here.

    Returns:
        A float64 array of shape (n,).

    Raises:
        ConfigurationError: not one-dimensional, not numbers, NaN, or fewer than ``minimum``.

    Example:
        >>> as_scores([1, 2], "members")
        array([1., 2.])
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} are not numbers; give a one-dimensional array of floats") from error
    if array.ndim != 1:
        raise ConfigurationError(f"{name} have shape {array.shape}; give a one-dimensional array of floats")
    if (bad := int(np.isnan(array).sum())) > 0:
        raise ConfigurationError(
            f"{bad} of {array.size} {name} are NaN; leave unscorable records out by name, with their count"
        )
    if array.size < minimum:
        raise ConfigurationError(f"{array.size} {name} were given; at least {minimum} are needed")
    return array


def as_coins(values: Any, name: str = "coins") -> Bools:
    """Return ``values`` as a boolean array; 0 and 1 are read as numbers, anything else is refused.

    Example:
        >>> as_coins([0, 1, 1])
        array([False,  True,  True])
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise ConfigurationError(f"{name} have shape {array.shape}; give a one-dimensional array of 0 and 1")
    if array.dtype != np.bool_:
        if not np.issubdtype(array.dtype, np.number) and array.size:
            raise ConfigurationError(f"{name} are of type {array.dtype}; give booleans, or 0 and 1")
        if not bool(np.isin(array, (0, 1)).all()):
            raise ConfigurationError(f"{name} hold values other than 0 and 1; give one inclusion per canary")
    return array.astype(np.bool_)


def check_rate(value: float, name: str) -> float:
    """Return ``value`` if it lies strictly between 0 and 1.

    Example:
        >>> check_rate(0.05, "significance")
        0.05
    """
    number = float(value)
    if not 0.0 < number < 1.0:
        raise ConfigurationError(f"{name} is {value}; give a number strictly between 0 and 1")
    return number


def check_counts(successes: int, trials: int) -> tuple[int, int]:
    """Return the two counts as integers if 0 <= successes <= trials.

    Example:
        >>> check_counts(1, 2)
        (1, 2)
    """
    hits, total = int(successes), int(trials)
    if hits != successes or total != trials or not 0 <= hits <= total:
        raise ConfigurationError(
            f"{successes} successes of {trials} trials; give integers with 0 <= successes <= trials"
        )
    return hits, total


def has_repeats(values: NDArray[Any]) -> bool:
    """Whether a one-dimensional array holds a value twice; by sorting, which here is faster than numpy.unique.

    Example:
        >>> has_repeats(np.array([3, 1, 3])), has_repeats(np.array(["a", "b"]))
        (True, False)
    """
    ordered = np.sort(values)
    return bool((ordered[1:] == ordered[:-1]).any())
