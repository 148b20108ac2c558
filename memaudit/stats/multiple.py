"""Claims about many records at once: false-discovery rate and family-wise error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import Bools, Floats, as_scores, check_rate


@dataclass(frozen=True)
class Discoveries:
    """Which hypotheses are rejected, with adjusted p-values in the order given."""

    rejected: Bools
    adjusted: Floats
    level: float
    method: str

    @property
    def count(self) -> int:
        """Number of rejections."""
        return int(np.count_nonzero(self.rejected))


def _pvalues(values: Any) -> Floats:
    p = as_scores(values, "p-values")
    if not bool(((p >= 0.0) & (p <= 1.0)).all()):
        raise ConfigurationError("a p-value lies outside 0 to 1; give probabilities")
    return p


def benjamini_hochberg(pvalues: Any, fdr: float = 0.05, *, dependence: str = "positive") -> Discoveries:
    """Control of the false-discovery rate (Benjamini and Hochberg 1995).

    Valid for independent p-values and for conformal p-values that share their controls (Bates et al. 2023).

    Args:
        pvalues: shape (k,).
        fdr: level, strictly between 0 and 1.
        dependence: ``positive``, or ``any`` for Benjamini and Yekutieli's factor under arbitrary dependence.

    Returns:
        A Discoveries.

    Raises:
        ConfigurationError: p-values, level or dependence out of range.

    Example:
        >>> benjamini_hochberg([0.01, 0.04, 0.03, 0.9], 0.05).rejected.tolist()
        [True, False, False, False]
    """
    p, level = _pvalues(pvalues), check_rate(fdr, "fdr")
    if dependence not in ("positive", "any"):
        raise ConfigurationError(f"dependence is {dependence!r}; give 'positive' or 'any'")
    k = p.size
    factor = float(np.sum(1.0 / np.arange(1, k + 1))) if dependence == "any" else 1.0
    order = np.argsort(p, kind="stable")
    scaled = p[order] * (k * factor) / np.arange(1, k + 1)
    adjusted = np.empty(k)
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    name = "benjamini-hochberg" if dependence == "positive" else "benjamini-yekutieli"
    return Discoveries(adjusted <= level, adjusted, level, name)


def holm(pvalues: Any, alpha: float = 0.05) -> Discoveries:
    """Control of the family-wise error under any dependence (Holm 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03, 0.9]).rejected.tolist()
        [True, False, False, False]
    """
    p, level = _pvalues(pvalues), check_rate(alpha, "alpha")
    order = np.argsort(p, kind="stable")
    scaled = p[order] * (p.size - np.arange(p.size))
    adjusted = np.empty(p.size)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return Discoveries(adjusted <= level, adjusted, level, "holm")


def combine_pvalues(pvalues: Any, method: str = "twice-median") -> float:
    """One valid p-value from several of the same hypothesis, whatever their dependence.

    Args:
        pvalues: shape (k,), k >= 1.
        method: ``twice-median`` (Ruschendorf 1982: any dependence) or ``bonferroni`` (k times the smallest).

    Returns:
        A p-value, at most 1.

    Raises:
        ConfigurationError: no p-value, out of range, unknown method.

    Example:
        >>> combine_pvalues([0.01, 0.02, 0.5])
        0.04
    """
    p = _pvalues(pvalues)
    if p.size == 0:
        raise ConfigurationError("no p-values were given; give at least one")
    if method == "bonferroni":
        return min(1.0, float(p.min()) * p.size)
    if method != "twice-median":
        raise ConfigurationError(f"method is {method!r}; give 'twice-median' or 'bonferroni'")
    return min(
        1.0, 2.0 * float(np.sort(p)[p.size // 2])
    )  # the upper median: at least half of them lie at or below
