"""memaudit audits fine-tunes of language models for memorisation, from inside the training loop.

The public names are imported when they are first used, so that ``import memaudit`` costs nothing and needs no
library that the caller does not use.

Example:
    >>> import memaudit
    >>> memaudit.Manifest.__name__
    'Manifest'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memaudit import errors
    from memaudit.injection import inject
    from memaudit.integrations.huggingface import MemorizationAuditCallback
    from memaudit.integrations.lightning import LightningMemorizationAudit
    from memaudit.integrations.loop import AuditLoop
    from memaudit.manifest import Canary, CanarySet, Manifest
    from memaudit.posthoc.attack import attack
    from memaudit.posthoc.live import run_audit
    from memaudit.sampling import generate_canaries
    from memaudit.session import AuditSession

__version__ = "0.1.0"

__all__ = [
    "AuditLoop",
    "AuditSession",
    "Canary",
    "CanarySet",
    "LightningMemorizationAudit",
    "Manifest",
    "MemorizationAuditCallback",
    "__version__",
    "attack",
    "errors",
    "generate_canaries",
    "inject",
    "run_audit",
]

_HOME = {
    "AuditLoop": "memaudit.integrations.loop",
    "AuditSession": "memaudit.session",
    "Canary": "memaudit.manifest",
    "CanarySet": "memaudit.manifest",
    "LightningMemorizationAudit": "memaudit.integrations.lightning",
    "Manifest": "memaudit.manifest",
    "MemorizationAuditCallback": "memaudit.integrations.huggingface",
    "attack": "memaudit.posthoc.attack",
    "generate_canaries": "memaudit.sampling",
    "inject": "memaudit.injection",
    "run_audit": "memaudit.posthoc.live",
}


def __getattr__(name: str) -> object:
    if name == "errors":
        return importlib.import_module("memaudit.errors")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'memaudit' has no attribute {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value  # the next use does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
