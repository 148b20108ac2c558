"""Run under torchrun: canaries sampled on shards, beside the same model in one piece. Writes JSON."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed import cpu_backends


def main(kind: str, output: str, count: int) -> None:
    if kind != "ddp":  # accelerate knows plain data parallelism on the CPU
        cpu_backends.accelerate_on_cpu()
    if kind.startswith("zero"):
        cpu_backends.deepspeed_on_cpu()
    else:
        dist.init_process_group("gloo")
    from memaudit import generate_canaries
    from memaudit.canaries import LEAD
    from memaudit.sampling import StrategySampler
    from memaudit.strategies.resolve import resolve
    from tests.distributed.wrapping import setup
    from tests.helpers import tiny_llama, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model = tiny_llama(len(tokenizer), initializer_range=0.2)
    whole = tiny_llama(len(tokenizer), initializer_range=0.2)
    whole.load_state_dict(model.state_dict())
    made = setup(kind, model)
    strategy = resolve(made.target)
    sampler = StrategySampler(strategy)
    before = torch.random.get_rng_state()
    canaries = generate_canaries(tokenizer, n=count, n_controls=count, model=sampler)
    quiet = torch.equal(before, torch.random.get_rng_state())
    prompt = tokenizer(LEAD)["input_ids"]
    largest = 0.0
    for canary in canaries:
        ids = torch.tensor([[*prompt, *canary.secret_ids]])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        with torch.no_grad():
            loss = float(whole.eval()(input_ids=ids, labels=labels).loss)
        largest = max(largest, abs(math.log(canary.metadata["perplexity"]) - loss))
    everyone = strategy.gather([canaries.content_hash()])
    facts = strategy.facts()
    if strategy.rank == 0:
        out = {
            "strategy": facts.strategy,
            "sharded": facts.sharded,
            "world": strategy.world_size,
            "agree": len(everyone) == strategy.world_size and len(set(everyone)) == 1,
            "in_band": sum(canary.generator == "model_scored_high_ppl" for canary in canaries),
            "largest": largest,
            "quiet": quiet,
            "forwards": sampler.forwards,
        }
        Path(output).write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
