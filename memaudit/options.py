"""AuditOptions: what a user may choose about an audit, the same in every integration and on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from memaudit.errors import ConfigurationError
from memaudit.schedule import StopWhen, stop_rule
from memaudit.signals import Decoding

OnError = Literal["raise", "warn"]
RELEASE_CONTEXTS = ("unspecified", "public-api", "internal", "open-weights")

DEFAULT_ATTACKS = ("loss", "zlib", "mink", "minkpp", "ref", "ratio", "ref_minkpp", "wbc")


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditOptions:
    """Choices about one audit.

    Args:
        ref: "auto", "adapter", "initial", "none", or the path of a base checkpoint.
        attacks: names of membership attacks beside the headline's; "gradnorm" adds a backward per canary.
        target_fpr: the false-positive rate at which detection is reported.
        profile: "smoke", "routine", "powered", or None to take the manifest's.
        prefix_fractions: shares of the secret after which its rest is asked for.
        decodings: sampling schemes for probabilistic extraction.
        skip_generation: leave near-verbatim matches out; verbatim ones come from the scoring forward anyway.
        real_sample: how many of the user's own records are scored beside the canaries.
        release_context: how the model will be exposed, as its owner declares it.
        seeds: seeds of the audit procedure's own randomness; more than one adds a stability part.
        on_error: "raise" ends training with a failed audit's error, after training state is restored;
            "warn" reports it and lets training go on.
        stop_when: a rule such as "ci_low > 0.05", or a callable, that ends training.
        max_length: tokens of a record that training keeps; a longer canary is an error.
        max_batch_size, max_batch_tokens: limits of one forward.
        failure_timeout: seconds after another rank's failure at which a stuck rank ends itself.

    Raises:
        ConfigurationError: a value is out of range.

    Example:
        >>> AuditOptions(target_fpr=0.05).ref
        'auto'
    """

    ref: str = "auto"
    attacks: tuple[str, ...] = DEFAULT_ATTACKS
    target_fpr: float = 0.01
    profile: str | None = None
    prefix_fractions: tuple[float, ...] = (0.25, 0.5)
    decodings: tuple[Decoding, ...] = (Decoding(), Decoding(temperature=1.0, top_k=40))
    skip_generation: bool = False
    real_sample: int = 64
    release_context: str = "unspecified"
    seeds: tuple[int, ...] = (0,)
    on_error: OnError = "raise"
    stop_when: StopWhen = None
    max_length: int | None = None
    max_batch_size: int = 32
    max_batch_tokens: int = 8192
    failure_timeout: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.target_fpr < 1:
            raise ConfigurationError(
                f"target_fpr={self.target_fpr}; give a rate between 0 and 1, for example 0.01"
            )
        if self.on_error not in ("raise", "warn"):
            raise ConfigurationError(f"on_error={self.on_error!r}; give 'raise' or 'warn'")
        if self.release_context not in RELEASE_CONTEXTS:
            raise ConfigurationError(
                f"release_context={self.release_context!r}; give one of {', '.join(RELEASE_CONTEXTS)}"
            )
        if not self.prefix_fractions or not all(0 < f < 1 for f in self.prefix_fractions):
            raise ConfigurationError(f"prefix_fractions={self.prefix_fractions}; give shares between 0 and 1")
        if self.real_sample < 0 or not self.seeds:
            raise ConfigurationError("real_sample must be at least 0 and seeds must name at least one seed")
        stop_rule(self.stop_when)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values for the report's resolved configuration."""
        return {
            "ref": self.ref,
            "attacks": list(self.attacks),
            "target_fpr": self.target_fpr,
            "profile": self.profile,
            "prefix_fractions": list(self.prefix_fractions),
            "decodings": [scheme.name for scheme in self.decodings],
            "skip_generation": self.skip_generation,
            "real_sample": self.real_sample,
            "release_context": self.release_context,
            "seeds": list(self.seeds),
            "on_error": self.on_error,
            "stop_when": self.stop_when
            if isinstance(self.stop_when, str)
            else (self.stop_when and "a callable"),
            "max_length": self.max_length,
            "max_batch_size": self.max_batch_size,
            "max_batch_tokens": self.max_batch_tokens,
            "failure_timeout": self.failure_timeout,
        }
