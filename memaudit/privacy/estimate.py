"""A one-run audit: scores joined to coins, and every privacy quantity that can be read from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError, InputTypeError
from memaudit.privacy.coins import CoinFlip, _root_seed
from memaudit.privacy.scores import CanaryScores
from memaudit.stats import bounds
from memaudit.stats.arrays import as_coins, as_scores
from memaudit.stats.bounds import Evidence
from memaudit.stats.claims import Bound
from memaudit.stats.guesses import Pair, ranking
from memaudit.stats.randomization import RandomizationResult, randomization_test
from memaudit.stats.roc import RocCurve, auc, bootstrap_auc_interval, delong_interval, roc_curve

Pairs = Sequence[Pair]


@dataclass(frozen=True)
class EpsDeltaMethod:
    """Bounds along the (epsilon, delta) boundary, for any mechanism.

    ``method="steinke"`` is certified; ``"xiang"`` is model-based (independent canary channels).
    """

    evidence: Evidence = field(repr=False)
    method: str = "steinke"

    def epsilon_at(
        self,
        *,
        delta: float = 0.0,
        significance: float = 0.05,
        threshold: float | None = None,
        guesses: Pairs | None = None,
    ) -> Bound:
        """Largest epsilon that is rejected at ``delta``."""
        return bounds.epsilon_bound(
            self.evidence, delta, significance, method=self.method, pairs=guesses, threshold=threshold
        )

    def delta_at(
        self,
        *,
        epsilon: float,
        significance: float = 0.05,
        threshold: float | None = None,
        guesses: Pairs | None = None,
    ) -> Bound:
        """Largest delta that is rejected at ``epsilon``; 0 when epsilon is out of reach even at delta 0."""
        return bounds.delta_bound(
            self.evidence, epsilon, significance, method=self.method, pairs=guesses, threshold=threshold
        )


@dataclass(frozen=True)
class GdpMethod:
    """Bounds under mu-Gaussian differential privacy, all from one lower bound on mu.

    ``method="mahloujifar"`` is certified for that family; ``"xiang"`` is model-based. ``grid_size`` is kept for
    callers of other libraries: nothing here is integrated on a grid, so it changes nothing.
    """

    evidence: Evidence = field(repr=False)
    method: str = "mahloujifar"
    grid_size: int = 10_000

    def mu(
        self, *, significance: float = 0.05, threshold: float | None = None, guesses: Pairs | None = None
    ) -> Bound:
        """Largest mu that is rejected."""
        return bounds.mu_bound(
            self.evidence, significance, method=self.method, pairs=guesses, threshold=threshold
        )

    def epsilon_at(
        self,
        *,
        delta: float,
        significance: float = 0.05,
        threshold: float | None = None,
        guesses: Pairs | None = None,
    ) -> Bound:
        """Epsilon at ``delta`` > 0 of the Gaussian mechanism at the lower bound on mu."""
        return bounds.epsilon_bound(
            self.evidence,
            delta,
            significance,
            method=self.method,
            family="gdp",
            pairs=guesses,
            threshold=threshold,
        )

    def delta_at(
        self,
        *,
        epsilon: float,
        significance: float = 0.05,
        threshold: float | None = None,
        guesses: Pairs | None = None,
    ) -> Bound:
        """Delta at ``epsilon`` of the Gaussian mechanism at the lower bound on mu."""
        return bounds.delta_bound(
            self.evidence,
            epsilon,
            significance,
            method=self.method,
            family="gdp",
            pairs=guesses,
            threshold=threshold,
        )

    def beta_at(
        self,
        *,
        alpha: float,
        significance: float = 0.05,
        threshold: float | None = None,
        guesses: Pairs | None = None,
    ) -> Bound:
        """Upper bound on the trade-off function at type-I error ``alpha``."""
        return bounds.beta_bound(
            self.evidence, alpha, significance, method=self.method, pairs=guesses, threshold=threshold
        )

    def advantage(
        self, *, significance: float = 0.05, threshold: float | None = None, guesses: Pairs | None = None
    ) -> Bound:
        """Lower bound on the total variation, the largest TPR - FPR of any attack."""
        return bounds.advantage_bound(
            self.evidence, significance, method=self.method, pairs=guesses, threshold=threshold
        )


@dataclass(frozen=True, eq=False)
class OneRunEstimate:
    """What one run says about privacy; made by :func:`one_run`.

    Each bound is a float whose repr is a sentence and whose ``to_dict`` goes into a report. The default guesses
    are pre-registered pairs that share the significance: eight (``stats.guesses.FRACTIONS``) for the bounds on
    epsilon, three (``GAUSSIAN_FRACTIONS``) for those on mu, and a guess on every canary for ``xiang``. Pass
    ``guesses=[(k_plus, k_minus)]`` for pairs that were fixed beforehand. A bound near 0 is no evidence of privacy.

    Example:
        >>> from memaudit.privacy import canary_scores, coin_flip, one_run
        >>> flip = coin_flip(range(1000), num_canaries=400, key=1)
        >>> values = flip.included + 0.5 * np.random.default_rng(0).standard_normal(400)
        >>> estimate = one_run(canary_scores(values, canary_indices=flip.canary_indices), coin_flip=flip)
        >>> bound = estimate.epsilon_at(delta=1e-5)
        >>> bound.guarantee, 1.0 < bound < bound.ceiling
        ('certified', True)
    """

    scores: NDArray[np.float64] = field(repr=False)
    included: NDArray[np.bool_] = field(repr=False)
    canary_indices: NDArray[Any] = field(repr=False)
    evidence: Evidence = field(repr=False)

    @property
    def m(self) -> int:
        """Number of canaries."""
        return int(self.included.size)

    @property
    def n_in(self) -> int:
        """Number of canaries that were included."""
        return int(np.count_nonzero(self.included))

    @property
    def n_out(self) -> int:
        """Number of canaries that were left out."""
        return self.m - self.n_in

    def __repr__(self) -> str:
        return f"OneRunEstimate of {self.m} canaries: {self.n_in} in, {self.n_out} out"

    def eps_delta(self, *, method: str = "certified") -> EpsDeltaMethod:
        """Return the bounds that hold for any mechanism; ``method="xiang"`` for the model-based ones."""
        return EpsDeltaMethod(self.evidence, _method(method, "steinke"))

    def gdp(self, *, grid_size: int = 10_000, method: str = "certified") -> GdpMethod:
        """Return the bounds under mu-GDP; ``method="xiang"`` for the model-based ones.

        Raises:
            ConfigurationError: ``grid_size`` below 1000, or an unknown method.
        """
        if grid_size < 1000:
            raise ConfigurationError(f"grid_size is {grid_size}; give at least 1000")
        return GdpMethod(self.evidence, _method(method, "mahloujifar"), int(grid_size))

    def epsilon_at(
        self,
        *,
        delta: float,
        significance: float = 0.05,
        threshold: float | None = None,
        method: str = "certified",
        guesses: Pairs | None = None,
    ) -> Bound:
        """Lower bound on epsilon at ``delta``.

        Args:
            delta: from 0 to 1.
            significance: probability that the bound exceeds the truth.
            threshold: a score fixed beforehand; IN at or above it, OUT below.
            method: ``certified`` (Steinke et al. 2023: any mechanism), ``mahloujifar`` (certified for mu-GDP,
                delta > 0) or ``xiang`` (model-based: independent channels, Gaussian when delta > 0).
            guesses: pairs (k_plus, k_minus) fixed beforehand.

        Returns:
            A Bound.

        Raises:
            ConfigurationError: parameters out of range.
        """
        chosen = _method(method, "steinke", "mahloujifar")
        if chosen == "mahloujifar" or (chosen == "xiang" and delta > 0.0):
            family = GdpMethod(self.evidence, chosen)
            return family.epsilon_at(
                delta=delta, significance=significance, threshold=threshold, guesses=guesses
            )
        return EpsDeltaMethod(self.evidence, chosen).epsilon_at(
            delta=delta, significance=significance, threshold=threshold, guesses=guesses
        )

    def delta_at(
        self,
        *,
        epsilon: float,
        significance: float = 0.05,
        threshold: float | None = None,
        method: str = "certified",
        guesses: Pairs | None = None,
    ) -> Bound:
        """Lower bound on delta at ``epsilon``; methods as in :meth:`epsilon_at`."""
        chosen = _method(method, "steinke", "mahloujifar")
        if chosen == "steinke":
            return self.eps_delta().delta_at(
                epsilon=epsilon, significance=significance, threshold=threshold, guesses=guesses
            )
        return GdpMethod(self.evidence, chosen).delta_at(
            epsilon=epsilon, significance=significance, threshold=threshold, guesses=guesses
        )

    def beta_at(
        self,
        *,
        alpha: float,
        significance: float = 0.05,
        threshold: float | None = None,
        method: str = "certified",
        guesses: Pairs | None = None,
    ) -> Bound:
        """Upper bound on the trade-off function at ``alpha`` under mu-GDP; for the attack's own see attack_beta_at."""
        return self.gdp(method=method).beta_at(
            alpha=alpha, significance=significance, threshold=threshold, guesses=guesses
        )

    def advantage(
        self,
        *,
        significance: float = 0.05,
        threshold: float | None = None,
        method: str = "certified",
        guesses: Pairs | None = None,
    ) -> Bound:
        """Lower bound on the total variation under mu-GDP."""
        return self.gdp(method=method).advantage(
            significance=significance, threshold=threshold, guesses=guesses
        )

    def attack_auc(
        self,
        *,
        confidence: float | None = None,
        num_samples: int = 1000,
        key: int | np.random.Generator | None = None,
    ) -> float | tuple[float, float]:
        """AUC of the attack, descriptive; with ``confidence`` its interval.

        Args:
            confidence: None for the AUC alone.
            num_samples: resamples of the bootstrap, at least 100.
            key: seed of the bootstrap; None gives DeLong's interval, which draws nothing.

        Returns:
            The AUC, or (lower, upper).

        Raises:
            ConfigurationError: all canaries in or all out, so that there is nothing to compare.
        """
        members, others = self._sides()
        if confidence is None:
            return auc(members, others)
        if key is None:
            return delong_interval(members, others, confidence)
        return bootstrap_auc_interval(
            members, others, confidence, resamples=num_samples, seed=_root_seed(key)
        )

    def attack_beta_at(self, *, alpha: float | Any) -> float | NDArray[np.float64]:
        """Empirical type-II error of the attack at false-positive rate ``alpha``: 1 - TPR, interpolated on the ROC.

        Raises:
            ConfigurationError: rates outside 0 to 1, all canaries in or all out.
        """
        wanted = np.asarray(alpha, dtype=np.float64)
        if not bool(((wanted >= 0.0) & (wanted <= 1.0)).all()):
            raise ConfigurationError("alpha leaves 0 to 1; give false-positive rates")
        curve = roc_curve(*self._sides())
        beta = 1.0 - _interpolate(curve, wanted)
        return float(beta) if wanted.ndim == 0 else beta

    def randomization(self, *, draws: int = 9999, key: int | np.random.Generator = 0) -> RandomizationResult:
        """Randomisation test that the scores do not depend on the coins: the strongest claim of detection."""
        return randomization_test(self.scores, self.included, draws, _root_seed(key))

    def _sides(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self.n_in == 0 or self.n_out == 0:
            raise ConfigurationError(
                f"{self.n_in} canaries in and {self.n_out} out; an ROC needs both, use more canaries"
            )
        return self.scores[self.included], self.scores[~self.included]


def _interpolate(curve: RocCurve, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """TPR at the wanted rates: the largest one at a rate that the curve has, linear between rates."""
    left = np.searchsorted(curve.fpr, wanted, side="right") - 1
    right = np.minimum(left + 1, curve.fpr.size - 1)
    gap = curve.fpr[right] - curve.fpr[left]
    share = np.where(gap > 0.0, (wanted - curve.fpr[left]) / np.where(gap > 0.0, gap, 1.0), 0.0)
    return np.asarray(curve.tpr[left] + share * (curve.tpr[right] - curve.tpr[left]), dtype=np.float64)


def _method(name: str, certified: str, *others: str) -> str:
    if name == "certified":
        return certified
    known = (certified, *others, "xiang")
    if name not in known:
        raise ConfigurationError(f"method is {name!r}; give 'certified', {', '.join(map(repr, known))}")
    return name


def make_estimate(scores: Any, included: Any, ids: Any = None, *, probability: float = 0.5) -> OneRunEstimate:
    """Build a OneRunEstimate from scores, coins and ids in one order; :func:`one_run` joins by id first.

    Raises:
        ConfigurationError: no canary, NaN scores, or coins of a probability other than 1/2.
    """
    values, coins = as_scores(scores, "scores", minimum=1).copy(), as_coins(included).copy()
    if values.size != coins.size:
        raise ConfigurationError(f"{values.size} scores and {coins.size} coins; give one coin per score")
    if probability != 0.5:
        raise ConfigurationError(
            f"coins of probability {probability:g}; the one-run theorems hold for fair coins (1/2) alone, "
            "draw fair coins, or use randomization_test with your own design"
        )
    names = np.arange(values.size) if ids is None else np.array(ids)
    order = ranking(values, names)
    for array in (values, coins, names, order):
        array.flags.writeable = False
    return OneRunEstimate(values, coins, names, Evidence(order, values, coins))


def one_run(scores: CanaryScores, *, coin_flip: CoinFlip) -> OneRunEstimate:
    """Join scores to the partition by canary and return what they say about privacy.

    Args:
        scores: one score per canary of the partition, in any order.
        coin_flip: the partition that training used.

    Returns:
        A OneRunEstimate.

    Raises:
        InputTypeError: bare scores, or something that is no CoinFlip.
        ConfigurationError: canaries and scores that do not match one to one, no canary, coins that are not fair.

    Example:
        >>> from memaudit.privacy import canary_scores, coin_flip
        >>> flip = coin_flip(range(50), num_canaries=20, key=3)
        >>> one_run(canary_scores([0.0] * 20, canary_indices=flip.canary_indices), coin_flip=flip).m
        20
    """
    if not isinstance(coin_flip, CoinFlip):
        raise InputTypeError(
            f"coin_flip is of type {type(coin_flip).__name__}; give the CoinFlip of the partition"
        )
    return make_estimate(
        coin_flip.align(scores),
        coin_flip.included,
        coin_flip.canary_indices,
        probability=coin_flip.probability,
    )
