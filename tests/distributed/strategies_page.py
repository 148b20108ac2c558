"""docs/strategies.md, written from what the strategies' tests measured."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NAMES = {
    "ddp": "DDP",
    "fsdp1": "FSDP1",
    "fsdp1_offload": "FSDP1, offloaded to the CPU",
    "fsdp2": "FSDP2",
    "fsdp2_offload": "FSDP2, offloaded to the CPU",
    "hsdp1": "FSDP1, hybrid 2 x 2",
    "hsdp2": "FSDP2, hybrid 2 x 2",
    "tp": "tensor parallel",
    "tp_plan": "tensor parallel, transformers' own",
    "dp_tp": "replicas x tensor parallel, 2 x 2",
    "tp_fsdp2": "FSDP2 x tensor parallel, 2 x 2",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero2_offload": "ZeRO-2, optimizer offloaded",
    "zero3": "ZeRO-3",
    "zero3_offload": "ZeRO-3, optimizer and parameters offloaded",
}

HEAD = """# Strategies

This page is written by `tests/distributed/test_strategies.py` from what it measured: gloo, fp32, a 2-layer Llama,
records of 5 to 14 tokens dealt over the ranks, the last digit as of the last run.

A strategy says how a model lies on its ranks. `memaudit.strategies.resolve.resolve()` finds it from a model in any
wrapper, an `accelerate.Accelerator`, a transformers `Trainer` or a Lightning `Trainer`, and raises `StrategyError`
where none fits; it never falls back in silence. What it found stands in the report under `distributed`.

- **difference**: largest difference of a target token's log-probability between the audit in the loop (through
  `AuditEngine`, and by the strategy's forward alone) and the weights consolidated into one plain model (one record
  at a time, every row projected). Batch sizes 1 to 3, uneven lengths, shared prefixes, fewer records than ranks,
  before, between and after training steps.
- **reference**: the same for the pass with adapters off, where the case has LoRA.
- **gradient norm**: relative difference of per-record squared gradient norms to a plain backward.
- **generation**: greedy ids equal those of plain decoding, with other prompts on each rank and none on the last.
- **training**: final weights equal to the bit with and without audits (scores, reference, sampling, gradient norms)
  before the first step and between steps; the variants that were run.

| strategy | loop | model | ranks | difference | reference | gradient norm | generation |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""

BITS_HEAD = """
| strategy | ranks | training equal to the bit |
| --- | --- | --- |
"""

TAIL = """
Every limit is checked: 1e-5 (tensor parallel 1e-4), and the training check has a control that loses the random
state and must be noticed. "raising" is an audit that raises in the middle, "unstepped" one between backward and the
optimizer's step, "accumulation" one between micro-batches. "bf16" is autocast, and under ZeRO DeepSpeed's own bf16
weights; "autocast" is DeepSpeed's `torch_autocast`. Resumed runs are in `tests/distributed/test_resume.py`.

LoRA beside tensor parallelism is exact where an adapter is split as its layer is: lora_B beside columns, lora_A
beside rows, the other one whole on each rank. That is what PEFT makes on a model that transformers loaded with a
`distributed_config`, and what `parallelize_module` makes of a PEFT model with a plan for `base_layer`, `lora_A` and
`lora_B`. The other order, `get_peft_model` on a model that `parallelize_module` has split, gives each rank a piece of
the adapter that no tensor speaks of. Beside rows such ranks compute different models, and `resolve()` raises
`StrategyError`; beside columns scores and reference are right, and gradient norms and consolidated weights are
refused, since each rank trains a copy of lora_A of its own. (PEFT 0.21 with transformers 5.24 fails by itself on an
adapter beside the rows of transformers' own plan, so that row has adapters beside columns alone.)

Offloading under FSDP goes from the CPU to the CPU here. FSDP1 on one rank has no LoRA row: after a training step with
frozen weights there torch's own `state_dict()` fails.

Not run here: NCCL or any GPU; ZeRO with NVMe; pipeline, context and expert parallelism, for which `resolve()` has no
strategy.
"""

LOOPS = {"huggingface": "HF Trainer", "lightning": "Lightning"}


def number(value: float) -> str:
    """Return a difference with one digit."""
    return "0" if value == 0 else f"{value:.0e}"


def model_row(kind: str, part: str, ranks: int, result: dict[str, Any]) -> str:
    """Return one line of the table of differences."""
    differences = [value for name, value in result.items() if name.startswith("scores_")]
    references = [result[name] for name in ("reference_before", "reference_after") if name in result]
    own = "accelerate" if result["given"] == "Accelerator" else "torch"
    cells = [
        NAMES[kind],
        LOOPS.get(part.split("_")[0], own),
        ("tied" if result["tied"] else "untied") + (", LoRA" if result["lora"] else ""),
        str(ranks),
        number(max(differences)),
        number(max(references)) if references else "",
        number(result["gradients"]),
        "equal" if result["generation_wrong"] == 0 else f"{result['generation_wrong']} differ",
    ]
    return "| " + " | ".join(cells) + " |"


def bits_row(kind: str, ranks: int, result: dict[str, Any]) -> str:
    """Return one line of the table of trainings."""
    equal = [name.removeprefix("bits_") for name, value in result.items() if name[:5] == "bits_" and value]
    return f"| {NAMES[kind]} | {ranks} | {', '.join(equal)} |"


def page(measured: Iterable[tuple[str, str, int, dict[str, Any]]]) -> str:
    """Return the page of (kind, part, ranks, what was measured)."""
    order = list(NAMES)
    rows, bits = [], []
    for kind, part, ranks, result in sorted(measured, key=lambda one: (order.index(one[0]), one[2])):
        if part == "bits":
            bits.append(bits_row(kind, ranks, result))
        else:
            rows.append(model_row(kind, part, ranks, result))
    return HEAD + "\n".join(rows) + "\n" + BITS_HEAD + "\n".join(bits) + "\n" + TAIL
