"""One rank of the tiny demonstration: a small transformer, sharded by FSDP2, in a raw training loop."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memaudit.demo.settings import DemoSettings
from memaudit.demo.text import byte_tokenizer, instruction_rows, shuffled
from memaudit.injection import alpaca_text, inject
from memaudit.sampling import generate_canaries
from memaudit.seeds import derive_seed
from memaudit.session import MANIFEST_NAME, AuditSession

HOST_ROWS = 320
EPOCHS = 6
BATCH_PER_RANK = 8
LEARNING_RATE = 3e-3
VOCABULARY = 512


def train_and_audit(settings: DemoSettings) -> Any:
    """Plant canaries, train on this rank's share, audit at step 0, after each epoch and at the end.

    Returns:
        The report, on every rank.
    """
    rows = instruction_rows(HOST_ROWS, settings.seed)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], VOCABULARY)
    canaries = generate_canaries(
        tokenizer, n=48, n_controls=110, family="random", repetitions=(1, 4, 16), seed=settings.seed
    )
    planted, manifest = inject(rows, canaries, fmt="alpaca", seed=settings.seed, tokenizer=tokenizer)
    texts = [tokenizer(alpaca_text(row))["input_ids"] + [tokenizer.eos_token_id] for row in planted]
    with ExitStack() as stack:
        rank, world = _join(settings, stack)
        output = Path(settings.output_dir)
        if rank == 0:
            manifest.save(output / MANIFEST_NAME)
        model = _wrap(_model(len(tokenizer), settings.seed), settings, world)
        session = AuditSession(
            model, tokenizer, manifest, output_dir=output, target_fpr=0.01, prefix_fractions=(0.25, 0.5)
        )
        session.reference()
        session.audit(0, epoch=0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        step = 0
        for epoch in range(EPOCHS):
            order = shuffled(len(texts), settings.seed, epoch)
            per_step = BATCH_PER_RANK * world
            for start in range(0, len(order) - per_step + 1, per_step):
                mine = order[start + rank * BATCH_PER_RANK : start + (rank + 1) * BATCH_PER_RANK]
                loss = model(**_batch([texts[i] for i in mine], tokenizer.pad_token_id)).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
            session.audit(step, epoch=epoch + 1)
        return session.report()


def _model(vocab_size: int, seed: int) -> nn.Module:
    """A Llama of 0.4 million parameters; every rank makes the same one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(derive_seed(seed, "demo", "weights"))
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
        return LlamaForCausalLM(config)


def _join(settings: DemoSettings, stack: ExitStack) -> tuple[int, int]:
    """Join the other ranks, where there are any, and leave them properly at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 or settings.strategy == "fsdp2":
        if "RANK" not in os.environ:
            os.environ.update(
                RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0", LOCAL_RANK="0"
            )
        dist.init_process_group("gloo")
        # Without this some back ends abort at the interpreter's exit.
        stack.callback(dist.destroy_process_group)
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _wrap(model: nn.Module, settings: DemoSettings, world: int) -> Any:
    if settings.strategy == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for layer in model.model.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    return nn.parallel.DistributedDataParallel(model) if settings.strategy == "ddp" else model


def _batch(rows: list[list[int]], pad: int) -> dict[str, torch.Tensor]:
    length = max(len(row) for row in rows)
    ids = torch.full((len(rows), length), pad)
    mask = torch.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
