"""What resolve() says of bare models in a group, and of adapters beside tensor-parallel weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.distributed import cpu_backends
from tests.distributed.measuring import fresh, largest_difference, plain_scores, records, score, score_batch


def bare() -> dict[str, Any]:
    """What resolve() says of bare models in a group of processes, and of an accelerate that fell back."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    from memaudit.errors import StrategyError
    from memaudit.strategies.resolve import resolve
    from tests.distributed.wrapping import build_model

    out: dict[str, Any] = {}

    def refusal(target: Any) -> str:
        try:
            return f"took it as {resolve(target).name}"
        except StrategyError as error:
            return str(error)

    model = build_model(tied=True, lora=False)
    strategy = resolve(model)
    out["equal"] = strategy.name
    got = score(strategy, records(7), batch=2)
    out["difference"] = largest_difference(got, plain_scores(model, records(7)))
    with torch.no_grad():
        model.get_input_embeddings().weight[5, 0] += dist.get_rank() * 1e-6
    out["unequal"] = refusal(model)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    with cpu_backends.accelerate_as_shipped():
        accelerator = Accelerator()
        accelerator.prepare(build_model(tied=True, lora=False))
        out["fell_back"] = refusal(accelerator)
    AcceleratorState._reset_state(reset_partial_state=True)
    # Uneven numbers of forwards: data-parallel ranks must not wait for each other.
    wrapped = nn.parallel.DistributedDataParallel(build_model(tied=True, lora=False))
    with resolve(wrapped).scoring() as forward:
        for _ in range(3 * dist.get_rank()):
            score_batch(forward, [([5, 6], (1, 2))])
    out["uneven"] = resolve(wrapped).name
    return out


def adapters_in_pieces() -> dict[str, Any]:
    """LoRA made after parallelize_module: PEFT makes plain adapter weights of each rank's size."""
    from peft import LoraConfig, get_peft_model
    from torch.distributed.device_mesh import init_device_mesh

    from memaudit.errors import StrategyError
    from memaudit.strategies.resolve import resolve
    from tests.distributed.wrapping import build_model, tensor_parallel

    out: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))["tp"]

    def split_first(target: str) -> Any:
        model = build_model(tied=False, lora=False, dropout=0.0)
        tensor_parallel(model, mesh)
        fresh(5)
        return get_peft_model(model, LoraConfig(r=4, target_modules=[target], init_lora_weights=False))

    model = split_first("q_proj")
    strategy = resolve(model)
    # The full adapter: lora_A is the same on each rank, lora_B is split along the rows.
    pieces = strategy.gather([{n: p.detach() for n, p in model.named_parameters() if "lora_" in n}])
    plain = build_model(tied=False, lora=False, dropout=0.0)
    plain = get_peft_model(plain, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if "lora_A" in name:
                parameter.copy_(pieces[0][name])
            elif "lora_B" in name:
                parameter.copy_(torch.cat([piece[name] for piece in pieces]))
    work = records(7)
    out["scores"] = largest_difference(score(strategy, work, batch=2), plain_scores(plain, work))
    reference = score(strategy, work, batch=2, reference=True)
    with plain.disable_adapter():
        out["reference"] = largest_difference(reference, plain_scores(plain, work))
    out["moved"] = largest_difference(reference, plain_scores(plain, work))
    for name, call in (
        ("consolidate", strategy.consolidate),
        ("gradient_norms", lambda: strategy.gradient_norms([[5, 6]], [(1, 2)])),
    ):
        try:
            call()
            out[name] = "was not refused"
        except StrategyError as error:
            out[name] = str(error)
    # Why: a backward as training runs it leaves another gradient of the same lora_A on each rank.
    ids = torch.tensor([work[1][0]])
    model(input_ids=ids, use_cache=False).logits.full_tensor().square().mean().backward()
    shared = [p.grad for n, p in model.named_parameters() if "lora_A" in n]
    firsts, seconds = strategy.gather([shared])[:2]
    out["copies_part"] = max(float((a - b).abs().max()) for a, b in zip(firsts, seconds, strict=True))
    # By rows it is worse: the ranks' forwards are of different models, so nothing can be scored.
    model = split_first("down_proj")
    with torch.no_grad():
        mine = model.get_base_model().model(input_ids=ids, use_cache=False).last_hidden_state
    firsts, seconds = strategy.gather([mine])[:2]
    out["models_part"] = float((firsts - seconds).abs().max())
    try:
        out["by_rows"] = f"was taken as {resolve(model).name}"
    except StrategyError as error:
        out["by_rows"] = str(error)
    return out
