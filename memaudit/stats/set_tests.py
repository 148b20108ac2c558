"""Was this set trained on? Tests between two sets of scores, with a blind baseline and dataset inference.

All assume that the suspect and the held-out records come from one distribution. Where they do not, a test measures
the shift between them: :func:`blind_baseline` tries to tell the sets apart without the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import special

from memaudit.errors import ConfigurationError
from memaudit.seeds import generator
from memaudit.stats.arrays import Floats, as_scores
from memaudit.stats.multiple import combine_pvalues
from memaudit.stats.roc import auc

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class SetTest:
    """One test of two sets: statistic, p-value, sizes; ``alternative`` is what a small p-value speaks for."""

    method: str
    statistic: float
    pvalue: float
    n_suspect: int
    n_heldout: int
    alternative: str = "suspect scores are higher"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary for a report."""
        return asdict(self)


def mann_whitney(suspect: Any, heldout: Any) -> SetTest:
    """Rank test that suspect scores are higher (Mann and Whitney 1947), with ties and continuity corrected.

    Args:
        suspect: scores, shape (n1,), n1 >= 1.
        heldout: scores of records known not to be trained on, shape (n0,), n0 >= 1.

    Returns:
        A SetTest; the statistic is U, n1 n0 times the AUC. Equal scores everywhere give p = 1.

    Raises:
        ConfigurationError: an empty side or NaN scores.

    Example:
        >>> mann_whitney([3.0, 4.0, 5.0], [0.0, 1.0, 2.0]).statistic
        9.0
    """
    p = as_scores(suspect, "suspect scores", minimum=1)
    n = as_scores(heldout, "held-out scores", minimum=1)
    u = auc(p, n) * p.size * n.size
    total = p.size + n.size
    counts = np.unique(np.concatenate([p, n]), return_counts=True)[1].astype(np.float64)
    tied = float(np.sum(counts**3 - counts)) / (total * (total - 1.0))
    variance = p.size * n.size / 12.0 * (total + 1.0 - tied)
    if variance <= 0.0:
        return SetTest("mann-whitney", u, 1.0, p.size, n.size)
    z = (u - p.size * n.size / 2.0 - 0.5) / math.sqrt(variance)
    return SetTest("mann-whitney", u, float(special.ndtr(-z)), p.size, n.size)


def permutation_test(suspect: Any, heldout: Any, draws: int = 9999, seed: int = 0) -> SetTest:
    """Permutation test that the mean suspect score is higher; exact under exchangeability, p = (1 + hits)/(draws + 1).

    Example:
        >>> permutation_test([5.0, 6.0, 7.0, 8.0], [0.0, 1.0, 2.0, 3.0], draws=999).pvalue < 0.05
        True
    """
    p = as_scores(suspect, "suspect scores", minimum=1)
    n = as_scores(heldout, "held-out scores", minimum=1)
    pooled = np.concatenate([p, n])
    if not np.isfinite(pooled).all():
        raise ConfigurationError("scores hold infinities, which have no mean; use mann_whitney")
    if draws < 1:
        raise ConfigurationError(f"draws is {draws}; give at least 1")
    rng = generator(seed, "permutation-test")
    observed = float(p.sum())
    # Sums of the same numbers in another order may differ in the last digits: those count as equal.
    slack = 1e-12 * float(np.abs(pooled).sum())
    hits = sum(float(rng.permutation(pooled)[: p.size].sum()) >= observed - slack for _ in range(draws))
    return SetTest("permutation", float(p.mean() - n.mean()), (1 + hits) / (draws + 1), p.size, n.size)


def welch(suspect: Any, heldout: Any) -> SetTest:
    """One-sided t test with unequal variances (Welch 1947) that the mean suspect score is higher; asymptotic.

    Example:
        >>> round(welch([1.0, 2.0, 3.0], [0.0, 1.0, 2.0]).statistic, 4)
        1.2247
    """
    p = as_scores(suspect, "suspect scores", minimum=2)
    n = as_scores(heldout, "held-out scores", minimum=2)
    if not (np.isfinite(p).all() and np.isfinite(n).all()):
        raise ConfigurationError("scores hold infinities, which have no mean; use mann_whitney")
    sp, sn = float(p.var(ddof=1)) / p.size, float(n.var(ddof=1)) / n.size
    gap = float(p.mean() - n.mean())
    if sp + sn <= 0.0:
        # Constant scores on both sides carry no estimate of their noise: claim nothing.
        return SetTest("welch", 0.0 if gap == 0.0 else math.copysign(math.inf, gap), 1.0, p.size, n.size)
    t = gap / math.sqrt(sp + sn)
    freedom = (sp + sn) ** 2 / (sp * sp / (p.size - 1) + sn * sn / (n.size - 1))
    return SetTest("welch", t, float(special.stdtr(freedom, -t)), p.size, n.size)


def kolmogorov_smirnov(suspect: Any, heldout: Any) -> SetTest:
    """Two-sample test that the score distributions differ at all (Kolmogorov and Smirnov).

    Example:
        >>> kolmogorov_smirnov([1.0, 2.0], [3.0, 4.0]).statistic
        1.0
    """
    from scipy import stats

    p = as_scores(suspect, "suspect scores", minimum=1)
    n = as_scores(heldout, "held-out scores", minimum=1)
    found = stats.ks_2samp(p, n)
    return SetTest(
        "kolmogorov-smirnov",
        float(found.statistic),
        float(found.pvalue),
        p.size,
        n.size,
        "distributions differ",
    )


def sign_test(differences: Any) -> SetTest:
    """Exact sign test that differences (for example loss under the reference minus loss now) lie above zero.

    Example:
        >>> sign_test([1.0, 2.0, 0.5, 0.0]).pvalue
        0.125
    """
    values = as_scores(differences, "differences")
    above_zero, below_zero = int(np.sum(values > 0)), int(np.sum(values < 0))
    n = above_zero + below_zero
    pvalue = float(special.betainc(above_zero, n - above_zero + 1, 0.5)) if above_zero else 1.0
    return SetTest("sign", float(above_zero), pvalue, n, 0, "differences lie above zero")


def paired_t(differences: Any) -> SetTest:
    """One-sided t test that the mean difference lies above zero; asymptotic.

    Example:
        >>> round(paired_t([1.0, 2.0, 3.0]).statistic, 4)
        3.4641
    """
    values = as_scores(differences, "differences", minimum=2)
    if not np.isfinite(values).all():
        raise ConfigurationError("differences hold infinities, which have no mean; use sign_test")
    spread = float(values.std(ddof=1)) / math.sqrt(values.size)
    if spread == 0.0:
        return SetTest("paired-t", 0.0, 1.0, values.size, 0, "differences lie above zero")
    t = float(values.mean()) / spread
    return SetTest(
        "paired-t", t, float(special.stdtr(values.size - 1, -t)), values.size, 0, "differences lie above zero"
    )


@dataclass(frozen=True)
class CrossFitted:
    """Outcome of a classifier that was fitted on one part of both sets and judged on the other, over several splits.

    ``pvalue`` combines the splits by twice their median, which is valid however they depend on each other.
    """

    method: str
    auc: float
    pvalue: float
    split_pvalues: tuple[float, ...]
    n_suspect: int
    n_heldout: int
    assumption: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain dictionary for a report."""
        return asdict(self)


def dataset_inference(
    suspect: Any, heldout: Any, *, splits: int = 11, seed: int = 0, ridge: float = 1.0
) -> CrossFitted:
    """Dataset inference (Maini et al. 2024) by cross-fitting: learn to weigh many scores on A, test on B.

    A ridge-regularised linear aggregator is fitted on a random half of both sets; on the other half a one-sided
    Welch test compares the aggregated scores. Splits are combined by twice the median p-value, never by picking.

    Args:
        suspect: features (membership scores) of the suspect records, shape (n1, d), n1 >= 8.
        heldout: the same features of held-out records of the same distribution, shape (n0, d), n0 >= 8.
        splits: number of random halvings.
        seed: root seed of the halvings.
        ridge: penalty, in units of the standardised features.

    Returns:
        A CrossFitted: mean AUC on the halves not fitted on, and the combined p-value.

    Raises:
        ConfigurationError: shapes that do not fit, NaN, too few records.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> shifted = rng.standard_normal((60, 3)) + 1.0
        >>> dataset_inference(shifted, rng.standard_normal((60, 3))).pvalue < 0.01
        True
    """
    return _cross_fit(
        _matrix(suspect, "suspect"),
        _matrix(heldout, "held-out"),
        splits,
        seed,
        ridge,
        "dataset-inference",
        "suspect and held-out records come from one distribution",
    )


def blind_baseline(
    suspect: Any, heldout: Any, *, splits: int = 11, seed: int = 0, ridge: float = 10.0, width: int = 512
) -> CrossFitted:
    """Try to tell the two sets apart without the model; success means a shift, and membership tests are then void.

    Args:
        suspect: texts, or features computed without the model, shape (n1, d); n1 >= 8.
        heldout: the same of the held-out records, n0 >= 8.
        splits: number of random halvings.
        seed: root seed of the halvings.
        ridge: penalty of the classifier.
        width: number of hashed word counts per text.

    Returns:
        A CrossFitted; a small p-value says that the sets differ in their contents.

    Raises:
        ConfigurationError: too few records, shapes that do not fit.

    Example:
        >>> found = blind_baseline(["the year is 2024"] * 20, ["the year is 1999"] * 20)
        >>> found.auc
        1.0
    """
    left = _words(suspect, width) if _is_text(suspect) else _matrix(suspect, "suspect")
    right = _words(heldout, width) if _is_text(heldout) else _matrix(heldout, "held-out")
    return _cross_fit(
        left, right, splits, seed, ridge, "blind-baseline", "none; it looks for a shift between the two sets"
    )


def _is_text(records: Any) -> bool:
    return isinstance(records, Sequence) and len(records) > 0 and isinstance(records[0], str)


def _words(texts: Sequence[str], width: int) -> Matrix:
    counts = np.zeros((len(texts), width))
    for row, text in enumerate(texts):
        for word in text.lower().split():
            counts[row, crc32(word.encode()) % width] += 1.0
    return np.log1p(counts)


def _matrix(values: Any, name: str) -> Matrix:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name} features are not numbers; give an array of shape (records, d)"
        ) from error
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or not np.isfinite(array).all():
        raise ConfigurationError(
            f"{name} features have shape {array.shape} or are not finite; give (records, d)"
        )
    return array


def _cross_fit(
    suspect: Matrix, heldout: Matrix, splits: int, seed: int, ridge: float, method: str, assumption: str
) -> CrossFitted:
    if suspect.shape[1] != heldout.shape[1]:
        raise ConfigurationError(
            f"{suspect.shape[1]} and {heldout.shape[1]} features; give the same on both sides"
        )
    if min(len(suspect), len(heldout)) < 8 or splits < 1:
        raise ConfigurationError(
            f"{len(suspect)} suspect and {len(heldout)} held-out records, {splits} splits; give 8, 8 and 1 at least"
        )
    rng = generator(seed, method)
    areas, pvalues = [], []
    for _ in range(splits):
        p, n = rng.permutation(len(suspect)), rng.permutation(len(heldout))
        half_p, half_n = len(p) // 2, len(n) // 2
        weights = _fit(suspect[p[:half_p]], heldout[n[:half_n]], ridge)
        score_p, score_n = suspect[p[half_p:]] @ weights, heldout[n[half_n:]] @ weights
        areas.append(auc(score_p, score_n))
        separated = float(np.ptp(score_p)) == 0.0 and float(np.ptp(score_n)) == 0.0
        test = mann_whitney(score_p, score_n) if separated else welch(score_p, score_n)
        pvalues.append(test.pvalue)
    return CrossFitted(
        method,
        float(np.mean(areas)),
        combine_pvalues(pvalues),
        tuple(pvalues),
        len(suspect),
        len(heldout),
        assumption,
    )


def _fit(suspect: Matrix, heldout: Matrix, ridge: float) -> Floats:
    """Weights of a ridge regression on the label, both sets weighing the same, in the units of the features."""
    pooled = np.concatenate([suspect, heldout])
    centre = 0.5 * (suspect.mean(axis=0) + heldout.mean(axis=0))
    scale = pooled.std(axis=0)
    used = scale > 0.0
    safe = np.where(used, scale, 1.0)
    x = np.where(used, (pooled - centre) / safe, 0.0)
    target = np.concatenate([np.ones(len(suspect)), -np.ones(len(heldout))])
    weight = np.concatenate(
        [np.full(len(suspect), 0.5 / len(suspect)), np.full(len(heldout), 0.5 / len(heldout))]
    )
    gram = (x * weight[:, None]).T @ x + ridge / len(pooled) * np.eye(x.shape[1])
    solution = np.linalg.solve(gram, (x * weight[:, None]).T @ target)
    return np.asarray(np.where(used, solution / safe, 0.0), dtype=np.float64)
