"""A number with its claim attached: a float that knows its method, guarantee, assumptions and ceiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memaudit.stats.guesses import Pair

CERTIFIED = "certified"
MODEL_BASED = "model-based"
DESCRIPTIVE = "descriptive"

CITATIONS = {
    "steinke": "Steinke et al. 2023",
    "mahloujifar": "Mahloujifar et al. 2024",
    "xiang": "Xiang et al. 2025",
}
GUARANTEES = {"steinke": CERTIFIED, "mahloujifar": CERTIFIED, "xiang": MODEL_BASED}


@dataclass(frozen=True)
class Claim:
    """What a bound rests on: everything a reader needs to judge the number."""

    quantity: str
    at: str
    method: str
    guarantee: str
    assumptions: tuple[str, ...]
    significance: float
    m: int
    k_plus: int
    k_minus: int
    correct: int
    pairs: tuple[Pair, ...]
    ceiling: float


class Bound(float):
    """A bound as a plain number, with the claim behind it in ``claim`` and in its repr.

    Example:
        >>> claim = Claim("epsilon", "at delta 0", "steinke", "certified", ("x",), 0.05, 10, 5, 5, 9, ((5, 5),), 1.05)
        >>> bound = Bound(0.5, claim)
        >>> bound + 1, bound.claim.m
        (1.5, 10)
    """

    claim: Claim

    def __new__(cls, value: float, claim: Claim) -> Bound:
        self = super().__new__(cls, value)
        self.claim = claim
        return self

    def __getnewargs__(self) -> tuple[float, Claim]:  # type: ignore[override]
        return float(self), self.claim

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that float lacks: method, guarantee, assumptions, ceiling and so on.
        if name in Claim.__dataclass_fields__:
            return getattr(self.claim, name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        c = self.claim
        sign = "<=" if c.quantity == "beta" else ">="
        pairs = f"; the best of {len(c.pairs)} pre-registered pairs" if len(c.pairs) > 1 else ""
        level = f"{100 * (1 - c.significance):g} % confidence"
        return (
            f"{c.quantity} {sign} {float(self):.4f} {c.at} ({level}, {c.guarantee}, {CITATIONS[c.method]}): "
            f"{c.correct} of {c.k_plus + c.k_minus} guesses right on {c.m} canaries "
            f"({c.k_plus} IN, {c.k_minus} OUT{pairs}); at most {c.ceiling:.4f} could be shown; "
            f"assumes {'; '.join(c.assumptions)}"
        ).replace("  ", " ")

    __str__ = __repr__

    def to_dict(self) -> dict[str, Any]:
        """Return the number and its claim as plain values for a report."""
        c = self.claim
        return {
            "quantity": c.quantity,
            "value": float(self),
            "at": c.at,
            "method": c.method,
            "source": CITATIONS[c.method],
            "guarantee": c.guarantee,
            "assumptions": list(c.assumptions),
            "significance": c.significance,
            "m": c.m,
            "k_plus": c.k_plus,
            "k_minus": c.k_minus,
            "correct": c.correct,
            "pairs": [list(pair) for pair in c.pairs],
            "ceiling": c.ceiling,
            "sentence": repr(self),
        }
