"""Where a p-value crosses its level, rounded to the side that is still rejected."""

from __future__ import annotations

import math
from collections.abc import Callable


def largest_rejected(
    pvalue: Callable[[float], float], level: float, low: float, high: float, tolerance: float
) -> float:
    """Return the largest rejected parameter in [low, high], at most ``tolerance`` too small and never too large.

    ITP (Oliveira and Takahashi 2020): never more steps than bisection by more than one, far fewer on smooth curves.

    Args:
        pvalue: grows with the parameter.
        level: a parameter is rejected when its p-value is below it.
        low: a rejected parameter.
        high: one that is not.
        tolerance: width at which the search ends.

    Returns:
        The rejected end of the last bracket.

    Example:
        >>> round(largest_rejected(lambda x: x * x, 0.25, 0.0, 1.0, 1e-12), 9)
        0.5
    """
    f_low, f_high = pvalue(low) - level, pvalue(high) - level
    if high - low <= tolerance:
        return low
    steps = max(0, math.ceil(math.log2((high - low) / tolerance))) + 1
    reach = 0.2 / (high - low)
    for step in range(2 * steps + 2):
        width = high - low
        if width <= tolerance:
            break
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        falsi = (high * f_low - low * f_high) / (f_low - f_high) if f_high > f_low else middle
        side = math.copysign(1.0, middle - falsi)
        shift = reach * width * width
        point = falsi + side * shift if shift <= abs(middle - falsi) else middle
        slack = max(0.0, 0.5 * tolerance * 2.0 ** (steps - step) - 0.5 * width)
        guess = point if abs(point - middle) <= slack else middle - side * slack
        if not low < guess < high:
            guess = middle
        value = pvalue(guess) - level
        if value < 0.0:
            low, f_low = guess, value
        else:
            high, f_high = guess, value
    return low
