"""zlib: mean log-probability per byte of the compressed text (Carlini et al. 2021, arXiv 2012.07805)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from memaudit.attacks.base import Attack, Needs, UnscorableError, View


def compressed_size(text: str) -> int:
    """Return the number of bytes of the zlib-compressed UTF-8 text.

    Example:
        >>> compressed_size("a" * 1000) < 30
        True
    """
    return len(zlib.compress(text.encode("utf-8", "surrogatepass")))


@dataclass(frozen=True, kw_only=True)
class Zlib(Attack):
    """Mean log-probability divided by the bytes of the compressed text: loss corrected for easy texts."""

    name = "zlib"
    needs = Needs(text=True)
    source = "Carlini et al. 2021, arXiv 2012.07805"

    def score(self, view: View) -> float:
        if view.text is None:
            raise UnscorableError("no text")
        return float(view.signals.logprob.mean()) / compressed_size(view.text)
