"""Run by torchrun on two ranks: trains tiny models for a step, scores them in the loop, saves every kind.

    torchrun --nproc-per-node 2 tests/posthoc/save_all.py OUT

In-loop scores come from a plain forward of one record at a time, not from memaudit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.helpers import tiny_llama
from tests.posthoc.records import RECORDS, VOCAB


def plain_scores(model: Any) -> list[list[float]]:
    """Log-probability of each record's tokens but the first; every rank runs the same forwards."""
    scores = []
    model.eval()
    with torch.no_grad():
        for record in RECORDS:
            ids = torch.tensor([record])
            logits = model(input_ids=ids).logits.float()
            logprob = torch.log_softmax(logits[0, :-1], dim=-1)
            scores.append(logprob.gather(1, ids[0, 1:, None])[:, 0].double().tolist())
    model.train()
    return scores


def loss_of(model: Any, rank: int, step: int = 0) -> torch.Tensor:
    torch.manual_seed(100 * step + rank)
    ids = torch.randint(0, VOCAB, (2, 24))
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def shard(model: Any) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(model: Any, steps: int = 1) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, foreach=False)
    for step in range(steps):
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()
        optimizer.zero_grad()


def full_state(model: Any) -> dict[str, torch.Tensor]:
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def save_fsdp2(out: Path, name: str, tied: bool) -> dict[str, Any]:
    """FSDP2: a DCP checkpoint with the optimizer's name beside the model's, and a Hugging Face folder in shards."""
    model = shard(tiny_llama(VOCAB, tied=tied, seed=3))
    train(model)
    scores = plain_scores(model)
    folder = out / f"dcp-{name}" / "checkpoint-7"
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    state = full_state(model)
    if dist.get_rank() == 0:
        model.config.save_pretrained(folder)
        plain = tiny_llama(VOCAB, tied=tied, seed=4)
        plain.load_state_dict(state)
        plain.save_pretrained(out / f"hf-{name}" / "checkpoint-7", max_shard_size="100KB")
    return {f"dcp-{name}/checkpoint-7": scores, f"hf-{name}/checkpoint-7": scores}


def save_adapter(out: Path) -> dict[str, Any]:
    """LoRA over the untied Hugging Face folder, under FSDP2; a head in modules_to_save."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    base = str(out / "base")
    if dist.get_rank() == 0:
        tiny_llama(VOCAB, seed=5).save_pretrained(base)
    dist.barrier()
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"], lora_alpha=64)
    torch.manual_seed(0)
    model = get_peft_model(tiny_llama(VOCAB, seed=5), config)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, steps=2)
    scores = plain_scores(model)
    state = full_state(model)
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        plain = get_peft_model(tiny_llama(VOCAB, seed=5), config)
        plain.load_state_dict(state)
        assert get_peft_model_state_dict(plain)
        plain.peft_config["default"].base_model_name_or_path = base
        plain.save_pretrained(out / "adapter" / "checkpoint-7", save_embedding_layers=False)
        merged = plain.merge_and_unload()
        merged.save_pretrained(out / "merged" / "checkpoint-7")
    return {"adapter/checkpoint-7": scores, "merged/checkpoint-7": scores}


def save_zero(out: Path, stage: int) -> dict[str, Any]:
    """DeepSpeed at one stage; under stage 3 every parameter is really partitioned."""
    import deepspeed

    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    if stage == 3:
        names = (
            "param_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "prefetch_bucket_size",
        )
        settings["zero_optimization"].update({f"stage3_{name}": 0 for name in names})
    model = tiny_llama(VOCAB, tied=stage == 2, seed=6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    if stage == 3:
        assert all(p.numel() == 0 for p in engine.module.parameters()), "nothing is partitioned"
    engine.backward(loss_of(engine, dist.get_rank()))
    engine.step()
    scores = plain_scores(engine)
    folder = out / f"zero{stage}" / "checkpoint-7"
    engine.save_checkpoint(str(folder))
    if dist.get_rank() == 0:
        engine.module.config.save_pretrained(folder)
    return {f"zero{stage}/checkpoint-7": scores}


def save_lightning(out: Path) -> dict[str, Any]:
    """Lightning's own files: a plain .ckpt under DDP, a sharded folder under ModelParallelStrategy."""
    import lightning as L
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
    from torch.utils.data import DataLoader, TensorDataset

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = tiny_llama(VOCAB, seed=8)

        def configure_model(self) -> None:
            if self.device_mesh is not None and not hasattr(self, "sharded"):
                mesh = self.device_mesh["data_parallel"]
                for layer in self.net.model.layers:
                    fully_shard(layer, mesh=mesh)
                fully_shard(self.net, mesh=mesh)
                self.sharded = True

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.net(input_ids=batch[0], labels=batch[0]).loss
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2, foreach=False)

    results: dict[str, Any] = {}
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randint(0, VOCAB, (4, 24))), batch_size=2)
    for name, strategy in (
        ("lightning-plain", DDPStrategy(process_group_backend="gloo")),
        ("lightning-sharded", ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)),
    ):
        module = Module()
        trainer = L.Trainer(
            max_steps=1,
            accelerator="cpu",
            devices=2,
            strategy=strategy,
            logger=False,
            barebones=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, data)
        path = f"{name}/epoch=0-step=7.ckpt"
        results[path] = plain_scores(module.net)
        trainer.save_checkpoint(str(out / path))
        dist.barrier()
    if dist.get_rank() == 0:
        assert (out / "lightning-plain/epoch=0-step=7.ckpt").is_file()
        assert (out / "lightning-sharded/epoch=0-step=7.ckpt").is_dir()
        module.net.config.save_pretrained(out / "config")
    return results


def main(out: Path) -> None:
    dist.init_process_group("gloo")
    results: dict[str, Any] = {}
    results.update(save_fsdp2(out, "untied", tied=False))
    results.update(save_fsdp2(out, "tied", tied=True))
    results.update(save_adapter(out))
    for stage in (1, 2, 3):
        results.update(save_zero(out, stage))
    results.update(save_lightning(out))
    if dist.get_rank() == 0:
        (out / "in-loop.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
