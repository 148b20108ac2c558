"""A raw accelerate loop: python examples/accelerate_loop.py, or accelerate launch it on as many ranks as there are."""

import sys

import torch
from accelerate import Accelerator
from transformers import DataCollatorForLanguageModeling, LlamaConfig, LlamaForCausalLM

from memaudit import AuditLoop, generate_canaries, inject
from memaudit.demo.text import byte_tokenizer, instruction_rows
from memaudit.injection import alpaca_text

output_dir = sys.argv[1] if len(sys.argv) > 1 else "out-accelerate"
rows = instruction_rows(200, seed=0)
tokenizer = byte_tokenizer([alpaca_text(row) for row in rows], vocab_size=512)
canaries = generate_canaries(tokenizer, n=32, n_controls=100, family="random", repetitions=(1, 4, 16), seed=0)
rows, manifest = inject(rows, canaries, fmt="auto", seed=0, tokenizer=tokenizer)

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                num_attention_heads=4, pad_token_id=0, bos_token_id=None, eos_token_id=1)
)  # fmt: skip
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
loader = torch.utils.data.DataLoader(
    [tokenizer(alpaca_text(row)) for row in rows], 16, True, collate_fn=collate
)
accelerator = Accelerator(cpu=not torch.cuda.is_available())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

audit = AuditLoop(accelerator, tokenizer, manifest, every="epoch", output_dir=output_dir, loader=loader)
audit.begin()  # pre-flight, and the model's own scores before its first step
step = 0
for epoch in range(3):
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    if result := audit.after_epoch(epoch + 1, step):
        accelerator.print(result.figures)
accelerator.print(audit.end(step).membership.detection_claim)
accelerator.end_training()
