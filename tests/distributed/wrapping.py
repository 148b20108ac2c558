"""Training set-ups of each parallelism around a tiny model, as users build them, for the workers of the tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.distributed import cpu_backends
from tests.helpers import tiny_llama

VOCAB = 96
LORA_TARGETS = ("q_proj", "v_proj", "down_proj")
COLUMNS = ("q_proj", "v_proj")
"""PEFT 0.21 beside transformers 5.24 fails in its own forward on a layer that their plan splits by rows."""


def targets_of(kind: str) -> tuple[str, ...]:
    """Return the layers that get an adapter in a set-up."""
    return COLUMNS if kind == "tp_plan" else LORA_TARGETS


@dataclass
class Setup:
    """One training set-up: what resolve() is given, the wrapped model, and one optimizer step."""

    target: Any
    wrapped: nn.Module
    micro_step: Callable[..., float]
    """Called with ids, whether the optimizer steps, and what to do between backward and that step."""


def build_model(
    *,
    tied: bool,
    lora: bool,
    dropout: float = 0.1,
    seed: int = 3,
    targets: tuple[str, ...] = LORA_TARGETS,
) -> nn.Module:
    """Return the tiny Llama of the tests: dropout on, so that training depends on the random state."""
    # Tensor parallelism deals out whole heads: on 4 ranks there are no fewer.
    heads = max(2, int(os.environ.get("WORLD_SIZE", 1)))
    model: nn.Module = tiny_llama(
        *(VOCAB, 2, 32, tied),
        positions=64,
        seed=seed,
        attention_dropout=dropout,
        eos_token_id=1,
        num_key_value_heads=heads,
    )
    if lora:
        from peft import LoraConfig, get_peft_model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            config = LoraConfig(
                r=4, target_modules=list(targets), lora_dropout=dropout, init_lora_weights=False
            )
            model = get_peft_model(model, config)
    return model


def loss_of(root: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Return the mean next-token loss of a batch."""
    logits = root(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    if hasattr(logits, "full_tensor"):  # tensor parallel: the vocabulary is split over ranks
        logits = logits.full_tensor()
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCAB).float(), ids[:, 1:].reshape(-1))


def layers_of(model: nn.Module) -> Any:
    """Return the layers of the tiny Llama, with or without an adapter."""
    return model.get_submodule("base_model.model.model" if hasattr(model, "peft_config") else "model").layers


def trained(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters to train."""
    return [p for p in model.parameters() if p.requires_grad]


def setup(kind: str, model: nn.Module, *, precision: str = "no", accumulation: int = 1) -> Setup:
    """Return the set-up called ``kind`` around ``model``."""
    if kind == "ddp" or kind.startswith(("fsdp", "zero")):
        return _accelerate(kind, model, precision, accumulation)
    return _torch(kind, model)


def _accelerate(kind: str, model: nn.Module, precision: str, accumulation: int) -> Setup:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    options: dict[str, Any] = {"cpu": True} if kind == "ddp" else {}
    if kind.startswith("fsdp"):
        from accelerate import FullyShardedDataParallelPlugin

        options["fsdp_plugin"] = FullyShardedDataParallelPlugin(
            fsdp_version=int(kind[4]),
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            use_orig_params=True if kind.startswith("fsdp1") else None,
            sync_module_states=False if kind.startswith("fsdp1") else None,
            cpu_ram_efficient_loading=False,
            cpu_offload=kind.endswith("offload"),
            reshard_after_forward="FULL_SHARD" if kind.startswith("fsdp1") else True,
        )
    elif kind.startswith("zero"):
        from accelerate import DeepSpeedPlugin

        offload = kind.endswith("offload")
        config = cpu_backends.zero_config(int(kind[4]), offload=offload, accumulation=accumulation)
        if precision == "autocast":
            precision = "no"
            config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
        elif precision == "bf16":
            config["bf16"] = {"enabled": True}
        options["deepspeed_plugin"] = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=accumulation, **options)
    optimizer = torch.optim.SGD(trained(model), lr=0.05, momentum=0.9)
    wrapped, prepared = accelerator.prepare(model, optimizer)

    def micro_step(ids: torch.Tensor, last: bool, halfway: Callable[[], None] | None = None) -> float:
        wait: AbstractContextManager[Any] = nullcontext() if last else accelerator.no_sync(wrapped)
        if kind.startswith("zero"):
            wait = nullcontext()
            wrapped.set_gradient_accumulation_boundary(last)
        with wait:
            loss = loss_of(wrapped, ids)
            if kind.startswith("zero"):
                wrapped.backward(loss)
                wrapped.step()
            else:
                accelerator.backward(loss)
        if halfway is not None:
            halfway()
        if last and not kind.startswith("zero"):
            prepared.step()
            prepared.zero_grad()
        return float(loss.detach())

    return Setup(accelerator, wrapped, micro_step)


def _torch(kind: str, model: nn.Module) -> Setup:
    from torch.distributed.device_mesh import init_device_mesh

    world = dist.get_world_size()
    layers = layers_of(model)
    if kind == "tp_plan":
        wrapped = model = by_plan(model)
    elif kind == "hsdp2":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        wrapped = model
    elif kind == "hsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        wrapped = FullyShardedDataParallel(
            model,
            device_mesh=init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard")),
            sharding_strategy=ShardingStrategy.HYBRID_SHARD,
            auto_wrap_policy=ModuleWrapPolicy({type(layers[0])}),
            use_orig_params=True,
            device_id=torch.device("cpu"),
        )
    elif kind in ("tp", "dp_tp", "tp_fsdp2"):
        shape = (world,) if kind == "tp" else (world // 2, 2)
        names = ("tp",) if kind == "tp" else ("dp", "tp")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        tensor_parallel(model, mesh["tp"])
        if kind == "tp_fsdp2":
            from torch.distributed.fsdp import fully_shard

            for layer in layers:
                fully_shard(layer, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
        wrapped = model
    else:
        raise ValueError(f"no set-up is called {kind!r}")
    optimizer = torch.optim.SGD(trained(wrapped), lr=0.05, momentum=0.9, foreach=False)

    def micro_step(ids: torch.Tensor, last: bool, halfway: Callable[[], None] | None = None) -> float:
        loss = loss_of(wrapped, ids)
        loss.backward()
        if halfway is not None:
            halfway()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return float(loss.detach())

    return Setup(wrapped, wrapped, micro_step)


def by_plan(model: nn.Module) -> nn.Module:
    """Return the model loaded by transformers' own tensor parallelism, with its adapter as PEFT splits it."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    adapted = hasattr(model, "peft_config")
    adapter = {n: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n}
    config = model.peft_config["default"] if adapted else None  # type: ignore[index]
    base = model.unload() if adapted else model  # type: ignore[operator]
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        base.save_pretrained(folder[0])
    dist.barrier()
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    loaded: nn.Module = AutoModelForCausalLM.from_pretrained(
        folder[0], distributed_config=DistributedConfig(tp_plan="auto"), **options
    )
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(str(folder[0]))
    if adapted:
        from peft import get_peft_model

        loaded = get_peft_model(loaded, config)
        with torch.no_grad():
            for name, parameter in loaded.named_parameters():
                if name in adapter:
                    parameter.copy_(_like(adapter[name], parameter))
    # from_pretrained leaves it in evaluation, where no dropout asks the random state.
    return loaded.train(model.training)


def _like(whole: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a whole tensor split as a parameter is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def tensor_parallel(model: nn.Module, mesh: Any) -> None:
    """Split attention and MLP of a tiny Llama by columns and rows, and the head by columns.

    An adapter's lora_B is split beside columns and its lora_A beside rows; the other one stays whole on each rank.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    adapted = hasattr(model, "peft_config")
    base: nn.Module = model.get_base_model() if adapted else model  # type: ignore[operator]
    styles: dict[str, Any] = dict.fromkeys(
        ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ColwiseParallel
    )
    styles |= dict.fromkeys(("o_proj", "down_proj"), RowwiseParallel)
    plan: dict[str, Any] = {}
    for path, module in base.named_modules():
        style = styles.get(path.split(".")[-1])
        if style is None:
            continue
        if hasattr(module, "base_layer"):
            plan[f"{path}.base_layer"] = style()
            plan[f"{path}.lora_{'B' if style is ColwiseParallel else 'A'}.default"] = style()
        else:
            plan[path] = style()
    plan["lm_head"] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    plan["model.embed_tokens"] = RowwiseParallel(input_layouts=Replicate())
    parallelize_module(base, mesh, plan)
    if base.config.tie_word_embeddings:  # type: ignore[union-attr]
        # Each got a tensor of its own: tied again, or training would pull them apart.
        base.get_submodule("lm_head").weight = base.get_submodule("model.embed_tokens").weight
