"""When to audit and when to stop training: the same rules for every integration."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from memaudit.errors import ConfigurationError

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_RULE = re.compile(r"^\s*([A-Za-z_][\w./]*)\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*$")

StopWhen = str | Callable[[Mapping[str, Any]], bool] | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """At which optimizer steps or epochs an audit is due; one at the end of training always is.

    Args:
        every_steps: audit after each multiple of this many optimizer steps; 0 for never.
        every_epochs: audit after each multiple of this many epochs; 0 for never.
        at_start: audit before the first step too.

    Example:
        >>> Schedule.parse("epoch").due_after_epoch(1), Schedule.parse(10).due_after_step(20)
        (True, True)
    """

    every_steps: int = 0
    every_epochs: int = 0
    at_start: bool = False

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_epochs"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigurationError(f"{name} is {value!r}; give a whole number, 0 for never")

    @classmethod
    def parse(cls, every: str | int, *, at_start: bool = False) -> Schedule:
        """Read ``every``: "end", "epoch", or a number of optimizer steps.

        Raises:
            ConfigurationError: it is none of these.
        """
        if every == "end":
            return cls(at_start=at_start)
        if every == "epoch":
            return cls(every_epochs=1, at_start=at_start)
        if isinstance(every, str) and every.isdigit():
            every = int(every)
        if isinstance(every, int) and not isinstance(every, bool) and every > 0:
            return cls(every_steps=every, at_start=at_start)
        raise ConfigurationError(
            f"every={every!r}; give 'end', 'epoch' or a number of optimizer steps above 0"
        )

    def due_after_step(self, step: int) -> bool:
        """Whether an audit is due after optimizer step ``step`` (counted from 1)."""
        return self.every_steps > 0 and step > 0 and step % self.every_steps == 0

    def due_after_epoch(self, epoch: int) -> bool:
        """Whether an audit is due after epoch ``epoch`` (counted from 1)."""
        return self.every_epochs > 0 and epoch > 0 and epoch % self.every_epochs == 0


def stop_rule(stop_when: StopWhen) -> Callable[[Mapping[str, Any]], bool]:
    """Make a stop rule of a callable or of text such as ``"ci_low > 0.05"``.

    Args:
        stop_when: None never stops. A callable gets the audit's headline figures. Text names one of them
            (``tpr_at_1pct_fpr``, ``ci_low``, ``ci_high``, ``auc``, ``n_detected``, ``regurgitation_rate``,
            ...), a comparison, and a number; a figure that is null never stops.

    Returns:
        A function from headline figures to whether training should stop.

    Raises:
        ConfigurationError: the text is no such rule.

    Example:
        >>> stop_rule("ci_low > 0.05")({"ci_low": 0.2})
        True
        >>> stop_rule("ci_low > 0.05")({"ci_low": None})
        False
    """
    if stop_when is None:
        return lambda figures: False
    if callable(stop_when):
        return stop_when
    match = _RULE.match(stop_when)
    if match is None:
        raise ConfigurationError(
            f"stop_when={stop_when!r}; give a figure, a comparison and a number, for example 'ci_low > 0.05'"
        )
    name, comparison, number = match.groups()
    try:
        limit = float(number)
    except ValueError as error:
        raise ConfigurationError(f"stop_when={stop_when!r}: {number!r} is not a number") from error

    def rule(figures: Mapping[str, Any]) -> bool:
        if name not in figures:
            raise ConfigurationError(f"stop_when names {name!r}; an audit has {', '.join(sorted(figures))}")
        value = figures[name]
        if value is None or not math.isfinite(float(value)):
            return False
        return _COMPARISONS[comparison](float(value), limit)

    return rule
