"""ModelForward: calls a wrapped model so that only the wanted positions reach the vocabulary projection."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memaudit.errors import StrategyError

ROWS = "rows"
FULL_LOGITS = "full-logits"


def output_head(model: nn.Module) -> nn.Module | None:
    """Return the model's vocabulary projection, adapters on it included, or None where it names none."""
    getter = getattr(model, "get_output_embeddings", None)
    if getter is None:
        return None
    head = getter()
    return head if isinstance(head, nn.Module) else None


def is_prompt_learning(model: nn.Module) -> bool:
    """Whether a PEFT adapter other than one on the weights is active (prompt, prefix and p-tuning)."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, dict):
        return False
    return any(bool(getattr(config, "is_prompt_learning", False)) for config in configs.values())


@contextmanager
def redirected(host: nn.Module, target: Callable[..., Any]) -> Iterator[None]:
    """Let ``host.forward`` call ``target``, so that the hooks of whatever wraps ``host`` run around it."""
    missing = object()
    before = host.__dict__.get("forward", missing)
    host.__dict__["forward"] = target
    try:
        yield
    finally:
        if before is missing:
            del host.__dict__["forward"]
        else:
            host.__dict__["forward"] = before


class ModelForward:
    """Forward of a causal language model that returns the logits of chosen positions alone.

    The root is called, never an inner module, since its hooks are what gathers a sharded model. A pre-hook on
    the output head hands on the wanted rows only: the soft-capping or scaling that the model's own forward
    does afterwards applies to them, and a [batch, length, vocabulary] tensor is never built. A model without
    ``get_output_embeddings`` is called as it is and the rows are taken from its logits (``head`` then says
    ``"full-logits"``).

    Args:
        root: the outermost wrapper, the one to call.
        model: the model inside every wrapper.
        host: the module whose forward the root calls, where that is not ``model`` (a LightningModule).
        device: where inputs must lie; by default that of the input embeddings.
        context: made around each call, for a precision that the framework applies from outside.

    Raises:
        StrategyError: at the first call, where the model returns no logits or calls its head in another way.

    Example:
        >>> table = nn.Embedding(5, 5)
        >>> forward = ModelForward(table, table)
        >>> ids = torch.tensor([[1, 2, 3]])
        >>> forward(ids, torch.ones_like(ids), torch.tensor([0, 2])).shape
        torch.Size([2, 5])
        >>> forward.head
        'full-logits'
    """

    def __init__(
        self,
        root: nn.Module,
        model: nn.Module,
        *,
        host: nn.Module | None = None,
        device: torch.device | None = None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._root = root
        self._model = model
        self._host = host if host is not None and host is not model else None
        self._device = device if device is not None else input_device(model)
        self._context = context
        self._head = output_head(model)
        self._named, self._any_keyword = _parameters_of(model)
        self._rows: Tensor | None = None
        self._shape = (0, 0)
        self._head_calls = 0
        self._attached = False
        self._cache_name = cache_argument(model)[0]
        self._supports_cache = cache_is_shareable(model) and self._accepts(self._cache_name)

    @property
    def device(self) -> torch.device:
        """Where the input ids must lie."""
        return self._device

    @property
    def supports_cache(self) -> bool:
        """Whether rows can share the keys and values of a prefix."""
        return self._supports_cache

    @property
    def head(self) -> str:
        """How logits are taken: ``"rows"`` through the head alone, or ``"full-logits"``."""
        return ROWS if self._head is not None else FULL_LOGITS

    def _accepts(self, name: str) -> bool:
        return self._any_keyword or name in self._named

    @contextmanager
    def attached(self) -> Iterator[ModelForward]:
        """Keep the hook on the head for a whole audit rather than for each call."""
        if self._head is None or self._attached:
            yield self
            return
        handle = self._head.register_forward_pre_hook(self._select, with_kwargs=True)
        self._attached = True
        try:
            yield self
        finally:
            self._attached = False
            handle.remove()

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, rows: Tensor, cache: Any = None) -> Tensor:
        """Return float logits [n, vocabulary] at ``rows``; see :class:`memaudit.strategies.base.Forward`."""
        batch, length = input_ids.shape
        inputs: dict[str, Any] = {"attention_mask": attention_mask}
        if cache is not None:
            past = _cache_length(cache)
            ones = attention_mask.new_ones(batch, past)
            positions = torch.arange(past, past + length, device=input_ids.device)
            inputs["attention_mask"] = torch.cat([ones, attention_mask], dim=1)
            inputs["position_ids"] = positions.unsqueeze(0).expand(batch, length)
            inputs[self._cache_name] = shared_cache(cache, batch)
        with self.attached():
            output = self._call(input_ids, rows, inputs, use_cache=cache is not None)
        logits = _logits_of(output, self._model)
        if self._head is None:
            if logits.dim() != 3 or logits.shape[:2] != input_ids.shape:
                raise StrategyError(
                    f"{type(self._model).__name__} returned logits of shape {tuple(logits.shape)} for ids of shape "
                    f"{tuple(input_ids.shape)}; expected [batch, length, vocabulary]"
                )
            return logits.reshape(batch * length, -1)[rows.to(logits.device)]
        if self._head_calls != 1 or logits.reshape(-1, logits.shape[-1]).shape[0] != rows.shape[0]:
            raise StrategyError(
                f"{type(self._model).__name__} called its output head {self._head_calls} times and returned logits "
                f"of shape {tuple(logits.shape)} where {rows.shape[0]} rows were asked for; it needs a forward "
                "that calls get_output_embeddings() once (is a compiled or fused forward in the way?)"
            )
        return logits.reshape(-1, logits.shape[-1])

    def prefix(self, input_ids: Tensor) -> Any:
        """Forward one prefix, int64 [1, length], and return its keys and values.

        Raises:
            StrategyError: the model's cache cannot be shared between rows.
        """
        if not self._supports_cache:
            raise StrategyError(
                f"{type(self._model).__name__} has no cache that rows can share; forward prefix and text together"
            )
        from transformers import DynamicCache

        cache = DynamicCache(config=text_config(self._model))
        inputs = {"attention_mask": torch.ones_like(input_ids), self._cache_name: cache}
        last = torch.tensor([input_ids.shape[1] - 1], device=input_ids.device)
        with self.attached():
            self._call(input_ids, last, inputs, use_cache=True)
        return cache

    def _call(self, input_ids: Tensor, rows: Tensor, inputs: dict[str, Any], *, use_cache: bool) -> Any:
        self._rows, self._shape, self._head_calls = rows, (input_ids.shape[0], input_ids.shape[1]), 0
        # return_dict and skip_logits (Liger) are set only where the forward names them.
        inputs = {**inputs, "use_cache": use_cache}
        keywords = {name: value for name, value in inputs.items() if self._accepts(name)}
        if "return_dict" in self._named:
            keywords["return_dict"] = True
        if "skip_logits" in self._named:
            keywords["skip_logits"] = False
        redirect = redirected(self._host, self._model) if self._host is not None else nullcontext()
        try:
            with redirect, self._context():
                if self._accepts("input_ids"):
                    return self._root(input_ids=input_ids, **keywords)
                return self._root(input_ids, **keywords)
        finally:
            self._rows = None

    def _select(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pre-hook of the head: hand on the wanted rows of the hidden states as [1, n, hidden]."""
        if self._rows is None:  # somebody else's forward while the audit is open
            return None
        self._head_calls += 1
        prompts = is_prompt_learning(self._model)
        if args:
            return (_rows_of(args[0], self._rows, self._shape, prompts=prompts), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: _rows_of(kwargs[name], self._rows, self._shape, prompts=prompts)}


def _rows_of(hidden: Tensor, rows: Tensor, shape: tuple[int, int], *, prompts: bool) -> Tensor:
    """Take ``rows`` of [batch, length, hidden]; virtual tokens that PEFT put in front are stepped over."""
    if _is_dtensor(hidden):
        from torch.distributed.tensor import DTensor, Replicate

        full = hidden.full_tensor()  # type: ignore[attr-defined]
        mesh = hidden.device_mesh  # type: ignore[attr-defined]
        chosen = _rows_of(full, rows, shape, prompts=prompts)
        return DTensor.from_local(chosen, mesh, [Replicate()] * mesh.ndim, run_check=False)
    batch, length = shape
    if hidden.dim() == 2 and hidden.shape[0] == batch * length:
        return hidden[rows.to(hidden.device)].unsqueeze(0)
    extra = hidden.shape[1] - length if hidden.dim() == 3 else -1
    if hidden.dim() != 3 or hidden.shape[0] != batch or extra < 0 or (extra > 0 and not prompts):
        raise StrategyError(
            f"the output head received hidden states of shape {tuple(hidden.shape)} for ids of shape {shape}; "
            "a head whose input is split over the sequence cannot be scored"
        )
    rows = rows.to(hidden.device)
    if extra:
        rows = (rows // length) * hidden.shape[1] + extra + rows % length
    return hidden.reshape(batch * hidden.shape[1], hidden.shape[2])[rows].unsqueeze(0)


def _logits_of(output: Any, model: nn.Module) -> Tensor:
    """Return the logits of whatever a forward returned, in full where they are a DTensor."""
    logits = output
    if not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
        if logits is None and isinstance(output, dict):
            logits = output.get("logits")
        if logits is None and isinstance(output, (tuple, list)) and output and not hasattr(output, "keys"):
            logits = output[0]
    if not isinstance(logits, Tensor):
        raise StrategyError(
            f"{type(model).__name__} returned no logits (a fused loss such as Liger's leaves them out); "
            "switch the fused cross entropy off, or give a model whose evaluation forward returns logits"
        )
    if _is_dtensor(logits):
        full: Tensor = logits.full_tensor()  # type: ignore[attr-defined]
        return full
    return logits


def _is_dtensor(tensor: Tensor) -> bool:
    if not torch.distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def input_device(model: nn.Module) -> torch.device:
    """Return the device of the input embeddings, or of the first parameter that is not on the meta device."""
    hook = getattr(model, "_hf_hook", None)  # accelerate's device_map: inputs go where its hook runs
    execution = getattr(hook, "execution_device", None)
    if execution is not None:
        return torch.device("cuda", execution) if isinstance(execution, int) else torch.device(execution)
    for parameter in model.parameters():
        if parameter.device.type != "meta":
            return parameter.device
    return torch.device("cpu")


def _parameters_of(model: nn.Module) -> tuple[frozenset[str], bool]:
    """Return the names that the model's forward takes, and whether it takes any keyword."""
    parameters = inspect.signature(type(model).forward).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    inner = getattr(model, "get_base_model", None)  # PEFT's forward takes any keyword and hands it on
    if callable(inner):
        names |= _parameters_of(inner())[0]
    return frozenset(names), any(p.kind is p.VAR_KEYWORD for p in parameters)


def cache_argument(model: nn.Module) -> tuple[str, frozenset[str]]:
    """Return how the model's forward calls its cache, and all the names that it takes."""
    names, _ = _parameters_of(model)
    return ("cache" if "cache" in names else "past_key_values"), names  # transformers renames it


def text_config(model: nn.Module) -> Any:
    """Return the configuration of the language model in a model, which may hold others too."""
    config = getattr(model, "config", None)
    getter = getattr(config, "get_text_config", None)
    return getter() if callable(getter) else config


def cache_is_shareable(model: nn.Module) -> bool:
    """Whether the model's keys and values can be expanded from one row to a batch.

    False for models with a recurrent state, encoder-decoders, PEFT adapters that use the cache themselves,
    plain modules, and models whose cache has layers of another kind than plain or sliding keys and values.
    """
    config = text_config(model)
    if config is None or getattr(config, "is_encoder_decoder", False) or is_prompt_learning(model):
        return False
    if getattr(model, "_is_stateful", False) or output_head(model) is None:
        return False
    try:
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

        layers = DynamicCache(config=config).layers
    except (ImportError, TypeError, AttributeError, ValueError):
        return False
    # The exact types: subclasses keep recurrent or indexed state beside keys and values.
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


def _cache_length(cache: Any) -> int:
    return int(cache.get_seq_length())


def shared_cache(cache: Any, batch: int) -> Any:
    """Return a cache for ``batch`` rows over the same keys and values; growing it leaves ``cache`` as it was."""
    shared = copy.copy(cache)
    shared.layers = []
    for layer in cache.layers:
        twin = copy.copy(layer)  # a dynamic layer grows by concatenation, so that views are safe
        twin.keys = layer.keys.expand(batch, *layer.keys.shape[1:])
        twin.values = layer.values.expand(batch, *layer.values.shape[1:])
        shared.layers.append(twin)
    return shared
