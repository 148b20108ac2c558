"""Switches that let FSDP, DeepSpeed and Lightning run on a CPU with gloo. For tests alone, never in the package.

Without them accelerate falls back to DDP, or to nothing, in silence; so every test that uses one asserts the
wrapper's type and the local number of parameters.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch


def accelerate_on_cpu() -> None:
    """Make accelerate treat gloo ranks as a multi-device job, so that its FSDP and DeepSpeed plugins count."""
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    from accelerate.state import DistributedType, PartialState

    if getattr(PartialState._prepare_backend, "_memaudit_cpu", False):
        return
    original = PartialState._prepare_backend

    def prepare(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
        # cpu=True is plain data parallelism, which accelerate knows on the CPU without any switch.
        if int(os.environ.get("LOCAL_RANK", -1)) != -1 and not cpu and not torch.cuda.is_available():
            return "gloo", DistributedType.MULTI_GPU
        return original(self, cpu, sagemaker_dp, backend)

    prepare._memaudit_cpu = True  # type: ignore[attr-defined]
    prepare._original = original  # type: ignore[attr-defined]
    PartialState._prepare_backend = prepare


@contextlib.contextmanager
def accelerate_as_shipped() -> Iterator[None]:
    """Take the switch back for a while: accelerate then falls back to no distribution without a word."""
    from accelerate.state import PartialState

    ours = PartialState._prepare_backend
    PartialState._prepare_backend = ours._original
    try:
        yield
    finally:
        PartialState._prepare_backend = ours


@contextlib.contextmanager
def fsdp_offload_on_cpu() -> Iterator[None]:
    """Let FSDP offload from the CPU to the CPU: nothing is pinned, which needs a device, and streams do not wait."""
    pin = torch.Tensor.pin_memory
    stream: Any = torch.cpu.Stream
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self  # type: ignore[method-assign]
    stream.synchronize = lambda self: None
    try:
        yield
    finally:
        torch.Tensor.pin_memory = pin  # type: ignore[method-assign]
        del stream.synchronize


def deepspeed_on_cpu() -> None:
    """Tell DeepSpeed to compute on the CPU; before its first import."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("ACCELERATE_TORCH_DEVICE", "cpu")


def zero_config(
    stage: int, *, offload: bool = False, micro_batch: int = 2, accumulation: int = 1
) -> dict[str, Any]:
    """Return a DeepSpeed configuration under which even a tiny model is really partitioned.

    By default ZeRO-3 keeps small parameters gathered, and a test on a small model would prove nothing.
    """
    zero: dict[str, Any] = {"stage": stage}
    if stage == 3:
        zero.update(
            stage3_param_persistence_threshold=0,
            stage3_max_live_parameters=0,
            stage3_max_reuse_distance=0,
            stage3_prefetch_bucket_size=0,
        )
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def lightning_fsdp1(**options: Any) -> Any:
    """Return Lightning's FSDP1 strategy without its refusal of the CPU."""
    from lightning.pytorch.strategies import FSDPStrategy
    from torch.distributed.fsdp import FullyShardedDataParallel

    class CPUFSDPStrategy(FSDPStrategy):
        @property
        def root_device(self) -> torch.device:
            return torch.device("cpu")

        def setup_environment(self) -> None:
            super(FSDPStrategy, self).setup_environment()
            from lightning.fabric.utilities.distributed import _init_dist_connection

            self._process_group_backend = "gloo"
            assert self.cluster_environment is not None
            _init_dist_connection(self.cluster_environment, "gloo", timeout=self._timeout)
            self.kwargs.setdefault("device_mesh", None)
            if self.kwargs.get("device_mesh") is None:
                self.kwargs.pop("device_mesh")

        def _setup_model(self, model: Any) -> Any:
            return FullyShardedDataParallel(
                module=model,
                cpu_offload=self.cpu_offload,
                mixed_precision=self.mixed_precision_config,
                sharding_strategy=self.sharding_strategy,
                device_id=torch.device("cpu"),
                **self.kwargs,
            )

    return CPUFSDPStrategy(**options)


def lightning_deepspeed(**options: Any) -> Any:
    """Return Lightning's DeepSpeed strategy without its refusal of the CPU."""
    deepspeed_on_cpu()
    from lightning.pytorch.strategies import DeepSpeedStrategy

    class CPUDeepSpeedStrategy(DeepSpeedStrategy):
        @property
        def root_device(self) -> torch.device:
            return torch.device("cpu", 0)  # DeepSpeed wants an index

        def setup_environment(self) -> None:
            self.setup_distributed()

        def setup_distributed(self) -> None:
            import deepspeed

            assert self.cluster_environment is not None
            self.set_world_ranks()
            self._set_node_environment_variables()
            deepspeed.init_distributed("gloo", auto_mpi_discovery=False)

    return CPUDeepSpeedStrategy(**options)
