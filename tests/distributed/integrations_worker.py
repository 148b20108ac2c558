"""Run under torchrun: one fine-tune through the Hugging Face Trainer, Lightning and a raw accelerate loop.

Each sees the same batches in the same order from the same weights, with plain gradient descent and no dropout, so
that only the integration differs. Writes what it measured as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.distributed import cpu_backends

VOCAB = 320
BATCH = 2
EPOCHS = 2
RATE = 0.3


def planted() -> tuple[Any, Any, list[dict[str, Any]]]:
    """Return tokenizer, manifest and records; the same on every rank, a whole number of steps on two."""
    from memaudit import generate_canaries, inject
    from memaudit.demo.text import byte_tokenizer, instruction_rows
    from memaudit.injection import alpaca_text

    rows = instruction_rows(8, seed=0)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=VOCAB)
    canaries = generate_canaries(
        tokenizer, n=8, n_controls=20, family="random", repetitions=(1, 4), seed=0, secret_len=25
    )
    rows, manifest = inject(rows, canaries, fmt="alpaca", seed=0, tokenizer=tokenizer)
    rows += instruction_rows(40, seed=1)[: -len(rows) % (2 * BATCH)]
    return tokenizer, manifest, [{"input_ids": tokenizer(alpaca_text(row))["input_ids"]} for row in rows]


def a_model(dropout: float = 0.0) -> Any:
    """Return the model that every run starts from."""
    from tests.helpers import tiny_llama

    return tiny_llama(VOCAB, 2, 32, positions=256, attention_dropout=dropout)


class MyBatches(torch.utils.data.Sampler[list[int]]):
    """This rank's batches as accelerate deals them: batch 0 to rank 0, batch 1 to rank 1, and so on."""

    def __init__(self, rows: int) -> None:
        self.batches = [list(range(start, start + BATCH)) for start in range(0, rows, BATCH)]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches[dist.get_rank() :: dist.get_world_size()])

    def __len__(self) -> int:
        return len(self.batches) // dist.get_world_size()


def loader_of(data: tuple[Any, Any, list[dict[str, Any]]]) -> Any:
    """Return this rank's data loader."""
    from transformers import DataCollatorForLanguageModeling

    collate = DataCollatorForLanguageModeling(data[0], mlm=False)
    return torch.utils.data.DataLoader(data[2], batch_sampler=MyBatches(len(data[2])), collate_fn=collate)  # type: ignore[arg-type]


def local_parameters(model: nn.Module) -> int:
    """Count the numbers that lie on this rank, off the tensors themselves."""
    return sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in model.parameters())


def fresh() -> None:
    """Forget what accelerate keeps for the whole process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def found(session: Any, results: list[Any], wrapped: nn.Module) -> dict[str, Any]:
    """Return what one run measured, on every rank; the consolidated model is the independent path."""
    state = session.strategy.consolidate()
    out: dict[str, Any] = {
        "wrapper": [cls.__name__ for cls in type(wrapped).__mro__],
        "local": local_parameters(session.strategy.model),
        "steps": [result.step for result in results],
        "scores": [result.scores["ref_minkpp"] for result in results],
        "logprobs": {name: signals.logprob.tolist() for name, signals in results[-1].target.signals.items()},
        "rank": session.strategy.rank,
    }
    if session.strategy.rank == 0:
        plain = a_model()
        out["total"] = sum(p.numel() for p in plain.parameters())
        plain.load_state_dict(
            {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}
        )
        plain.eval()
        worst = 0.0
        for name, record in session.rendered.items():
            with torch.no_grad():
                logs = plain(torch.tensor([record.ids])).logits[0].log_softmax(-1)
            mine = [float(logs[t - 1, record.ids[t]]) for t in range(*record.span)]
            theirs = results[-1].target.signals[name].logprob
            worst = max(worst, *(abs(a - float(b)) for a, b in zip(mine, theirs, strict=True)))
        out["consolidated_difference"] = worst
    return out


FSDP2 = {
    "version": 2,
    "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    "reshard_after_forward": True,
    "cpu_ram_efficient_loading": False,
}


def huggingface(
    kind: str, folder: Path, data: Any, *, audits: bool = True, dropout: float = 0.0
) -> dict[str, Any]:
    """Train with the Trainer of transformers."""
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

    from memaudit import MemorizationAuditCallback
    from memaudit.strategies.resolve import resolve

    fresh()
    sharding: dict[str, Any] = {"fsdp": True, "fsdp_config": FSDP2} if kind == "fsdp2" else {"use_cpu": True}
    arguments = TrainingArguments(
        str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        # As in the other two: each rank's mean, and the mean of these.
        average_tokens_across_devices=False,
        train_sampling_strategy="sequential",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **sharding,
    )
    trainer = Trainer(
        model=a_model(dropout),
        args=arguments,
        train_dataset=data[2],
        data_collator=DataCollatorForLanguageModeling(data[0], mlm=False),
        processing_class=data[0],
    )
    out: dict[str, Any] = {}

    class Keeps(TrainerCallback):  # type: ignore[misc]
        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            strategy = resolve(trainer)
            out["weights"] = {name: value.clone() for name, value in strategy.consolidate().items()}
            out["wrapped"] = trainer.model_wrapped

    if audits:
        audit = MemorizationAuditCallback(
            trainer=trainer, manifest=data[1], every="epoch", at_start=True, real_sample=4
        )
        trainer.add_callback(audit)
    trainer.add_callback(Keeps())
    trainer.train()
    if audits:
        session = audit._lifecycle.session  # type: ignore[union-attr]
        out.update(found(session, audit.results, out["wrapped"]))
        out["report"] = audit.report.distributed
    del out["wrapped"]
    return out


def lightning(kind: str, folder: Path, data: Any) -> dict[str, Any]:
    """Train with Lightning's Trainer."""
    import lightning as L
    from lightning.pytorch.strategies import ModelParallelStrategy

    from memaudit import LightningMemorizationAudit

    class FineTune(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = a_model()

        def configure_model(self) -> None:
            if kind == "fsdp2" and not hasattr(self, "sharded"):
                from torch.distributed.fsdp import fully_shard

                mesh = self.device_mesh["data_parallel"]  # type: ignore[index]
                for layer in self.model.model.layers:
                    fully_shard(layer, mesh=mesh)
                fully_shard(self.model, mesh=mesh)
                self.sharded = True

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch).loss
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    out: dict[str, Any] = {}

    class Keeps(L.Callback):
        """Runs after the audit, while the weights are in place."""

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            session = audit._lifecycle.session  # type: ignore[union-attr]
            wrapped = pl_module.model if kind == "fsdp2" else trainer.strategy.model
            out.update(found(session, audit.results, wrapped))

    audit = LightningMemorizationAudit(
        data[1], data[0], every_n_epochs=1, at_start=True, output_dir=folder, skip_generation=True
    )
    world = dist.get_world_size()
    trainer = L.Trainer(
        accelerator="cpu",
        devices=world,
        strategy="ddp"
        if kind == "ddp"
        else ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1),
        max_epochs=EPOCHS,
        callbacks=[audit, Keeps()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(FineTune(), loader_of(data))
    out["report"] = audit.report.distributed
    return out


def raw(kind: str, folder: Path, data: Any) -> dict[str, Any]:
    """Train in a loop of one's own with accelerate."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    from memaudit import AuditLoop

    fresh()
    options: dict[str, Any] = {"cpu": True}
    if kind == "fsdp2":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
        )
        options = {"fsdp_plugin": plugin}
    accelerator = Accelerator(**options)
    model = a_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    audit = AuditLoop(
        accelerator,
        data[0],
        data[1],
        every="epoch",
        at_start=True,
        output_dir=folder,
        # Dealt out by rank, as datasets.distributed.split_dataset_by_node does.
        train_records=data[2][dist.get_rank() :: dist.get_world_size()],
        skip_generation=True,
        real_sample=4,
    )
    audit.begin(epoch=0)
    step = 0
    for epoch in range(EPOCHS):
        model.train()
        for batch in loader_of(data):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
        audit.after_epoch(epoch + 1, step)
    report = audit.end(step, EPOCHS)
    out = {**found(audit.session, audit.results, model), "report": report.distributed}
    return {**out, "ranked": [one["hash"] for one in report.real_records.ranked]}


def plain_json(part: dict[str, Any]) -> dict[str, Any]:
    """Leave the weights out."""
    return {name: value for name, value in part.items() if name != "weights"}


def main(folder: Path) -> None:
    """Run everything for DDP and FSDP2."""
    cpu_backends.accelerate_on_cpu()
    dist.init_process_group("gloo")
    data = planted()
    out: dict[str, Any] = {}
    environment = dict(os.environ)
    for kind in ("ddp", "fsdp2"):
        out[kind] = {}
        for name, run in (("huggingface", huggingface), ("lightning", lightning), ("raw", raw)):
            part = run(kind, folder / f"{kind}-{name}", data)
            # Every rank's view: what it holds and that its results are those of the others.
            views: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(views, (part["local"], part["scores"]))
            out[kind][name] = plain_json(part)
            out[kind][name]["locals"] = [local for local, _ in views]
            out[kind][name]["same_on_every_rank"] = all(scores == views[0][1] for _, scores in views)
            # Frameworks leave variables behind that the next one would follow.
            os.environ.clear()
            os.environ.update(environment)
    first = huggingface("fsdp2", folder / "with", data, dropout=0.1)["weights"]
    without = huggingface("fsdp2", folder / "without", data, audits=False, dropout=0.1)["weights"]
    start = a_model().state_dict()
    if dist.get_rank() == 0:
        out["bits"] = {
            "same": first.keys() == without.keys() and all(torch.equal(first[k], without[k]) for k in first),
            "moved": any(not torch.equal(first[k], start[k]) for k in first),
            "n": len(first),
        }
        (folder / "found.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
