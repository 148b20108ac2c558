"""A Lightning Trainer with an audit after every epoch: python examples/lightning_module.py [OUTPUT_DIR]."""

import sys

import lightning as L
import torch
from transformers import DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM

from memaudit import LightningMemorizationAudit, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.injection import alpaca_text

output_dir = sys.argv[1] if len(sys.argv) > 1 else "out-lightning"
rows = instruction_rows(200, seed=0)
tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=512)
canaries = generate_canaries(tokenizer, n=32, n_controls=100, family="random", repetitions=(1, 4, 16), seed=0)
rows, manifest = inject(rows, canaries, fmt="auto", seed=0, tokenizer=tokenizer)


class FineTune(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = LlamaForCausalLM(
            LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                        num_attention_heads=4, pad_token_id=0, bos_token_id=None, eos_token_id=1)
        )  # fmt: skip

    def training_step(self, batch, index):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
data = torch.utils.data.DataLoader([tokenizer(alpaca_text(r)) for r in rows], 16, True, collate_fn=collate)
audit = LightningMemorizationAudit(manifest, tokenizer, every_n_epochs=1, output_dir=output_dir)
trainer = L.Trainer(max_epochs=3, callbacks=[audit], accelerator="cpu", default_root_dir=output_dir)
trainer.fit(FineTune(), data)
print(audit.report.membership.detection_claim)
