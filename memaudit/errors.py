"""Every error that memaudit expects: one base class, so that a caller and the CLI can tell them from bugs.

A message says what was given, what was expected and what to do next. It never holds a secret's text.
"""

from __future__ import annotations


class MemauditError(Exception):
    """Base of every expected error; the CLI prints it in one line and exits with ``exit_code``.

    Example:
        >>> issubclass(ManifestError, MemauditError)
        True
    """

    exit_code: int = 2


class ConfigurationError(MemauditError, ValueError):
    """A value, option or combination of them that cannot be used."""


class InputTypeError(MemauditError, TypeError):
    """An argument of the wrong type, for example a bare array where identified scores are needed."""


class MissingExtraError(MemauditError, ImportError):
    """An optional library is missing; the message names the extra to install."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {library}, which is not installed; run: pip install 'memaudit[{extra}]'"
        )
        self.library = library
        self.extra = extra


class ManifestError(MemauditError):
    """A manifest or canary set that is missing, damaged, of a newer version or of another tokenizer."""


class InjectionError(MemauditError):
    """A dataset in which the canaries cannot be planted."""


class PreflightError(MemauditError):
    """A training set-up under which the audit would silently measure nothing."""


class StrategyError(MemauditError):
    """A model or trainer for which no strategy fits, or that a strategy cannot serve."""


class AuditError(MemauditError):
    """A failure while scoring; names the rank and the record's id."""


class ReferenceModeError(AuditError):
    """A reference that was asked for and cannot be taken."""


class SignalStoreError(MemauditError):
    """A signal store that cannot be read or written."""


class ReportError(MemauditError):
    """A report that is missing, damaged, of another schema or that lacks what was asked of it."""


class CheckpointError(MemauditError):
    """A checkpoint that cannot be read, or that does not fit its configuration."""
