"""From whatever the user gives (model, trainer, strategy, path, hub id) to a backend that answers probes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memaudit.errors import ConfigurationError, InputTypeError
from memaudit.posthoc.checkpoints import Loading, load
from memaudit.posthoc.membership.backend import Backend
from memaudit.posthoc.membership.transformers_backend import TransformersBackend
from memaudit.store import SignalStore
from memaudit.strategies.base import Strategy
from memaudit.strategies.resolve import resolve

BACKENDS = ("transformers", "vllm")


def open_backend(
    model: Any,
    *,
    tokenizer: Any = None,
    reference: Any = None,
    references: Mapping[str, Any] | None = None,
    store: SignalStore | None = None,
    max_batch_size: int = 32,
    max_batch_tokens: int = 8192,
    max_batch_targets: int = 512,
    fixed_batches: bool = False,
    backend: str = "transformers",
    **loading: Any,
) -> Backend:
    """Return the backend for a model and its reference.

    Args:
        model: a backend, which is returned as it is; a strategy, model, Accelerator or Trainer; or a path.
        tokenizer: an object, a path or a hub id; by default the one beside the checkpoint.
        reference: as model.
        references: further ones, by the names that attacks give; equal ones are loaded once.
        store, max_batch_size, max_batch_tokens, max_batch_targets, fixed_batches: see :class:`TransformersBackend`.
        backend: one of ``BACKENDS``.
        loading: choices for a path.

    Raises:
        ConfigurationError: no such backend, no tokenizer, or options that do not apply.
    """
    if all(hasattr(model, name) for name in ("score", "generate", "share", "full_distribution")):
        given: Backend = model
        return given
    if backend not in BACKENDS:
        raise ConfigurationError(f"backend {backend!r}; give one of {', '.join(BACKENDS)}")
    if backend == "vllm":
        from memaudit.posthoc.membership.vllm_backend import VllmBackend

        return VllmBackend.open(
            model, tokenizer=tokenizer, reference=reference, references=references, **loading
        )
    target, beside = _strategy(model, loading)
    made = _tokenizer(tokenizer, beside)
    opened: dict[Any, Strategy] = {}

    def open_reference(one: Any) -> Strategy:
        key = str(one) if isinstance(one, (str, Path)) else id(one)
        if key not in opened:
            opened[key], lies = _strategy(one, {"dtype": loading.get("dtype", "auto")})
            _check_same(made, lies)
        return opened[key]

    return TransformersBackend(
        target,
        made,
        reference=None if reference is None else open_reference(reference),
        references={name: open_reference(one) for name, one in (references or {}).items()},
        store=store,
        max_batch_size=max_batch_size,
        max_batch_tokens=max_batch_tokens,
        max_batch_targets=max_batch_targets,
        fixed_batches=fixed_batches,
    )


def _strategy(model: Any, loading: dict[str, Any]) -> tuple[Strategy, str | None]:
    """Return the strategy and where the tokenizer is likely to lie."""
    if isinstance(model, (str, Path)):
        try:
            choice = Loading(**loading)
        except TypeError as error:
            raise ConfigurationError(f"loading options {sorted(loading)}: {error}") from error
        loaded = load(model, choice)
        return resolve(loaded.model), loaded.config_from
    unused = sorted(name for name, value in loading.items() if value not in (None, "auto"))
    if unused:
        raise ConfigurationError(
            f"options {', '.join(unused)} are for a model given by its path; this one is loaded"
        )
    strategy = model if isinstance(model, Strategy) else resolve(model)
    beside = getattr(strategy.model, "name_or_path", None)
    return strategy, beside or None


def _check_same(tokenizer: Any, reference: str | None) -> None:
    """Refuse a reference with another vocabulary: its log-probabilities would be of other tokens."""
    if reference is None or not hasattr(tokenizer, "get_vocab"):
        return
    from transformers import AutoTokenizer

    try:
        other = AutoTokenizer.from_pretrained(reference, local_files_only=True)
    except (OSError, ValueError, KeyError):  # none lies beside it: the ids alone are checked
        return
    own, theirs = tokenizer.get_vocab(), other.get_vocab()
    different = sum(theirs.get(token) != id for token, id in own.items())
    if different:
        raise ConfigurationError(
            f"the reference's tokenizer ({reference}) differs from the target's in {different} of {len(own)} tokens; "
            "give a reference with the same tokenizer"
        )


def _tokenizer(tokenizer: Any, beside: str | None) -> Any:
    if tokenizer is not None and not isinstance(tokenizer, (str, Path)):
        if not callable(tokenizer):
            raise InputTypeError(f"tokenizer is a {type(tokenizer).__name__}; give a tokenizer or its path")
        return tokenizer
    where = str(tokenizer) if tokenizer is not None else beside
    if where is None:
        raise ConfigurationError("no tokenizer is beside the model; name one with tokenizer")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError, KeyError) as error:
        line = str(error).strip().splitlines()[0][:160]
        raise ConfigurationError(
            f"no tokenizer can be loaded from {where}: {line}; name one with tokenizer"
        ) from error
