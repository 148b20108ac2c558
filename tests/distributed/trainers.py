"""The Hugging Face Trainer and Lightning around the tiny model, with an audit at each of their hooks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.distributed import cpu_backends
from tests.distributed.wrapping import VOCAB, layers_of, tensor_parallel, trained

Audit = Callable[[str, Any], None]
"""Called with the moment's name and what resolve() is given."""


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Training rows of random ids."""

    def __init__(self, count: int = 12) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(2, VOCAB, (count, 10), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def huggingface(kind: str, model: nn.Module, audit: Audit) -> None:
    """Train with the Trainer, and audit at its safe hooks."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    options: dict[str, Any] = {}
    if kind in ("fsdp1", "fsdp2"):
        options["fsdp"] = "full_shard auto_wrap" if kind == "fsdp1" else True
        options["fsdp_config"] = {
            "version": int(kind[-1]),
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
            "reshard_after_forward": True if kind == "fsdp2" else "FULL_SHARD",
            "use_orig_params": True,
            "sync_module_states": False,
            "cpu_ram_efficient_loading": False,
        }
    elif kind.startswith("zero"):
        options["deepspeed"] = cpu_backends.zero_config(int(kind[4]))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            max_steps=2,
            learning_rate=0.05,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=kind == "ddp",
            dataloader_pin_memory=False,
            **options,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Rows())

        class Callback(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
                audit("train_begin", trainer)

            def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                audit("step_end", trainer)

            def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
                audit("epoch_end", trainer)

            def on_train_end(self, *args: Any, **kwargs: Any) -> None:
                audit("train_end", trainer)

        trainer.add_callback(Callback())
        trainer.train()


def lightning(kind: str, model: nn.Module, audit: Audit) -> None:
    """Train with Lightning, the model an attribute of the module, and audit in its hooks."""
    import lightning.pytorch as pl

    world = int(os.environ["WORLD_SIZE"])

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.lm = model
            self.scale = nn.Parameter(torch.ones(1), requires_grad=False)  # not part of the language model

        def configure_model(self) -> None:
            if kind in ("fsdp2", "tp") and not getattr(self, "done", False):
                self.done = True
                mesh = self.device_mesh
                if kind == "tp":
                    tensor_parallel(self.lm, mesh["tensor_parallel"])
                    return
                from torch.distributed.fsdp import fully_shard

                for layer in layers_of(self.lm):
                    fully_shard(layer, mesh=mesh["data_parallel"])
                fully_shard(self.lm, mesh=mesh["data_parallel"])

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            logits = self.lm(input_ids=batch["input_ids"], use_cache=False).logits
            logits = logits.full_tensor() if hasattr(logits, "full_tensor") else logits
            return nn.functional.cross_entropy(
                logits[:, :-1].reshape(-1, VOCAB), batch["input_ids"][:, 1:].reshape(-1)
            )

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(trained(self), lr=0.05, foreach=False)

    class Callback(pl.Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            audit("train_begin", trainer)

        def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
            audit("step_end", trainer)

        def on_train_epoch_end(self, trainer: Any, *args: Any) -> None:
            audit("epoch_end", trainer)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            audit("train_end", trainer)

    strategy: Any = "ddp"
    if kind == "fsdp1":
        layer = type(layers_of(model)[0])
        strategy = cpu_backends.lightning_fsdp1(auto_wrap_policy={layer}, use_orig_params=True)
    elif kind in ("fsdp2", "tp"):
        from lightning.pytorch.strategies import ModelParallelStrategy

        sizes = {"data_parallel_size": world, "tensor_parallel_size": 1}
        if kind == "tp":
            sizes = {"data_parallel_size": 1, "tensor_parallel_size": world}
        strategy = ModelParallelStrategy(**sizes)
    elif kind.startswith("zero"):
        config = cpu_backends.zero_config(int(kind[4]))
        del config["gradient_accumulation_steps"]  # Lightning sets it
        strategy = cpu_backends.lightning_deepspeed(config=config)
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=world,
            strategy=strategy,
            max_steps=2,
            callbacks=[Callback()],
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(Rows(), batch_size=2))
