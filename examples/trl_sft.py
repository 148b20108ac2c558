"""TRL's SFTTrainer with LoRA: the reference is the same model with its adapters off."""

import sys

from datasets import Dataset
from peft import LoraConfig
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

from memaudit import MemorizationAuditCallback, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows

output_dir = sys.argv[1] if len(sys.argv) > 1 else "out-trl-sft"
rows = [
    {"prompt": row["instruction"] + "\n", "completion": row["output"]}
    for row in instruction_rows(200, seed=0)
]
tokenizer = byte_tokenizer([row["prompt"] + row["completion"] for row in rows], vocab_size=512)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=4, pad_token_id=0, bos_token_id=None, eos_token_id=1)
)  # fmt: skip

canaries = generate_canaries(tokenizer, n=32, n_controls=100, family="random", repetitions=(1, 4, 16), seed=0)
data, manifest = inject(Dataset.from_list(rows), canaries, fmt="auto", seed=0, tokenizer=tokenizer)

trainer = SFTTrainer(
    model=model,
    args=SFTConfig(output_dir, num_train_epochs=2, per_device_train_batch_size=16, learning_rate=1e-2, max_length=256,
                   completion_only_loss=True, save_strategy="no", report_to="none", use_cpu=True, bf16=False),
    train_dataset=data,
    processing_class=tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
)  # fmt: skip
audit = MemorizationAuditCallback(trainer=trainer, manifest=manifest, ref="auto", max_length=256)
trainer.add_callback(audit)
trainer.train()
print(audit.report.reference.mode, "-", audit.report.membership.detection_claim)
