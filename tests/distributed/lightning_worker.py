"""Run under torchrun: Lightning trains on real ranks with audits in its loop. Writes what it measured as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy

from memaudit import LightningMemorizationAudit, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.injection import alpaca_text
from tests.helpers import tiny_llama

VOCAB = 320
STEPS = 4


class FineTune(L.LightningModule):
    """A model with dropout, sharded with FSDP2 where the strategy asks for it."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.model = tiny_llama(VOCAB, 2, 32, positions=256, attention_dropout=0.1)

    def configure_model(self) -> None:
        if self.kind == "fsdp2" and self.device_mesh is not None and not hasattr(self, "_sharded"):
            from torch.distributed.fsdp import fully_shard

            mesh = self.device_mesh["data_parallel"]
            for layer in self.model.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.model, mesh=mesh)
            self._sharded = True

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, foreach=False)


def loader(tokenizer: Any, texts: list[str]) -> Any:
    """Return batches of equal length, STEPS of them for each of two ranks."""
    encoded = [tokenizer(text)["input_ids"] for text in (texts * 4)[: 4 * STEPS]]
    length = max(map(len, encoded))  # nothing is cut: the pre-flight would find the canaries' secrets missing
    rows = []
    for row in encoded:
        ids = torch.tensor(row + [0] * (length - len(row)))
        rows.append({"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100)})
    return torch.utils.data.DataLoader(rows, 2)


def fit(kind: str, folder: Path, planted: Any, **schedule: Any) -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """Train; return the callback, the trainer and the consolidated weights of the end (rank 0)."""
    tokenizer, manifest, texts = planted
    L.seed_everything(0, verbose=False)
    strategy = "ddp" if kind == "ddp" else ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    weights: dict[str, torch.Tensor] = {}

    class Keeps(L.Callback):
        """Runs after the audit: takes the weights and the facts while they are in place."""

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            from memaudit.strategies.resolve import resolve

            found = resolve(trainer)
            weights.update(found.consolidate())
            self.facts = found.facts()

    keeps = Keeps()
    audit = LightningMemorizationAudit(manifest, tokenizer, output_dir=folder, **schedule)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        max_epochs=1,
        callbacks=[audit, keeps],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=True,
    )
    trainer.fit(FineTune(kind), loader(tokenizer, texts))
    audit.facts = keeps.facts  # type: ignore[attr-defined]
    return audit, trainer, weights


def main(kind: str, folder: Path) -> None:
    rows = instruction_rows(8, seed=0)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=VOCAB)
    canaries = generate_canaries(
        tokenizer, n=8, n_controls=20, family="random", repetitions=(1, 4), seed=0, secret_len=25
    )
    rows, manifest = inject(rows, canaries, fmt="auto", seed=0, tokenizer=tokenizer)
    planted = tokenizer, manifest, [alpaca_text(row) for row in rows]

    audit, trainer, weights = fit(kind, folder / "often", planted, at_start=True, every_n_steps=2)
    _, _, without = fit(kind, folder / "none", planted, at_end=False)
    session = audit._lifecycle.session
    if trainer.global_rank == 0:
        plain = tiny_llama(VOCAB, 2, 32, positions=256, seed=9).eval()
        missing, unexpected = plain.load_state_dict(weights, strict=False)
        worst = 0.0
        for name, record in session.rendered.items():
            start, stop = record.span
            with torch.no_grad():
                logs = plain(torch.tensor([record.ids])).logits[0].log_softmax(-1)
            signals = session.last.target.signals[name]
            worst = max(
                worst,
                *(
                    abs(float(logs[t - 1, record.ids[t]]) - signals.logprob[t - start])
                    for t in range(start, stop)
                ),
            )
        facts = audit.facts
        (folder / "found.json").write_text(
            json.dumps(
                {
                    "strategy": facts.strategy,
                    "world": facts.world_size,
                    "sharded": facts.sharded,
                    "local": facts.local_parameters,
                    "total": facts.total_parameters,
                    "missing": [*missing, *unexpected],
                    "difference": worst,
                    "steps": [result.step for result in audit.results],
                    "forwards": list(session.last.target.forwards),
                    "same_bits": weights.keys() == without.keys()
                    and all(torch.equal(weights[k], without[k]) for k in weights),
                    "moved": not all(
                        torch.equal(weights[k], v)
                        for k, v in tiny_llama(VOCAB, 2, 32, positions=256).state_dict().items()
                        if k in weights
                    ),
                    "report": audit.report.distributed["strategy"],
                    "reference": session.reference().mode,
                }
            )
        )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
