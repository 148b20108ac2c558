"""Seeds for every random choice, derived from one root seed and a name, so that no draw depends on another."""

from __future__ import annotations

import hashlib

import numpy as np


def derive_seed(root: int, *names: str | int) -> int:
    """Return the seed of the random choice called ``names`` under the root seed.

    Args:
        root: the run's root seed, any integer.
        names: what the choice is for, for example ``("coin", canary_id)``.

    Returns:
        A non-negative integer below 2**63, the same on every machine.

    Example:
        >>> derive_seed(0, "coins") == derive_seed(0, "coins")
        True
        >>> derive_seed(0, "coins") == derive_seed(0, "shuffle")
        False
    """
    text = "\x1f".join([str(int(root)), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(root: int, *names: str | int) -> np.random.Generator:
    """Return a numpy Generator for the random choice called ``names`` under the root seed.

    Example:
        >>> bool(generator(1, "a").random() == generator(1, "a").random())
        True
    """
    return np.random.default_rng(derive_seed(root, *names))
