"""The base of every part of the report: unknown fields refused, non-finite numbers refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Execution = Literal["executed", "not_run"]
"""Whether a part of the audit ran; a part that did not says why in its ``reason``."""

JsonDict = dict[str, JsonValue]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """A part of the report that memaudit fills itself: exactly these fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())


class OpenSection(BaseModel):
    """A part that the caller fills: these fields, and further ones that are kept as they are."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())


class Proportion(Section):
    """A count, its rate and the rate's exact two-sided interval; rate and limits are null when n is 0."""

    n: Count
    count: Count | None = None
    rate: Rate | None = None
    ci_low: Rate | None = None
    ci_high: Rate | None = None
