"""resolve() in one process: what it finds, and what it says where nothing fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memaudit.errors import ConfigurationError, StrategyError
from memaudit.strategies.base import Strategy
from memaudit.strategies.registry import names, strategy_class
from memaudit.strategies.resolve import resolve
from tests.helpers import tiny_llama

IDS = torch.tensor([[5, 6, 7, 8]])


def scored(strategy: Any) -> torch.Tensor:
    with strategy.scoring() as forward:
        return forward(IDS.to(forward.device), torch.ones_like(IDS), torch.arange(4))


def plain(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits[0]


def test_a_bare_model_is_single_and_says_what_it_is() -> None:
    model = tiny_llama(96, 2, 32)
    strategy = resolve(model)
    assert isinstance(strategy, Strategy)
    facts = strategy.facts()
    count = sum(p.numel() for p in model.parameters())
    assert (facts.strategy, facts.world_size, facts.sharded) == ("single", 1, False)
    assert facts.local_parameters == facts.total_parameters == count
    assert facts.precision == "float32" and facts.details["head"] == "rows"
    assert resolve(model.to(torch.bfloat16)).facts().precision == "bfloat16"


def test_rows_barriers_and_weights_of_one_process() -> None:
    model = tiny_llama(96, 1, 32, tied=True)
    strategy = resolve(model)
    strategy.barrier()
    assert strategy.gather(["a", "b"]) == ["a", "b"]
    state = strategy.consolidate()
    assert state.keys() == model.state_dict().keys()
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert state["lm_head.weight"].abs().sum() > 0  # a copy


@pytest.mark.parametrize("given", [None, 3, "model", {"model": 1}])
def test_what_holds_no_model_is_named(given: Any) -> None:
    with pytest.raises(StrategyError, match=type(given).__name__):
        resolve(given)


def test_an_accelerator_gives_its_one_model_or_asks_which() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    with pytest.raises(StrategyError, match="0 prepared models"):
        resolve(accelerator)
    first = accelerator.prepare(tiny_llama(96, 1, 32))
    assert resolve(accelerator).model is first
    second = accelerator.prepare(tiny_llama(96, 1, 32, seed=1))
    with pytest.raises(StrategyError, match="2 prepared models"):
        resolve(accelerator)
    assert resolve(accelerator, model=second).model is second
    with pytest.raises(StrategyError, match="not prepared"):
        resolve(accelerator, model=tiny_llama(96, 1, 32))


class Holder(nn.Module):
    """As a LightningModule holds models, and other modules beside them."""

    def __init__(self, **models: nn.Module) -> None:
        super().__init__()
        self.probe = nn.Linear(2, 2)
        self.parts = nn.ModuleDict(models)


def test_a_container_gives_its_one_language_model_or_names_the_candidates() -> None:
    model = tiny_llama(96, 1, 32)
    assert resolve(Holder(student=model)).model is model
    both = Holder(student=model, teacher=tiny_llama(96, 1, 32, seed=1))
    with pytest.raises(StrategyError, match=r"parts\.student.*parts\.teacher"):
        resolve(both)
    strategy = resolve(both, model=model)
    assert strategy.model is model
    torch.testing.assert_close(scored(strategy), plain(model))
    with pytest.raises(StrategyError, match="not part of"):
        resolve(both, model=tiny_llama(96, 1, 32))


def test_data_parallel_of_one_process_is_refused() -> None:
    with pytest.raises(StrategyError, match="DistributedDataParallel"):
        resolve(nn.DataParallel(tiny_llama(96, 1, 32)))


@pytest.mark.parametrize("where", ["cpu", "disk", "mixed"])
def test_a_device_map_is_scored_wherever_the_weights_lie(where: str, tmp_path: Path) -> None:
    from accelerate import cpu_offload, disk_offload, dispatch_model

    model = tiny_llama(96, 2, 32, tied=True)
    want = plain(model)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    if where == "cpu":
        model = cpu_offload(model, execution_device="cpu")
        model.hf_device_map = {"": "cpu"}
    elif where == "disk":
        model = disk_offload(model, tmp_path, execution_device="cpu")
        model.hf_device_map = {"": "disk"}
    else:
        places: dict[str, Any] = {
            "model.embed_tokens": "cpu",
            "model.layers.0": "cpu",
            "model.layers.1": "disk",
            "model.norm": "cpu",
            "model.rotary_emb": "cpu",
            "lm_head": "cpu",
        }
        model = dispatch_model(model, places, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    strategy = resolve(model)
    assert strategy.name == "device_map"
    torch.testing.assert_close(scored(strategy), want, atol=1e-6, rtol=0)
    torch.testing.assert_close(scored(strategy), want, atol=1e-6, rtol=0)
    assert strategy.facts().details["offloaded"] is True
    with pytest.raises(StrategyError, match="offloaded"):
        strategy.gradient_norms(IDS.tolist(), [(1, 3)])
    state = strategy.consolidate()
    assert all(torch.equal(state[name], value) for name, value in weights.items())
    assert len(strategy.generate([[5, 6]], max_new_tokens=3)[0]) == 3


@pytest.mark.parametrize("how", ["wrapper", "in place"])
def test_a_compiled_model_is_scored_eagerly_and_stays_compiled(how: str) -> None:
    model = tiny_llama(96, 1, 32)
    want = plain(model)
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    if how == "wrapper":
        given: Any = torch.compile(model, backend=backend)
    else:
        given = model
        given.compile(backend=backend)
    torch.testing.assert_close(scored(resolve(given)), want, atol=1e-6, rtol=0)
    assert calls == []
    given(input_ids=IDS)
    assert calls


def test_strategies_are_imported_when_first_used() -> None:
    import subprocess
    import sys

    code = (
        "import sys, memaudit.strategies.registry as r; r.strategy_class('single'); "
        "print([m for m in ('deepspeed', 'lightning', 'peft', 'transformers', 'accelerate') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout.strip() == "[]"


def test_a_name_without_a_strategy_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="fsdp2"):
        strategy_class("pipeline")
    assert {"ddp", "fsdp1", "fsdp2", "zero3", "tp"} <= set(names())
