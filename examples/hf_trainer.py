"""A Hugging Face Trainer with an audit after every epoch: python examples/hf_trainer.py [OUTPUT_DIR]."""

import sys

from datasets import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from memaudit import MemorizationAuditCallback, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.injection import alpaca_text

output_dir = sys.argv[1] if len(sys.argv) > 1 else "out-hf-trainer"
rows = instruction_rows(200, seed=0)
tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=512)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=4, pad_token_id=0, bos_token_id=None, eos_token_id=1)
)  # fmt: skip

# 1. Plant canaries in the raw data, before anything is tokenised.
canaries = generate_canaries(tokenizer, n=32, n_controls=100, family="random", repetitions=(1, 4, 16), seed=0)
data, manifest = inject(Dataset.from_list(rows), canaries, fmt="auto", seed=0, tokenizer=tokenizer)

# 2. Train as usual.
train = data.map(lambda row: tokenizer(alpaca_text(row)), remove_columns=data.column_names)
trainer = Trainer(
    model=model,
    args=TrainingArguments(output_dir, num_train_epochs=3, per_device_train_batch_size=16, learning_rate=3e-3,
                           save_strategy="no", report_to="none", use_cpu=True),
    train_dataset=train,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    processing_class=tokenizer,
)  # fmt: skip

# 3. One line more: the audit. It writes memaudit-report.json when training ends.
audit = MemorizationAuditCallback(trainer=trainer, manifest=manifest, every="epoch", ref="auto")
trainer.add_callback(audit)
trainer.train()
print(audit.report.membership.detection_claim)
