"""wbc: the share of windows of tokens that the target finds likelier than the reference does (2025)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memaudit.attacks.base import Needs, ReferenceAttack, UnscorableError, View

WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)


def window_share(
    target: NDArray[np.float64], reference: NDArray[np.float64], windows: tuple[int, ...] = WINDOWS
) -> float:
    """Return the mean over window sizes of the share of windows where the reference's summed loss is larger.

    Args:
        target: log-probabilities, shape (n,).
        reference: log-probabilities, shape (n,).
        windows: sizes in tokens; one longer than the text is the whole text.

    Example:
        >>> window_share(np.array([-1.0, -1.0, -1.0]), np.array([-2.0, -2.0, 0.5]), (1, 2))
        0.5833...
    """
    n = len(target)
    shares = []
    for size in windows:
        width = min(size, n)
        # Summed window by window: differences of running sums would lose ties to rounding.
        t = np.lib.stride_tricks.sliding_window_view(target, width).sum(axis=1)
        r = np.lib.stride_tricks.sliding_window_view(reference, width).sum(axis=1)
        shares.append(float((t > r).mean()))
    return float(np.mean(shares))


@dataclass(frozen=True, kw_only=True)
class WBC(ReferenceAttack):
    """Window-based comparison of target and reference.

    Args:
        windows: window sizes in tokens, each at least 1.
    """

    windows: tuple[int, ...] = WINDOWS

    name = "wbc"
    needs = Needs(reference=True)
    source = "window-based comparison, 2025"

    def __post_init__(self) -> None:
        object.__setattr__(self, "windows", tuple(self.windows))
        self._check(bool(self.windows) and min(self.windows) >= 1, "windows must be sizes of at least 1")

    def score(self, view: View) -> float:
        target, reference = view.signals.logprob, view.reference_signals.logprob
        if len(target) != len(reference):
            raise UnscorableError("target and reference scored different tokens")
        return window_share(target, reference, self.windows)
