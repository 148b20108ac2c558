"""Run under torchrun: every check of one strategy, on real ranks, in one start. Writes what it measured as JSON.

The measurements are compared with limits by test_strategies.py; nothing is judged here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.distributed import cpu_backends, resolving
from tests.distributed.measuring import (
    engine_scores,
    fresh,
    largest_difference,
    plain_generation,
    plain_gradient,
    plain_scores,
    records,
    score,
    score_batch,
)


def batch_of(step: int) -> torch.Tensor:
    """Return this rank's training batch of a step: other data on each rank (equal on tensor-parallel peers)."""
    generator = torch.Generator().manual_seed(1000 * step + DATA_RANK[0])
    return torch.randint(2, 96, (2, 10), generator=generator)


DATA_RANK = [0]


def resolve_of(setup: Any, model: nn.Module) -> Any:
    """Resolve through what was prepared."""
    from memaudit.strategies.resolve import resolve

    strategy = resolve(setup.target)
    # Replicas beside a tensor-parallel group have no wrapper that averages: they train on the same data.
    DATA_RANK[0] = 0 if strategy.name == "tp" else strategy.record_rank
    return strategy


def consolidated(kind: str, strategy: Any, *, tied: bool, lora: bool) -> nn.Module | None:
    """Return the consolidated weights in a plain model, on rank 0."""
    from tests.distributed.wrapping import build_model, targets_of

    state = strategy.consolidate()
    if dist.get_rank() != 0:
        assert state == {}, "only rank 0 holds the full state"
        return None
    plain = build_model(tied=tied, lora=lora, seed=99, targets=targets_of(kind))
    missing, unexpected = plain.load_state_dict(state, strict=False)
    missing = [name for name in missing if not (tied and "lm_head" in name)]
    assert not missing and not unexpected, (missing, unexpected)
    return plain


def variant(kind: str, *, tied: bool, lora: bool, steps: int = 2) -> dict[str, Any]:
    """Train, audit in the loop, and compare with the consolidated model."""
    from memaudit.errors import StrategyError
    from memaudit.strategies.resolve import resolve
    from tests.distributed.wrapping import build_model, setup, targets_of

    fresh(7)
    base = build_model(tied=tied, lora=lora, targets=targets_of(kind))
    start = {name: value.detach().clone() for name, value in base.state_dict().items()}
    made = setup(kind, base)
    strategy = resolve_of(made, base)
    out: dict[str, Any] = {"facts": facts_of(strategy), "given": type(made.target).__name__}
    out.update(tied=tied, lora=lora)
    out["from_wrapper"] = resolve(made.wrapped).name
    if kind.startswith("zero3"):
        try:
            out["without_engine"] = resolve(made.wrapped.module).name
        except StrategyError as error:
            out["without_engine"] = str(error)
    plain = consolidated(kind, strategy, tied=tied, lora=lora)
    if plain is not None:
        now = plain.state_dict()
        out["start_changed"] = [name for name, value in start.items() if not torch.equal(now[name], value)]
    # Before the first step, after training, and after a step that followed an audit.
    work = records(7)
    for moment in ("before", "after"):
        plain = consolidated(kind, strategy, tied=tied, lora=lora)
        for name, count, size in (("batch1", 7, 1), ("batch3", 7, 3), ("one_record", 1, 2)):
            got = score(strategy, work[:count], batch=size)
            if plain is not None:
                out[f"scores_{moment}_{name}"] = largest_difference(got, plain_scores(plain, work[:count]))
        got = engine_scores(strategy, work)
        if plain is not None:
            out[f"scores_{moment}_engine"] = largest_difference(got, plain_scores(plain, work))
        if lora:
            got = engine_scores(strategy, work, which="reference")
            if plain is not None:
                with plain.disable_adapter():
                    want = plain_scores(plain, work)
                out[f"reference_{moment}"] = largest_difference(got, want)
                out[f"reference_moved_{moment}"] = largest_difference(got, plain_scores(plain, work))
        if moment == "before":
            out["losses"] = [made.micro_step(batch_of(step), True) for step in range(steps)]
    out.update(white_box(strategy, plain))
    out.update(generation(strategy, plain))
    out.update(prefixes(strategy, plain))
    out["loss_after"] = made.micro_step(batch_of(99), True)
    plain = consolidated(kind, strategy, tied=tied, lora=lora)
    got = score(strategy, work, batch=3)
    out["held_after"] = held(made.wrapped)  # before anything else reshards
    if plain is not None:
        out["scores_later_batch3"] = largest_difference(got, plain_scores(plain, work))
    out["none_without_adapter"] = lora or strategy.reference() is None
    return out


def held(root: nn.Module) -> int:
    """Return how many elements of parameters this rank has in memory, outside ZeRO-3's own partitions."""
    return sum((p.to_local() if hasattr(p, "to_local") else p).numel() for p in root.parameters())


def facts_of(strategy: Any) -> dict[str, Any]:
    facts = strategy.facts()
    return {name: getattr(facts, name) for name in facts.__dataclass_fields__} | {
        "details": dict(facts.details)
    }


def white_box(strategy: Any, plain: nn.Module | None) -> dict[str, Any]:
    """Compare gradient norms of records with an ordinary backward on the consolidated model."""
    work = records(3, seed=5)
    got = strategy.gradient_norms([ids for ids, _ in work], [span for _, span in work])
    if plain is None:
        return {}
    want = [plain_gradient(plain, ids, span) for ids, span in work]
    return {"gradients": max(abs(g / w - 1) for g, w in zip(got, want, strict=True))}


def generation(strategy: Any, plain: nn.Module | None) -> dict[str, Any]:
    """Generate from other prompts on each rank, none on the last one, greedily and by sampling."""
    rng = random.Random(50 + strategy.record_rank)
    last = strategy.record_world > 1 and strategy.record_rank == strategy.record_world - 1
    prompts = [] if last else [[rng.randrange(2, 96) for _ in range(n)] for n in (4, 7, 2)]
    greedy = strategy.generate(prompts, max_new_tokens=6, batch_size=2)
    sampled = [strategy.generate(prompts, max_new_tokens=6, do_sample=True, seed=4) for _ in range(2)]
    pairs = strategy.gather(list(zip(prompts, greedy, strict=True)))
    out: dict[str, Any] = {"sampled_equal": sampled[0] == sampled[1], "sampled_differs": sampled[0] != greedy}
    if last:
        out["sampled_differs"] = True
    out["sampled_equal"] = all(strategy.gather([out["sampled_equal"]]))
    if plain is not None:
        out["generated"] = len(pairs)
        out["generation_wrong"] = sum(new != plain_generation(plain, prompt, 6) for prompt, new in pairs)
    return out


def prefixes(strategy: Any, plain: nn.Module | None) -> dict[str, Any]:
    """Score two texts after a prefix that they share, another prefix on each record rank."""
    generator = torch.Generator().manual_seed(60 + strategy.record_rank)
    prefix = torch.randint(2, 96, (1, 5), generator=generator)
    tails = torch.randint(2, 96, (2, 4), generator=generator)
    with strategy.scoring() as forward:
        cache = forward.prefix(prefix)
        got = forward(tails, torch.ones_like(tails), torch.arange(8), cache)
    everyone = strategy.gather([(prefix.tolist(), tails.tolist(), got.float().tolist())])
    if plain is None:
        return {}
    worst = 0.0
    with torch.no_grad():
        for start, ends, logits in everyone:
            whole = torch.cat([torch.tensor(start).expand(2, -1), torch.tensor(ends)], dim=1)
            want = plain(input_ids=whole).logits[:, 5:].reshape(8, -1)
            worst = max(worst, float((torch.tensor(logits) - want).abs().max()))
    return {"scores_shared_prefix": worst}


def audit(strategy: Any, *, lora: bool, deep: bool) -> None:
    """One whole audit, as it runs between training steps."""
    score(strategy, records(5), batch=2)
    if lora:
        score(strategy, records(5), batch=2, reference=True)
    if deep:
        strategy.generate([[5, 6, 7]], max_new_tokens=3, do_sample=True)
        work = records(2, seed=5)
        strategy.gradient_norms([ids for ids, _ in work], [span for _, span in work])


def training(
    kind: str,
    between: Callable[[Any], None] | None,
    *,
    lora: bool = False,
    steps: int = 3,
    accumulation: int = 1,
    at_substeps: bool = False,
    unstepped: bool = False,
    checkpointing: bool = False,
    precision: str = "no",
) -> dict[str, torch.Tensor]:
    """Train with or without something between the steps, and return the final weights."""
    from tests.distributed.wrapping import build_model, setup

    fresh(11)
    model = build_model(tied=True, lora=lora)
    if kind.startswith("tp"):
        model = build_model(tied=False, lora=lora)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    frozen = next(m for m in model.modules() if type(m).__name__ == "LlamaMLP")
    model.train()
    frozen.training = False  # on purpose: an audit must leave it so
    made = setup(kind, model, accumulation=accumulation, precision=precision)
    strategy = resolve_of(made, model)
    fresh(100 + dist.get_rank())
    flags = [m.training for m in made.wrapped.modules()]
    if between is not None:
        between(strategy)
    for step in range(steps):
        for micro in range(accumulation):
            last = micro == accumulation - 1
            halfway = functools.partial(between, strategy) if between is not None and unstepped else None
            made.micro_step(batch_of(10 * step + micro), last, halfway)
            if between is not None and (last or at_substeps):
                between(strategy)
    assert [m.training for m in made.wrapped.modules()] == flags, "training flags changed"
    LAST["precision"] = strategy.facts().precision
    state = strategy.consolidate()
    return {name: value.clone() for name, value in state.items()}


LAST: dict[str, str] = {}
"""What the last training's strategy said."""


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two states are equal to the bit (true on ranks that hold none)."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def bits(kind: str) -> dict[str, Any]:
    """Train with and without audits; and with an audit that loses the random state, as a control."""
    out: dict[str, Any] = {}
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "lora": {"lora": True},
        "checkpointing": {"checkpointing": True},
    }
    if not kind.startswith(("tp", "hsdp")):
        cases["accumulation"] = {"accumulation": 2, "at_substeps": True}
        cases["bf16"] = {"precision": "bf16"}
        if kind.startswith("zero"):
            cases["autocast"] = {"precision": "autocast"}  # DeepSpeed's own; its bf16 keeps weights in bf16
        else:
            cases["unstepped"] = {"unstepped": True}  # gradients are there, the optimizer has not stepped
    baseline = training(kind, None)
    for name, options in cases.items():
        lora = bool(options.get("lora"))
        without = baseline if name == "plain" else training(kind, None, **options)

        def between(strategy: Any, lora: bool = lora) -> None:
            audit(strategy, lora=lora, deep=True)

        out[f"bits_{name}"] = same_bits(without, training(kind, between, **options))
        if "precision" in options:
            out[f"precision_{name}"] = LAST["precision"]
            out[f"rounded_{name}"] = any(not torch.equal(without[n], value) for n, value in baseline.items())
    control = training(kind, lambda strategy: torch.rand(1) and None)
    out["control_notices"] = not same_bits(baseline, control) or dist.get_rank() != 0

    def raising(strategy: Any) -> None:
        with contextlib.suppress(KeyError), strategy.scoring() as forward:
            score_batch(forward, [([5, 6], (1, 2))])
            torch.rand(3)
            raise KeyError("in the middle of an audit")

    out["bits_raising"] = same_bits(baseline, training(kind, raising))
    return out


def through_trainer(kind: str, framework: str, *, tied: bool, lora: bool) -> dict[str, Any]:
    """Audit in the hooks of the Hugging Face Trainer or Lightning, resolved from the trainer itself."""
    from memaudit.strategies.resolve import resolve
    from tests.distributed import trainers
    from tests.distributed.wrapping import build_model, by_plan, targets_of

    fresh(7)
    out: dict[str, Any] = {"tied": tied, "lora": lora}
    work = records(7)

    def audit(moment: str, trainer: Any) -> None:
        strategy = resolve(trainer)
        plain = consolidated(kind, strategy, tied=tied, lora=lora)
        got = engine_scores(strategy, work)
        if plain is not None:
            key = f"scores_{moment}"
            out[key] = max(out.get(key, 0.0), largest_difference(got, plain_scores(plain, work)))
        if moment == "train_begin":
            out["facts"] = facts_of(strategy)
            out["given"] = type(trainer).__module__
        if moment == "step_end":
            out.update(white_box(strategy, plain))
            out.update(generation(strategy, plain))
        if lora and moment in ("train_begin", "train_end"):
            got = engine_scores(strategy, work, which="reference")
            if plain is not None:
                name = {"train_begin": "before", "train_end": "after"}[moment]
                out[f"reference_moved_{name}"] = largest_difference(got, plain_scores(plain, work))
                with plain.disable_adapter():
                    out[f"reference_{name}"] = largest_difference(got, plain_scores(plain, work))

    model = build_model(tied=tied, lora=lora, dropout=0.0, targets=targets_of(kind))
    getattr(trainers, framework)(kind, by_plan(model) if kind == "tp_plan" else model, audit)
    return out


def run_part(kind: str, part: str) -> dict[str, Any]:
    """Run one part of the checks; the environment variables that frameworks set are taken back after it."""
    environment = dict(os.environ)
    special = {"bits": lambda: bits(kind), "bare": resolving.bare, "pieces": resolving.adapters_in_pieces}
    offloads = kind.startswith("fsdp") and kind.endswith("offload")
    try:
        with cpu_backends.fsdp_offload_on_cpu() if offloads else contextlib.nullcontext():
            if part in special:
                return special[part]()
            model = {"tied": "untied" not in part, "lora": "lora" in part}
            framework = part.split("_")[0]
            if framework in ("huggingface", "lightning"):
                return through_trainer(kind, framework, **model)
            return variant(kind, **model)
    finally:
        os.environ.clear()
        os.environ.update(environment)


def main() -> None:
    """Take the output's path, and the parts to run as kind=part+part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output")
    parser.add_argument("work", nargs="+")
    options = parser.parse_args()
    work = {kind: parts.split("+") for kind, _, parts in (item.partition("=") for item in options.work)}
    cpu_backends.accelerate_on_cpu()
    if any(kind.startswith("zero") for kind in work):
        cpu_backends.deepspeed_on_cpu()
        import deepspeed

        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    else:
        dist.init_process_group("gloo")
    out: dict[str, Any] = {}
    for kind, parts in work.items():
        for part in parts:
            started = time.monotonic()
            try:
                out.setdefault(kind, {})[part] = run_part(kind, part)
            except Exception:
                traceback.print_exc()
                print(f"part {part} of {kind}", file=sys.stderr, flush=True)
                raise
            out[kind][part]["seconds"] = round(time.monotonic() - started, 1)
            if dist.get_rank() == 0:  # what was measured before a failure counts
                Path(options.output).write_text(json.dumps(out, default=str))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
