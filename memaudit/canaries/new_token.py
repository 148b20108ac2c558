"""Family ``new_token``: refused, with the reason."""

from __future__ import annotations

from memaudit.canaries.registry import Draw, Request
from memaudit.errors import PreflightError

REASON = (
    "the family new_token is refused: new tokens need new embedding rows, which an adapter with frozen embeddings "
    "never trains, so the audit would measure noise; memaudit never resizes a vocabulary. "
    "Choose high_ppl, which uses regular tokens"
)


def draw(request: Request) -> list[Draw]:
    """Raise.

    Raises:
        PreflightError: always; its message says why.
    """
    raise PreflightError(REASON)
