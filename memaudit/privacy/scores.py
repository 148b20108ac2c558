"""Scores that know which canary each belongs to, so that no order of scoring can misalign an audit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError
from memaudit.stats.arrays import as_scores, has_repeats


def as_identifiers(values: Any, name: str) -> NDArray[np.int64]:
    """Return ``values`` as distinct integer identifiers, shape (n,).

    Example:
        >>> as_identifiers([3, 1], "canary_indices")
        array([3, 1])
    """
    if not isinstance(values, np.ndarray):
        values = list(values)
    array = np.asarray(values)
    if array.ndim != 1:
        raise ConfigurationError(f"{name} have shape {array.shape}; give a one-dimensional array of integers")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ConfigurationError(f"{name} are of type {array.dtype}; give integers")
    if has_repeats(array):
        raise ConfigurationError(f"{name} repeat an identifier; give every canary once")
    return array.astype(np.int64)


class CanaryScores:
    """Membership scores paired with the dataset index of each canary; immutable.

    Args:
        scores: shape (n,), higher = more member-like; infinities are allowed, NaN is not.
        canary_indices: dataset index behind each score, shape (n,), distinct integers.

    Raises:
        ConfigurationError: shapes that differ, NaN, identifiers that are no integers or repeat.

    Example:
        >>> scores = CanaryScores([0.5, 0.25], [7, 3])
        >>> len(scores), scores.canary_indices.tolist()
        (2, [7, 3])
    """

    __slots__ = ("canary_indices", "scores")
    scores: NDArray[np.float64]
    canary_indices: NDArray[np.int64]

    def __init__(self, scores: Any, canary_indices: Any) -> None:
        values = as_scores(_to_numpy(scores), "scores").copy()
        names = as_identifiers(_to_numpy(canary_indices), "canary_indices").copy()
        if values.size != names.size:
            raise ConfigurationError(
                f"{values.size} scores and {names.size} canary_indices; give one index per score"
            )
        values.flags.writeable = False
        names.flags.writeable = False
        object.__setattr__(self, "scores", values)
        object.__setattr__(self, "canary_indices", names)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("CanaryScores is immutable; make a new one with canary_scores")

    def __len__(self) -> int:
        return int(self.scores.size)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.scores, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, CanaryScores)
            and np.array_equal(self.scores, other.scores)
            and np.array_equal(self.canary_indices, other.canary_indices)
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return CanaryScores, (np.array(self.scores), np.array(self.canary_indices))

    def __repr__(self) -> str:
        return f"CanaryScores of {len(self)} canaries"

    def minus(self, reference: CanaryScores) -> CanaryScores:
        """Return these scores less the reference's, joined by identifier.

        Raises:
            ConfigurationError: the two cover different canaries, or an infinity less itself.
        """
        place = {int(name): index for index, name in enumerate(reference.canary_indices)}
        missing = [int(name) for name in self.canary_indices if int(name) not in place]
        if missing or len(reference) != len(self):
            raise ConfigurationError(
                f"reference_scores cover {len(reference)} canaries, the scores {len(self)}, {len(missing)} of them "
                "without a reference; score the same partition with the untrained model"
            )
        aligned = reference.scores[[place[int(name)] for name in self.canary_indices]]
        with np.errstate(invalid="ignore"):
            return CanaryScores(self.scores - aligned, self.canary_indices)


def canary_scores(scores: Any, *, canary_indices: Any) -> CanaryScores:
    """Attest which canary each externally computed score belongs to, in whatever order they were computed.

    Args:
        scores: membership scores, shape (n,), higher = more member-like.
        canary_indices: dataset index of the canary behind each score, shape (n,).

    Returns:
        A CanaryScores, the form that :func:`memaudit.privacy.one_run` requires.

    Raises:
        ConfigurationError: shapes that differ, NaN, identifiers that are no integers or repeat.

    Example:
        >>> canary_scores([0.1, 0.2], canary_indices=[5, 9])
        CanaryScores of 2 canaries
    """
    return CanaryScores(scores, canary_indices)


def _to_numpy(values: Any) -> Any:
    """Tensors to numpy without importing torch here."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        if str(getattr(values, "dtype", "")) == "torch.bfloat16":
            values = values.float()
        return values.numpy()
    return values
