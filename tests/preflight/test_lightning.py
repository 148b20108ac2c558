"""The pre-flight on Lightning: the rows of its loader, and the traps that Lightning users meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memaudit import generate_canaries, inject
from memaudit.manifest import Manifest
from memaudit.preflight import PreflightResult, run_preflight
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

lightning = pytest.importorskip("lightning")

TEXTS = sample_text(40, seed=6)


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class Data(lightning.LightningDataModule):  # type: ignore[misc,name-defined]
    """Texts that the collator tokenises, cuts and masks."""

    def __init__(self, tokenizer: Any, max_length: int | None = None, masked: bool = False) -> None:
        super().__init__()
        self.tokenizer, self.max_length, self.masked = tokenizer, max_length, masked

    def setup(self, stage: str) -> None:
        self.train_dataset = Rows([{"text": text} for text in TEXTS])

    def collate(self, rows: list[dict[str, Any]]) -> Any:
        ids = [self.tokenizer(row["text"])["input_ids"][: self.max_length] for row in rows]
        longest = max(map(len, ids))
        padded = torch.tensor([one + [3] * (longest - len(one)) for one in ids])
        mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids])
        labels = torch.full_like(padded, -100) if self.masked else padded.masked_fill(mask == 0, -100)
        return {"input_ids": padded, "attention_mask": mask, "labels": labels}

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.collate
        )


class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.model = tiny_llama(vocab, layers=1, hidden=16)
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.extend(row.tolist() for row in batch["input_ids"])
        return self.model(**batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Preflight(lightning.Callback):  # type: ignore[misc,name-defined]
    """Runs the pre-flight where the audit's callback does: when training begins."""

    def __init__(self, manifest: Manifest, tokenizer: Any) -> None:
        self.manifest, self.tokenizer = manifest, tokenizer
        self.result: PreflightResult | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.result = run_preflight(trainer, self.manifest, tokenizer=self.tokenizer)


def fit(tmp_path: Any, planted: bool = True, audit: bool = True, **options: Any) -> Any:
    tokenizer = tiny_tokenizer()
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", repetitions=(1, 3), seed=2)
    data, manifest = inject(Data(tokenizer, **options), canaries, tokenizer=tokenizer)
    if not planted:
        data = Data(tokenizer, **options)
    callback = Preflight(manifest, tokenizer)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
        callbacks=[callback] if audit else [],
    )
    lightning.seed_everything(4, verbose=False)
    module = Module(len(tokenizer))
    trainer.fit(module, datamodule=data)
    return callback.result, manifest, module


def test_a_sound_set_up_passes(tmp_path: Any) -> None:
    result, manifest, module = fit(tmp_path)
    assert result.ok, result.errors
    assert result.counts.found == len(manifest.members) and result.counts.labels_seen
    assert result.counts.copies == sum(canary.repetitions for canary in manifest.members)
    # What the pre-flight looked at is what was trained on.
    rows = [tuple(row) for row in module.seen]
    for canary in manifest.members:
        size = len(canary.secret_ids)
        hits = sum(any(row[at : at + size] == canary.secret_ids for at in range(len(row))) for row in rows)
        assert hits == canary.repetitions


def test_training_sees_the_same_rows_with_and_without_the_pre_flight(tmp_path: Any) -> None:
    _, _, with_it = fit(tmp_path)
    _, _, without = fit(tmp_path, audit=False)
    assert with_it.seen == without.seen


def test_data_without_the_canaries(tmp_path: Any) -> None:
    result, manifest, _ = fit(tmp_path, planted=False)
    assert "secret-missing" in {one.code for one in result.errors}
    assert result.counts.missing == len(manifest.members)


def test_a_collator_that_cuts(tmp_path: Any) -> None:
    result, _, _ = fit(tmp_path, max_length=20)
    assert "secret-truncated" in {one.code for one in result.errors}


def test_a_collator_that_masks(tmp_path: Any) -> None:
    result, _, _ = fit(tmp_path, masked=True)
    assert "secret-masked" in {one.code for one in result.errors}


def test_a_trainer_that_shows_no_loader() -> None:
    tokenizer = tiny_tokenizer()
    canaries = generate_canaries(tokenizer, n=12, n_controls=100, family="random", seed=2)
    _, manifest = inject([{"text": text} for text in TEXTS], canaries)
    trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    result = run_preflight(trainer, manifest, tokenizer=tokenizer)
    assert "no-train-loader" in {one.code for one in result.warnings} and not result.counts.complete
