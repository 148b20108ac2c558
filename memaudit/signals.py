"""TokenSignals: what one forward leaves behind for one probe. Numpy alone; everything after it is arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memaudit.errors import ConfigurationError, SignalStoreError

FLOAT_FIELDS = ("logprob", "mean", "std", "top1_logprob")
INT_FIELDS = ("token_ids", "top1_id", "rank")


@dataclass(frozen=True, slots=True)
class Decoding:
    """A decoding scheme in the order that transformers applies it: temperature, then top-k, then top-p.

    ``top_k`` 0 and ``top_p`` 1.0 switch the truncation off.

    Example:
        >>> Decoding(temperature=0.7, top_k=50).name
        't0.7-k50-p1'
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and self.top_k >= 0 and 0 < self.top_p <= 1):
            raise ConfigurationError(
                f"decoding scheme {self}: temperature must be above 0, top_k at least 0, top_p in (0, 1]; "
                "greedy decoding needs no scheme, it is read off the top-1 ids"
            )

    @property
    def name(self) -> str:
        """A short name, the key of the scheme's log-probabilities."""
        return f"t{self.temperature:g}-k{self.top_k}-p{self.top_p:g}"


@dataclass(frozen=True, slots=True, eq=False)
class TokenSignals:
    """Per target token of one probe, arrays of shape (n_targets,).

    Args:
        token_ids: int64, the target tokens.
        logprob: natural log of the model's probability of the target given all before it.
        mean: mean of log p(v) over v drawn from the model; its negative is the entropy in nats.
        std: standard deviation of log p(v) over v drawn from the model.
        top1_logprob: largest log-probability in the vocabulary.
        top1_id: int64, the token that has it, the one greedy decoding emits.
        rank: int64, how many tokens are strictly more probable than the target.
        decodings: scheme name to log-probability of the target under that scheme, -inf where truncated.

    Raises:
        ConfigurationError: the arrays differ in length.

    Example:
        >>> one = TokenSignals.from_lists(token_ids=[3], logprob=[-0.5], mean=[-1.0], std=[0.2],
        ...                               top1_logprob=[-0.5], top1_id=[3], rank=[0])
        >>> len(one), bool(one.greedy_hit[0]), float(one.entropy[0])
        (1, True, 1.0)
    """

    token_ids: NDArray[np.int64]
    logprob: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    top1_logprob: NDArray[np.float64]
    top1_id: NDArray[np.int64]
    rank: NDArray[np.int64]
    decodings: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in FLOAT_FIELDS + INT_FIELDS}
        lengths |= {len(values) for values in self.decodings.values()}
        if len(lengths) != 1:
            raise ConfigurationError(f"signals of one probe differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def entropy(self) -> NDArray[np.float64]:
        """Entropy of the next-token distribution in nats."""
        return -self.mean

    @property
    def greedy_hit(self) -> NDArray[np.bool_]:
        """Whether greedy decoding, given the true prefix, emits the target."""
        return np.asarray(self.top1_id == self.token_ids, dtype=np.bool_)

    @property
    def is_finite(self) -> bool:
        """Whether every number but a truncated decoding's is finite."""
        return all(bool(np.isfinite(getattr(self, name)).all()) for name in FLOAT_FIELDS)

    def slice(self, start: int, stop: int) -> TokenSignals:
        """Return the signals of target tokens start to stop."""
        return TokenSignals(
            **{name: getattr(self, name)[start:stop] for name in FLOAT_FIELDS + INT_FIELDS},
            decodings={name: values[start:stop] for name, values in self.decodings.items()},
        )

    @classmethod
    def from_lists(cls, *, decodings: Mapping[str, Any] | None = None, **columns: Any) -> TokenSignals:
        """Make signals from sequences, converting each to its dtype.

        Raises:
            SignalStoreError: a column is missing.
        """
        missing = [name for name in FLOAT_FIELDS + INT_FIELDS if name not in columns]
        if missing:
            raise SignalStoreError(f"signals lack the columns {missing}; score the probes again")
        arrays: dict[str, Any] = {
            **{name: np.asarray(columns[name], dtype=np.float64) for name in FLOAT_FIELDS},
            **{name: np.asarray(columns[name], dtype=np.int64) for name in INT_FIELDS},
        }
        return cls(
            **arrays, decodings={k: np.asarray(v, dtype=np.float64) for k, v in (decodings or {}).items()}
        )
