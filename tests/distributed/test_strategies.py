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
from tests.distributed.strategies_page import page

# A start takes about a minute on a quiet machine of two cores; the limits are for a crowded one.
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(960)]

WORKER = Path(__file__).with_name("strategy_worker.py")

MODELS = "tied+untied+tied_lora+untied_lora"
TRAINERS = "huggingface_tied+huggingface_untied_lora+lightning_tied+lightning_untied_lora"
FEW = "huggingface_untied_lora+lightning_tied"
OTHERS = "huggingface_tied+lightning_untied_lora"

STARTS: dict[str, tuple[int, dict[str, str]]] = {
    "replicated and sharded, 2 ranks": (
        2,
        {
            "ddp": f"{MODELS}+{TRAINERS}+bits",
            "fsdp1": f"{MODELS}+{TRAINERS}+bits",
            "fsdp2": f"{MODELS}+{TRAINERS}+bits",
            "fsdp1_offload": "tied+untied_lora+bits",
            "fsdp2_offload": "tied+untied_lora+bits",
            "tp": f"{MODELS}+lightning_untied+lightning_tied_lora+bits",
            "tp_plan": "untied+tied+untied_lora+huggingface_tied+huggingface_untied_lora",
            "resolve": "bare+pieces",
        },
    ),
    "DeepSpeed, 2 ranks": (
        2,
        {
            "zero1": "untied+tied_lora+huggingface_tied+lightning_tied+bits",
            "zero2": f"{MODELS}+{TRAINERS}+bits",
            "zero3": f"{MODELS}+{TRAINERS}+bits",
            "zero2_offload": "tied",
            "zero3_offload": "tied+bits",
        },
    ),
    "4 ranks": (
        4,
        {
            "ddp": f"untied+{FEW}",
            "fsdp1": f"tied+{OTHERS}",
            "fsdp2": f"untied_lora+{FEW}",
            "hsdp1": "tied",
            "hsdp2": "untied_lora+bits",
            "tp": "tied_lora+lightning_untied",
            "tp_plan": "huggingface_untied",
            "tp_fsdp2": "untied+tied_lora+bits",
            "dp_tp": "untied",
        },
    ),
    "DeepSpeed, 4 ranks": (4, {"zero2": f"untied_lora+{OTHERS}", "zero3": f"tied+{OTHERS}"}),
    "1 rank": (
        1,
        {
            "ddp": f"tied+{OTHERS}",
            "fsdp1": "tied+huggingface_tied+lightning_untied",  # with frozen weights torch fails by itself
            "fsdp2": f"untied_lora+{OTHERS}",
            "tp": "untied+lightning_tied",
            "zero2": f"tied+{FEW}",
            "zero3": f"tied+{FEW}",
        },
    ),
}

WRAPPERS = {  # kind: (strategy, wrapper without PEFT or Lightning, shares of the parameters' elements)
    "ddp": ("ddp", ("LlamaForCausalLM", "DistributedDataParallel"), 1),
    "fsdp1": ("fsdp1", ("FullyShardedDataParallel",), None),
    "fsdp1_offload": ("fsdp1", ("FullyShardedDataParallel",), None),
    "fsdp2": ("fsdp2", ("FSDPLlamaForCausalLM", "FSDPPeftModel"), None),
    "fsdp2_offload": ("fsdp2", ("FSDPLlamaForCausalLM", "FSDPPeftModel"), None),
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
SCORED = [p for p in PARTS if p.values[2] not in ("bits", "bare", "pieces")]
LOOPS = [p for p in SCORED if not p.values[2].startswith(("huggingface", "lightning"))]
BITS = [p for p in PARTS if p.values[2] == "bits"]


def limit_of(kind: str) -> float:
    return TENSOR_PARALLEL_LIMIT if "tp" in kind else LIMIT


@pytest.mark.parametrize(("start", "kind", "part"), SCORED)
def test_scores_are_those_of_the_consolidated_model(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    scores = {name: value for name, value in result.items() if name.startswith("scores_")}
    assert len(scores) == (4 if part.startswith(("huggingface", "lightning")) else 10), sorted(scores)
    assert all(value <= limit_of(kind) for value in scores.values()), scores


@pytest.mark.parametrize(("start", "kind", "part"), SCORED)
def test_the_wrapper_and_the_shares_are_what_the_case_is_about(start: str, kind: str, part: str) -> None:
    facts = part_of(start, kind, part)["facts"]
    strategy, wrappers, shares = WRAPPERS[kind]
    ranks = STARTS[start][0]
    if ranks == 1 and kind == "ddp" and not part.startswith(("huggingface", "lightning")):
        strategy = "single"  # accelerate wraps nothing there
    assert facts["strategy"] == strategy
    if not part.startswith("lightning") and "lora" not in part:  # Lightning shards inside its own module
        assert facts["wrapper"] in wrappers
    assert facts["world_size"] == ranks
    expected = ranks if shares is None else shares
    share = facts["total_parameters"] / facts["local_parameters"]
    # Norms and half of an adapter stay whole under tensor parallelism, and flat parameters are padded.
    assert share == pytest.approx(expected, rel=0.25 if "tp" in kind and "lora" in part else 0.02)
    assert facts["sharded"] == (expected > 1)


@pytest.mark.parametrize(("start", "kind", "part"), LOOPS)
def test_an_audit_leaves_no_gathered_parameters_behind(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    # ZeRO-3 keeps its partitions beside the parameters, which are empty until a layer runs.
    share = 0 if kind.startswith("zero3") else result["facts"]["local_parameters"]
    assert result["held_after"] == pytest.approx(share, abs=8)  # but for padding


@pytest.mark.parametrize(("start", "kind", "part"), [p for p in SCORED if "lora" in p.values[2]])
def test_adapters_off_is_the_base_model(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    for moment in ("before", "after"):
        assert result[f"reference_{moment}"] <= limit_of(kind)
        assert result[f"reference_moved_{moment}"] > 0.01  # the adapters do change the model


@pytest.mark.parametrize(("start", "kind", "part"), LOOPS)
def test_consolidated_weights_are_those_given_at_the_start(start: str, kind: str, part: str) -> None:
    result = part_of(start, kind, part)
    assert result["start_changed"] == []
    assert result["none_without_adapter"]
    # The wrapped model alone tells as much as the Accelerator, but ZeRO-3's module does not tell enough.
    alone = kind == "ddp" and STARTS[start][0] == 1  # accelerate lists the model without DDP's wrapper
    assert result["from_wrapper"] == ("ddp" if alone else result["facts"]["strategy"])
    assert "give the DeepSpeedEngine" in result.get("without_engine", "give the DeepSpeedEngine")


def test_adapters_made_after_a_model_was_split_are_scored_where_that_is_right_and_else_refused() -> None:
    result = part_of("replicated and sharded, 2 ranks", "resolve", "pieces")
    assert max(result["scores"], result["reference"]) <= TENSOR_PARALLEL_LIMIT < result["moved"]
    assert "lies in pieces" in result["consolidate"] and "lies in pieces" in result["gradient_norms"]
    # What is refused is wrong in training itself: copies get different gradients, ranks compute other things.
    assert result["copies_part"] > 1e-6
    assert "each rank computes another model" in result["by_rows"] and result["models_part"] > 0.1


def test_bare_models_in_a_group_are_compared_and_fallbacks_refused() -> None:
    result = part_of("replicated and sharded, 2 ranks", "resolve", "bare")
    assert result["equal"] == "replicated" and result["difference"] <= LIMIT
    assert "differ from rank 0's on ranks [1]" in result["unequal"]
    assert "fell back without a word" in result["fell_back"]
    assert result["uneven"] == "ddp"


@pytest.mark.parametrize(("start", "kind", "part"), SCORED)
def test_gradient_norms_are_those_of_a_plain_backward(start: str, kind: str, part: str) -> None:
    assert part_of(start, kind, part)["gradients"] <= 1e-5  # relative


@pytest.mark.parametrize(("start", "kind", "part"), SCORED)
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
    if "bits_bf16" in result:
        assert result["rounded_bf16"], "bf16 did not count"
        wanted = "bfloat16" if kind.startswith("zero") else "float32, bf16 autocast"
        assert result["precision_bf16"] == wanted
    if "bits_autocast" in result:
        assert result["rounded_autocast"] and result["precision_autocast"] == "float32, bfloat16 autocast"


def test_the_table_is_written() -> None:
    """Last: writes docs/strategies.md from this run, where every start was run."""
    rows = []
    for start, (ranks, work) in STARTS.items():
        found, failure = measured(start)
        assert not failure, failure
        rows += [
            (kind, part, ranks, found[kind][part])
            for kind, parts in work.items()
            for part in parts.split("+")
            if kind != "resolve"
        ]
    (ROOT / "docs" / "strategies.md").write_text(page(rows))
