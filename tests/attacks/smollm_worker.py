"""Run under torchrun: the scores of SmolLM2 on two ranks, as JSON from rank 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist


def main(output: str) -> None:
    dist.init_process_group("gloo")
    from memaudit import attack
    from tests.attacks.smollm import ATTACKS, adapted, real_texts
    from tests.attacks.test_smollm import texts_by_id

    model, tokenizer = adapted()
    pool = real_texts(2, 30, skip=50)
    result = attack(model, texts_by_id(), attacks=ATTACKS, tokenizer=tokenizer, nonmembers=pool)
    assert result.settings["world_size"] == 2 and all(result.cost.forwards["target"])
    if dist.get_rank() == 0:
        Path(output).write_text(json.dumps(result.to_dict()["scores"]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
