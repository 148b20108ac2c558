"""Every strategy on real ranks: what strategy_worker.py measured, compared with the limits; writes the table.

One start of torchrun serves several strategies, since starting costs more than measuring.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launcher import ROOT, torchrun

# A start takes about a minute on a quiet machine of two cores; the limits are for a crowded one.
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(960)]

WORKER = Path(__file__).with_name("strategy_worker.py")

STARTS: dict[str, tuple[int, dict[str, str]]] = {
    "replicated and sharded, 2 ranks": (
        2,
        {
            "ddp": "tied+untied_lora+bits+huggingface+lightning",
            "fsdp1": "tied+untied_lora+bits+lightning+huggingface",
            "fsdp2": "tied+untied_lora+bits+lightning+huggingface",
            "tp": "untied+bits+lightning",
            "tp_plan": "untied",
            "resolve": "bare+tp_lora",
        },
    ),
    "DeepSpeed, 2 ranks": (
        2,
        {
            "zero1": "untied+huggingface+lightning",
            "zero2": "tied_lora+bits+huggingface+lightning",
            "zero3": "tied+untied_lora+bits+huggingface+lightning",
            "zero2_offload": "tied",
            "zero3_offload": "tied+bits",
        },
    ),
    "4 ranks": (
        4,
        {
            "ddp": "untied",
            "fsdp1": "tied",
            "fsdp2": "untied_lora",
            "hsdp1": "tied",
            "hsdp2": "untied_lora+bits",
            "tp_fsdp2": "untied+bits",
            "dp_tp": "untied",
        },
    ),
    "DeepSpeed, 4 ranks": (4, {"zero3": "tied"}),
    "1 rank": (1, {"ddp": "tied", "fsdp1": "tied", "fsdp2": "untied_lora", "zero3": "tied"}),
}

WRAPPERS = {  # kind: (strategy, wrapper without PEFT or Lightning, shares of the parameters' elements)
    "ddp": ("ddp", ("LlamaForCausalLM", "DistributedDataParallel"), 1),
    "fsdp1": ("fsdp1", ("FullyShardedDataParallel",), None),
    "fsdp2": ("fsdp2", ("FSDPLlamaForCausalLM", "FSDPPeftModel"), None),
    "hsdp1": ("fsdp1", ("FullyShardedDataParallel",), 2),
    "hsdp2": ("fsdp2", ("FSDPLlamaForCausalLM", "FSDPPeftModel"), 2),
    "tp": ("tp", ("LlamaForCausalLM",), None),
    "dp_tp": ("tp", ("LlamaForCausalLM",), 2),
    "tp_plan": ("tp", ("LlamaForCausalLM",), None),
    "tp_fsdp2": ("tp+fsdp2", ("FSDPLlamaForCausalLM",), None),
    "zero1": ("zero1", ("DeepSpeedEngine",), 1),
    "zero2": ("zero2", ("DeepSpeedEngine",), 1),
    "zero2_offload": ("zero2", ("DeepSpeedEngine",), 1),
    "zero3": ("zero3", ("DeepSpeedEngine",), None),
    "zero3_offload": ("zero3", ("DeepSpeedEngine",), None),
}

LIMIT = 1e-5
TENSOR_PARALLEL_LIMIT = 1e-4
INTEGRATIONS = {"huggingface": "HF Trainer", "lightning": "Lightning"}


@functools.cache
def measured(start: str) -> tuple[dict[str, Any], str]:
    """Return what one start measured, and its output where it failed."""
    ranks, work = STARTS[start]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        arguments = [str(output), *(f"{kind}={parts}" for kind, parts in work.items())]
        finished = torchrun(WORKER, arguments, ranks=ranks, timeout=900)
        found = json.loads(output.read_text()) if output.exists() else {}
    return found, "" if finished.returncode == 0 else finished.everything


def part_of(start: str, kind: str, part: str) -> dict[str, Any]:
    """Return the measurements of one part, or fail with every rank's output."""
    found, failure = measured(start)
    if part not in found.get(kind, {}):
        pytest.fail(f"{kind} {part} was not reached: {failure}")
    result: dict[str, Any] = found[kind][part]
    return result


PARTS = [
    pytest.param(start, kind, part, id=f"{kind}-{part}-{ranks}")
    for start, (ranks, work) in STARTS.items()
    for kind, parts in work.items()
    for part in parts.split("+")
]
MODELS = [p for p in PARTS if p.values[2] not in ("bits", "bare", "tp_lora")]
ACCELERATE = [p for p in MODELS if p.values[2] not in INTEGRATIONS]
BITS = [p for p in PARTS if p.values[2] == "bits"]


def limit_of(kind: str) -> float:
    return TENSOR_PARALLEL_LIMIT if "tp" in kind else LIMIT


@pytest.mark.parametrize(("start", "kind", "part"), MODELS)
def test_scores_are_those_of_the_consolidated_model(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    scores = {name: value for name, value in result.items() if name.startswith("scores_")}
    assert len(scores) == (4 if part in INTEGRATIONS else 10), sorted(scores)
    assert all(value <= limit_of(kind) for value in scores.values()), scores


@pytest.mark.parametrize(("start", "kind", "part"), MODELS)
def test_the_wrapper_and_the_shares_are_what_the_case_is_about(start: str, kind: str, part: str) -> None:
    facts = part_of(start, kind, part)["facts"]
    strategy, wrappers, shares = WRAPPERS[kind]
    ranks = STARTS[start][0]
    if ranks == 1 and kind == "ddp":
        strategy, wrappers = "single", (*wrappers, "DistributedDataParallel")
    assert facts["strategy"] == strategy
    if part != "lightning" and "lora" not in part:  # Lightning shards inside its own module
        assert facts["wrapper"] in wrappers
    assert facts["world_size"] == ranks
    expected = ranks if shares is None else shares
    share = facts["total_parameters"] / facts["local_parameters"]
    # Norms stay whole under tensor parallelism, and flat parameters are padded.
    assert share == pytest.approx(expected, rel=0.02)
    assert facts["sharded"] == (expected > 1)


@pytest.mark.parametrize(("start", "kind", "part"), ACCELERATE)
def test_an_audit_leaves_no_gathered_parameters_behind(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    # ZeRO-3 keeps its partitions beside the parameters, which are empty until a layer runs.
    share = 0 if kind.startswith("zero3") else result["facts"]["local_parameters"]
    assert result["held_after"] == pytest.approx(share, abs=8)  # but for padding


@pytest.mark.parametrize(("start", "kind", "part"), [p for p in MODELS if "lora" in p.values[2]])
def test_adapters_off_is_the_base_model(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    for moment in ("before", "after"):
        assert result[f"reference_{moment}"] <= limit_of(kind)
        assert result[f"reference_moved_{moment}"] > 0.01  # the adapters do change the model


@pytest.mark.parametrize(("start", "kind", "part"), ACCELERATE)
def test_consolidated_weights_are_those_given_at_the_start(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    assert result["start_changed"] == []
    assert result["none_without_adapter"]
    # The wrapped model alone tells as much as the Accelerator, but ZeRO-3's module does not tell enough.
    alone = kind == "ddp" and STARTS[start][0] == 1  # accelerate lists the model without DDP's wrapper
    assert result["from_wrapper"] == ("ddp" if alone else result["facts"]["strategy"])
    assert "give the DeepSpeedEngine" in result.get("without_engine", "give the DeepSpeedEngine")


def test_adapters_beside_tensor_parallel_weights_are_scored_and_not_consolidated() -> None:
    result = part_of("replicated and sharded, 2 ranks", "resolve", "tp_lora")
    assert max(result["scores"], result["reference"]) <= TENSOR_PARALLEL_LIMIT < result["moved"]
    assert "lies in pieces" in result["consolidate"] and "lies in pieces" in result["gradient_norms"]


def test_bare_models_in_a_group_are_compared_and_fallbacks_refused() -> None:
    result = part_of("replicated and sharded, 2 ranks", "resolve", "bare")
    assert result["equal"] == "replicated" and result["difference"] <= LIMIT
    assert "differ from rank 0's on ranks [1]" in result["unequal"]
    assert "fell back without a word" in result["fell_back"]
    assert result["uneven"] == "ddp"


@pytest.mark.parametrize(("start", "kind", "part"), MODELS)
def test_gradient_norms_are_those_of_a_plain_backward(start: str, kind: str, part: str) -> None:
    assert part_of(start, kind, part)["gradients"] <= 1e-5  # relative


@pytest.mark.parametrize(("start", "kind", "part"), MODELS)
def test_generation_is_that_of_the_consolidated_model(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    assert result["generated"] >= 3
    assert result["generation_wrong"] == 0
    assert result["sampled_equal"] and result["sampled_differs"]


@pytest.mark.parametrize(("start", "kind", "part"), BITS)
def test_training_is_the_same_to_the_bit_with_and_without_audits(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    same = {name: value for name, value in result.items() if name.startswith("bits_")}
    assert len(same) >= 3 and all(same.values()), same
    assert result["control_notices"], "the check would not notice a lost random state"


NAMES = {
    "ddp": "DDP",
    "fsdp1": "FSDP1",
    "fsdp2": "FSDP2",
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
optimizer's step, "accumulation" one between micro-batches.

LoRA beside tensor-parallel weights is scored, with its reference; its consolidated weights and gradient norms are
refused, since PEFT keeps each rank's piece of the adapter as a plain tensor.

Not run here: NCCL or any GPU; ZeRO with NVMe; pipeline, context and expert parallelism, for which `resolve()` has no
strategy.
"""


def number(value: float) -> str:
    return "0" if value == 0 else f"{value:.0e}"


def model_row(kind: str, part: str, ranks: int, result: dict[str, Any]) -> str:
    """Return one line of the table."""
    differences = [value for name, value in result.items() if name.startswith("scores_")]
    references = [result[name] for name in ("reference_before", "reference_after") if name in result]
    loop = INTEGRATIONS.get(part, "accelerate" if result["given"] == "Accelerator" else "torch")
    tied = "untied" if "untied" in part or "tp" in kind else "tied"
    model = f"{tied}, LoRA" if "lora" in part else tied
    cells = [
        *(NAMES[kind], loop, model, str(ranks), number(max(differences))),
        number(max(references)) if references else "",
        number(result["gradients"]),
        "equal" if result["generation_wrong"] == 0 else f"{result['generation_wrong']} differ",
    ]
    return "| " + " | ".join(cells) + " |"


def test_the_table_is_written() -> None:
    """Last: writes docs/strategies.md from this run, where every start was run."""
    rows, bits = [], []
    for start, (ranks, work) in STARTS.items():
        found, failure = measured(start)
        assert not failure, failure
        for kind, parts in work.items():
            for part in parts.split("+"):
                if kind == "resolve":
                    continue
                result = found[kind][part]
                if part == "bits":
                    equal = [name.removeprefix("bits_") for name, value in result.items() if value is True]
                    equal = [name for name in equal if name != "control_notices"]
                    bits.append(f"| {NAMES[kind]} | {ranks} | {', '.join(equal)} |")
                else:
                    rows.append(model_row(kind, part, ranks, result))
    text = HEAD + "\n".join(rows) + "\n" + BITS_HEAD + "\n".join(bits) + "\n" + TAIL
    (ROOT / "docs" / "strategies.md").write_text(text)
