"""load(): any kind of checkpoint, laid out as the strategy says, ready for ``memaudit.strategies.resolve``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from memaudit.errors import CheckpointError, ConfigurationError, MissingExtraError, StrategyError
from memaudit.posthoc.checkpoints import adapter, dcp, huggingface, lightning, quantised, skeleton, zero
from memaudit.posthoc.checkpoints.base import Checkpoint, DictSource, WeightSource, some
from memaudit.posthoc.checkpoints.fill import Sources, fill_fsdp2, fill_whole, fill_zero3, zero3_config
from memaudit.posthoc.checkpoints.kinds import detect
from memaudit.posthoc.checkpoints.names import match_names
from memaudit.posthoc.ranks import local_device, world_size

logger = logging.getLogger(__name__)

Placement = Literal["auto", "single", "ddp", "fsdp2", "zero3", "device-map"]
PLACEMENTS: tuple[str, ...] = ("auto", "single", "ddp", "fsdp2", "zero3", "device-map")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """Choices about loading a checkpoint.

    Args:
        strategy: how the model lies on the ranks; "auto" takes what fits.
        config_from: folder or hub id of the model's configuration, for kinds that do not hold it.
        base: the base of an adapter, where its configuration names one that has moved.
        dtype: "auto" (the checkpoint's own), "float32", "bfloat16" or "float16".
        prefix: the attribute that holds the model, where a checkpoint holds several.
        trust_pickle: load files that hold Python objects; doing so runs their code.
        offload_dir: folder for what device-map puts on the disk.
        max_memory: device to bytes or text ("10GiB"), for device-map.
    """

    strategy: str = "auto"
    config_from: str | None = None
    base: str | None = None
    dtype: str = "auto"
    prefix: str | None = None
    trust_pickle: bool = False
    offload_dir: str | None = None
    max_memory: Mapping[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.strategy not in PLACEMENTS:
            raise ConfigurationError(f"strategy {self.strategy!r}; give one of {', '.join(PLACEMENTS)}")
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ConfigurationError(f"dtype {self.dtype!r}; give auto, float32, bfloat16 or float16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model in place.

    ``model`` is what :func:`memaudit.strategies.resolve` takes; ``config_from`` is where its configuration,
    and most likely its tokenizer, came from; ``base`` is the base checkpoint of an adapter.
    """

    model: Any
    checkpoint: Checkpoint
    strategy: str
    config_from: str
    base: Checkpoint | None = None


def load(path: str | Path | Checkpoint, loading: Loading | None = None, **choices: Any) -> Loaded:
    """Load a checkpoint of any kind; every rank of the process group calls.

    Args:
        path: a path, a hub id, or what :func:`memaudit.posthoc.checkpoints.detect` returned.
        loading: choices; or give its fields as keyword arguments.

    Returns:
        The model in evaluation mode, its parameters frozen.

    Raises:
        CheckpointError: parts are missing or damaged, or the weights do not fit the configuration.
        StrategyError: the strategy cannot hold this kind, or needs more ranks than there are.
        MissingExtraError: an optional library is missing.
    """
    choice = loading or Loading(**choices)
    found = path if isinstance(path, Checkpoint) else detect(path)
    if found.kind == "quantised":
        quantised.require_support(found)
    if found.kind == "adapter":
        return _load_adapter(found, choice)
    config_from = _config_from(found, choice)
    strategy = _place(found, choice, config_from)
    if strategy in ("single", "ddp", "device-map") and found.kind in ("huggingface", "quantised", "gguf"):
        model = _from_pretrained(found, choice, strategy)
    elif found.kind in ("quantised", "gguf"):
        model = _spread_in_memory(found, choice, strategy)
    else:
        model = _fill(found, choice, strategy, config_from)
    return Loaded(model=model, checkpoint=found, strategy=strategy, config_from=config_from)


def _config_from(found: Checkpoint, choice: Loading) -> str:
    if choice.config_from is not None:
        return choice.config_from
    if found.kind == "gguf":
        return str(found.path.parent)
    if found.config is None:
        raise CheckpointError(
            f"{found.path} holds weights ({found.kind}) and no model configuration; name a folder or hub id with "
            "the model's config.json: --config-from PATH_OR_ID"
        )
    return str(found.config)


def _place(found: Checkpoint, choice: Loading, config_from: str) -> str:
    """Settle "auto", and refuse what cannot be."""
    world = world_size()
    strategy = choice.strategy
    if strategy == "auto":
        whole = _bytes(found) <= _free_bytes()
        if world == 1:
            strategy = "single" if whole or found.kind not in ("huggingface", "quantised") else "device-map"
        else:
            sharded = found.kind in ("dcp", "zero") or not whole
            strategy = "fsdp2" if sharded and found.kind != "quantised" else "ddp"
        logger.info("memaudit: %s is a %s checkpoint; strategy %s", found.path, found.kind, strategy)
    if strategy in ("ddp", "fsdp2", "zero3") and world == 1 and not torch.distributed.is_initialized():
        raise StrategyError(
            f"strategy {strategy} needs a process group; start with torchrun --nproc-per-node N -m memaudit audit ..., "
            "or use --strategy single"
        )
    if strategy in ("single", "device-map") and world > 1:
        raise StrategyError(
            f"strategy {strategy} is for one process and there are {world}; use ddp, fsdp2 or zero3"
        )
    if strategy in ("fsdp2", "zero3") and found.kind == "quantised":
        raise StrategyError(
            "a quantised model cannot be sharded by fsdp2 or zero3; use single, ddp or device-map"
        )
    if strategy == "device-map" and found.kind not in ("huggingface", "quantised", "gguf", "adapter"):
        raise StrategyError(
            f"device-map reads Hugging Face folders, not {found.kind}; use fsdp2 on several ranks"
        )
    return strategy


def _bytes(found: Checkpoint) -> int:
    return sum(file.stat().st_size for file in found.files)


def _free_bytes() -> int:
    """Memory that a whole model may take: 80% of what is free on the GPU, or its rank's share of the host's."""
    import os

    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info(local_device())
        return int(0.8 * free)
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return int(0.8 * pages * size / int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _dtype(found: Checkpoint, choice: Loading, config: Any) -> torch.dtype:
    if choice.dtype != "auto":
        dtype: torch.dtype = getattr(torch, choice.dtype)
        return dtype
    if found.kind == "zero":
        return torch.float32  # the optimizer's own copy of the weights
    named = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return named if isinstance(named, torch.dtype) else torch.float32


def _source(found: Checkpoint, choice: Loading) -> WeightSource:
    if found.kind == "dcp":
        return dcp.DcpSource(found)
    if found.kind == "zero":
        return zero.ZeroSource(found)
    if found.kind == "lightning":
        return lightning.open_source(found, trust_pickle=choice.trust_pickle)
    return huggingface.open_source(found)


def _from_pretrained(found: Checkpoint, choice: Loading, strategy: str, folder: str | None = None) -> Any:
    """Let transformers load a model whole, and turn what it only warns about into errors."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # told below
    where = folder or str(found.path)
    if found.kind == "gguf":
        where, options["gguf_file"] = str(found.path.parent), found.path.name
        options["dtype"] = torch.float32 if choice.dtype == "auto" else getattr(torch, choice.dtype)
    else:
        options["dtype"] = "auto" if choice.dtype == "auto" else getattr(torch, choice.dtype)
    if choice.config_from is not None and found.kind != "gguf":
        options["config"] = AutoConfig.from_pretrained(choice.config_from)
    if strategy == "device-map":
        options["device_map"] = "auto"
        if choice.max_memory:
            options["max_memory"] = dict(choice.max_memory)
        if choice.offload_dir is not None:
            options["offload_folder"] = choice.offload_dir
    try:
        with _quiet():
            answer: Any = AutoModelForCausalLM.from_pretrained(where, **options)
    except ImportError as error:
        raise CheckpointError(f"reading {found.path} needs a library: {_first_line(error)}") from error
    except Exception as error:
        raise CheckpointError(f"{found.path} cannot be loaded: {_first_line(error)}") from error
    model, info = answer
    _require_fit(found, info)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if strategy != "device-map" and found.kind != "quantised":
        model = model.to(local_device())
    return model.eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' report of what did not fit off the screen: it becomes one error of ours."""
    from transformers.utils import logging as their_logging

    level = their_logging.get_verbosity()
    bars = their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity_error()
    their_logging.disable_progress_bar()
    try:
        yield
    finally:
        their_logging.set_verbosity(level)
        if bars:
            their_logging.enable_progress_bar()


def _require_fit(found: Checkpoint, info: Mapping[str, Any]) -> None:
    parts = [
        f"{len(info[key])} {word} ({some(info[key])})"
        for key, word in (
            ("missing_keys", "missing"),
            ("unexpected_keys", "unexpected"),
            ("mismatched_keys", "of another shape"),
        )
        if info.get(key)
    ]
    if parts:
        raise CheckpointError(
            f"{found.path} does not fit the model's configuration: {'; '.join(parts)}; "
            "name the configuration that it was trained with (--config-from)"
        )


def _fill(found: Checkpoint, choice: Loading, strategy: str, config_from: str) -> Any:
    """Build the model without weights and read each rank's share into it."""
    adapter_config = None
    folder = Path(config_from)
    if (folder / "adapter_config.json").is_file():  # a sharded checkpoint of a model with adapters
        adapter_config = adapter.read_config(folder)
        config_from = adapter.base_of(folder, choice.base)
    config = skeleton.read_model_config(config_from)
    dtype = _dtype(found, choice, config)
    source = _source(found, choice)
    if strategy == "zero3":
        return _into_zero3(found, choice, config, dtype, adapter_config, source)
    model = skeleton.build(config, dtype=dtype, adapter_config=adapter_config)
    sources = _join(found, choice, model, source)
    if sources is None:
        return _spread_in_memory(found, choice, strategy)
    if strategy == "fsdp2":
        return fill_fsdp2(model, sources, local_device())
    return fill_whole(model, sources, local_device())


def _join(found: Checkpoint, choice: Loading, model: torch.nn.Module, source: WeightSource) -> Sources | None:
    """Say which stored tensor fills which; None where transformers renames or fuses what the files hold."""
    expected = {name: tuple(tensor.shape) for name, tensor in skeleton.tensors(model)}
    try:
        joined = match_names(
            expected,
            source.shapes,
            where=str(found.path),
            aliases=skeleton.aliases(model),
            ignored=skeleton.ignored_patterns(model),
            prefix=choice.prefix,
        )
    except CheckpointError:
        if found.kind == "huggingface" and not set(expected) & set(source.shapes):
            return None
        if found.kind == "huggingface" and _converts(model):
            return None
        raise
    return {name: (source, stored) for name, stored in joined.items()}


def _converts(model: torch.nn.Module) -> bool:
    """Whether transformers has rules that turn this architecture's stored tensors into its own."""
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:
        return False
    kind = getattr(getattr(model, "config", None), "model_type", "")
    return bool(get_checkpoint_conversion_mapping(kind))


def _spread_in_memory(found: Checkpoint, choice: Loading, strategy: str) -> Any:
    """Load a model whole in the CPU's memory on each rank, then spread it: for files that are not read by name.

    Each rank needs the memory of the whole model on the host, and of its share on the device.
    """
    whole = _from_pretrained(found, choice, "single", None)
    if strategy not in ("fsdp2", "zero3"):
        return whole
    source = DictSource({name: tensor.cpu() for name, tensor in skeleton.tensors(whole)})
    dtype = next(whole.parameters()).dtype
    config = whole.config
    if strategy == "zero3":
        return _into_zero3(found, choice, config, dtype, None, source)
    model = skeleton.build(config, dtype=dtype)
    sources: Sources = {name: (source, name) for name in source.shapes}
    return fill_fsdp2(model, sources, local_device())


def _into_zero3(
    found: Checkpoint,
    choice: Loading,
    config: Any,
    dtype: torch.dtype,
    adapter_config: Mapping[str, Any] | None,
    source: WeightSource,
) -> Any:
    try:
        import deepspeed
    except ImportError as error:
        raise MissingExtraError("deepspeed", "deepspeed", "strategy zero3") from error
    from transformers import AutoModelForCausalLM
    from transformers.integrations.deepspeed import HfDeepSpeedConfig, unset_hf_deepspeed_config

    settings = zero3_config()
    if dtype != torch.float32:
        settings["bf16" if dtype == torch.bfloat16 else "fp16"] = {"enabled": True}
    shape = skeleton.build(config, dtype=dtype, adapter_config=adapter_config)
    sources = _join(found, choice, shape, source)
    if sources is None or adapter_config is not None:
        raise StrategyError(f"zero3 cannot take {found.path} over as it is; use --strategy fsdp2")
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
    # transformers partitions every model that it builds while such a configuration is in force: this one alone.
    in_force = HfDeepSpeedConfig(settings)
    try:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    finally:
        del in_force
        unset_hf_deepspeed_config()
    return fill_zero3(model, sources, settings)


def _load_adapter(found: Checkpoint, choice: Loading) -> Loaded:
    """Load an adapter, unmerged, over its base."""
    base = detect(adapter.base_of(found.path, choice.base))
    if base.kind == "adapter":
        raise CheckpointError(
            f"the base of {found.path} is an adapter itself; merge it first, or name the full model"
        )
    if base.kind == "quantised":
        quantised.require_support(base)
    strategy = _place(base, choice, str(base.path))
    config_from = choice.config_from or str(base.config or base.path)
    if strategy == "zero3":
        raise StrategyError("an adapter over a base is not loaded under zero3; use --strategy fsdp2")
    if strategy == "fsdp2":
        model: Any = _adapter_fsdp2(found, base, choice, config_from)
    else:
        model = _adapter_whole(found, base, choice, strategy)
    return Loaded(model=model, checkpoint=found, strategy=strategy, config_from=config_from, base=base)


def _adapter_whole(found: Checkpoint, base: Checkpoint, choice: Loading, strategy: str) -> Any:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingExtraError("peft", "peft", "reading an adapter") from error
    if base.kind in ("huggingface", "quantised", "gguf"):
        whole = _from_pretrained(base, choice, strategy)
    else:
        whole = _fill(base, choice, strategy, _config_from(base, choice))
    try:
        model = PeftModel.from_pretrained(whole, str(found.path), is_trainable=False)
    except Exception as error:
        raise CheckpointError(
            f"the adapter {found.path} does not fit its base {base.path}: {_first_line(error)}; name another base "
            "with --base"
        ) from error
    return model.eval()


def _adapter_fsdp2(found: Checkpoint, base: Checkpoint, choice: Loading, config_from: str) -> Any:
    """Shard base and adapter together; the adapter takes the base's dtype, which FSDP2's groups need."""
    config = skeleton.read_model_config(config_from)
    dtype = _dtype(base, choice, config)
    model = skeleton.build(config, dtype=dtype, adapter_config=adapter.read_config(found.path))
    adapter_source = huggingface.open_files(found.files)
    base_source = _source(base, choice)
    from_adapter = skeleton.adapter_names(model)
    sources: dict[str, tuple[WeightSource, str]] = {}
    rest: dict[str, str] = {}
    lacking: list[str] = []
    for name, _ in skeleton.tensors(model):
        stored = from_adapter.get(name)
        if stored is None:
            rest[_base_name(name)] = name
        elif stored in adapter_source.shapes:
            sources[name] = (adapter_source, stored)
        else:
            lacking.append(stored)
    if lacking:
        raise CheckpointError(f"the adapter {found.path} lacks {len(lacking)} tensors ({some(lacking)})")
    by_name = dict(skeleton.tensors(model))
    expected = {short: tuple(by_name[name].shape) for short, name in rest.items()}
    known = skeleton.aliases(model)
    other = {short: [_base_name(one) for one in known.get(name, [])] for short, name in rest.items()}
    joined = match_names(
        expected, base_source.shapes, where=str(base.path), aliases=other, prefix=choice.prefix
    )
    sources.update({rest[short]: (base_source, stored) for short, stored in joined.items()})
    return fill_fsdp2(model, sources, local_device())


def _base_name(name: str) -> str:
    """Return the name that a base model's parameter has without PEFT around it."""
    return (
        name.removeprefix("base_model.model.").replace(".base_layer.", ".").replace(".original_module.", ".")
    )


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
