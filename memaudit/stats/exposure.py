"""Exposure of an inserted secret (Carlini et al. 2019, "The Secret Sharer"): how far up its rank among all others.

Lower perplexity (or loss) = more memorised. Exposure describes the memorisation of that secret; it is no epsilon.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import Floats, as_scores

MEAN_UNDER_NULL = 1.0 / math.log(2.0)
"""Mean strict exposure, in bits, of a secret that was never seen: log2(e), for many references."""


@dataclass(frozen=True)
class SkewNormalFit:
    """Skew-normal law fitted to reference perplexities, with the test of its fit.

    ``trusted`` is False when the Kolmogorov-Smirnov test rejects the fit at 1 %; the p-value is optimistic because
    the parameters were fitted to the same numbers, so a rejection is serious.
    """

    shape: float
    location: float
    scale: float
    ks_statistic: float
    ks_pvalue: float
    trusted: bool
    n_references: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary for a report."""
        return asdict(self)


def exposure_from_rank(space: float, rank: float) -> float:
    """Exposure in bits of a secret at ``rank`` (1 = most likely) in a space of ``space`` possible secrets.

    Example:
        >>> exposure_from_rank(1024, 1), exposure_from_rank(1024, 1024)
        (10.0, 0.0)
    """
    if not 1 <= rank <= space:
        raise ConfigurationError(f"rank {rank} in a space of {space}; give 1 <= rank <= space")
    return math.log2(space) - math.log2(rank)


def rank_exposure(perplexities: Any, references: Any) -> Floats:
    """Sampled exposure: log2 N - log2(1 + number of references at or below), as in the paper.

    Args:
        perplexities: of the secrets, shape (k,), lower = more memorised.
        references: of N other secrets drawn from the same space, shape (N,), N >= 1.

    Returns:
        Bits, shape (k,); from -log2(1 + 1/N) to log2 N.

    Raises:
        ConfigurationError: no references or NaN.

    Example:
        >>> rank_exposure([0.5, 2.0], [1.0, 2.0, 3.0, 4.0]).round(4).tolist()
        [2.0, 0.415]
    """
    values = as_scores(perplexities, "secret perplexities")
    ordered = np.sort(as_scores(references, "reference perplexities", minimum=1))
    rank = 1 + np.searchsorted(ordered, values, side="right")
    return np.asarray(math.log2(ordered.size) - np.log2(rank), dtype=np.float64)


def strict_exposure(perplexities: Any, references: Any) -> Floats:
    """Sampled exposure that is never negative: log2(N + 1) - log2(1 + number of references strictly below).

    For a secret that was never seen the rank is uniform, so 2^-exposure is a p-value when scores do not tie.

    Example:
        >>> strict_exposure([0.5, 2.0], [1.0, 2.0, 3.0]).tolist()
        [2.0, 1.0]
    """
    values = as_scores(perplexities, "secret perplexities")
    ordered = np.sort(as_scores(references, "reference perplexities", minimum=1))
    rank = 1 + np.searchsorted(ordered, values, side="left")
    return np.asarray(math.log2(ordered.size + 1) - np.log2(rank), dtype=np.float64)


def exposure_pvalues(perplexities: Any, references: Any) -> Floats:
    """p-value of each secret: (1 + number of references at or below)/(N + 1); a tie counts against the secret.

    Example:
        >>> exposure_pvalues([0.5, 2.0], [1.0, 2.0, 3.0]).tolist()
        [0.25, 0.75]
    """
    values = as_scores(perplexities, "secret perplexities")
    ordered = np.sort(as_scores(references, "reference perplexities", minimum=1))
    return np.asarray(
        (1 + np.searchsorted(ordered, values, side="right")) / (ordered.size + 1), dtype=np.float64
    )


def fit_skew_normal(references: Any) -> SkewNormalFit:
    """Fit a skew-normal law to reference perplexities by maximum likelihood and test the fit.

    Args:
        references: finite numbers, shape (N,), N >= 10 and not all equal.

    Returns:
        A SkewNormalFit.

    Raises:
        ConfigurationError: too few, equal or infinite references.

    Example:
        >>> import numpy as np
        >>> fit_skew_normal(60 + 5 * np.random.default_rng(0).standard_normal(500)).trusted
        True
    """
    from scipy import stats

    values = as_scores(references, "reference perplexities", minimum=10)
    if not np.isfinite(values).all() or float(np.ptp(values)) == 0.0:
        raise ConfigurationError(
            "reference perplexities are infinite or all equal; the skew-normal fit needs spread"
        )
    shape, location, scale = (float(x) for x in stats.skewnorm.fit(values))
    statistic, pvalue = stats.kstest(values, stats.skewnorm(shape, location, scale).cdf)
    return SkewNormalFit(
        shape, location, scale, float(statistic), float(pvalue), bool(pvalue >= 0.01), int(values.size)
    )


def extrapolated_exposure(perplexities: Any, fit: SkewNormalFit) -> Floats:
    """Exposure in bits by the fitted law: -log2 F(perplexity); an extrapolation beyond log2 N bits.

    Args:
        perplexities: of the secrets, shape (k,).
        fit: the law fitted to the references.

    Returns:
        Bits, shape (k,).

    Raises:
        ConfigurationError: NaN perplexities.

    Example:
        >>> law = SkewNormalFit(0.0, 0.0, 1.0, 0.0, 1.0, True, 100)
        >>> round(float(extrapolated_exposure([0.0], law)[0]), 6)
        1.0
    """
    from scipy import stats

    values = as_scores(perplexities, "secret perplexities")
    log_cdf = stats.skewnorm.logcdf(values, fit.shape, fit.location, fit.scale)
    # Where the library's tail runs out of digits the normal bound F <= 2 Phi(z) still gives a lower bound in bits.
    z = (values - fit.location) / fit.scale
    bound = math.log(2.0) + special.log_ndtr(z)
    log_cdf = np.where(np.isfinite(log_cdf), log_cdf, np.minimum(bound, 0.0))
    return np.asarray(-np.minimum(log_cdf, 0.0) / math.log(2.0), dtype=np.float64)
