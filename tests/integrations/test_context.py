"""Secrets are scored in the context that they were trained in, also where the user's template is another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

from memaudit import MemorizationAuditCallback, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.injection import alpaca_text, render, render_all
from memaudit.manifest import Manifest
from tests.helpers import tiny_llama


def test_another_template_than_the_rendered_one_is_seen_and_scored(tmp_path: Path) -> None:
    rows = instruction_rows(24, seed=0)
    tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=320)
    canaries = generate_canaries(tokenizer, n=8, n_controls=100, family="random", repetitions=(4,), seed=1)
    data, manifest = inject(Dataset.from_list(rows), canaries, fmt="alpaca", seed=0, tokenizer=tokenizer)

    def own_template(row: dict[str, Any]) -> Any:
        return tokenizer("Question! " + row["instruction"] + "\nAnswer:\n" + row["output"])

    trainer = Trainer(
        model=tiny_llama(320, 1, 32, positions=256),
        args=TrainingArguments(
            str(tmp_path),
            max_steps=3,
            per_device_train_batch_size=8,
            report_to="none",
            use_cpu=True,
            save_strategy="no",
        ),
        train_dataset=data.map(own_template, remove_columns=data.column_names),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    audit = MemorizationAuditCallback(trainer=trainer, manifest=manifest, ref="none", skip_generation=True)
    trainer.add_callback(audit)
    trainer.train()

    kept = Manifest.load(tmp_path / "memaudit-manifest.json")
    assert kept.observed_prefix is not None and audit.report.canary_manifest_hash == kept.content_hash()
    canary = manifest.members[0]
    trained = own_template(canary.record)["input_ids"]
    start = len(kept.observed_prefix)
    assert tuple(trained[:start]) == kept.observed_prefix
    assert tuple(trained[start : start + len(canary.secret_ids)]) == canary.secret_ids
    assert render(canary, "alpaca", tokenizer).ids[:start] != kept.observed_prefix
    one = render_all(kept, tokenizer)[canary.id]
    with torch.no_grad():
        logits = trainer.model(torch.tensor([trained])).logits[0].log_softmax(-1)
    right = [float(logits[t - 1, trained[t]]) for t in range(*one.span)]
    found = audit.results[-1].target.signals[canary.id].logprob
    assert np.allclose(found, right, atol=1e-5)
