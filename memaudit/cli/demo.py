"""memaudit demo: the positive control, on this machine, offline."""

from __future__ import annotations

from memaudit.demo.run import run_demo
from memaudit.demo.settings import DemoSettings


def demo(
    model: str = "tiny",
    data: str | None = None,
    nproc: int | None = None,
    strategy: str | None = None,
    output_dir: str = "memaudit-demo",
    seed: int = 0,
) -> int:
    """Train a small model on planted canaries, audit it in the loop, and check that the audit finds them.

    Args:
        model: "tiny" (a small transformer that is made here, sharded by FSDP2) or "smollm2" (the real
            SmolLM2-135M with LoRA through the Hugging Face Trainer; needs the extra "demo").
        data: JSONL file of instruction rows for smollm2; a few hundred are made where it is not given.
        nproc: number of ranks; 2 for tiny, 1 for smollm2 where it is not given.
        strategy: fsdp2, ddp or single for tiny; ddp or single for smollm2.
        output_dir: folder of the report, the timeline, the manifest and the signals.
        seed: root seed.

    Returns:
        0 when the positive control holds, 1 when it does not.
    """
    ranks = nproc if nproc is not None else (2 if model == "tiny" else 1)
    default = ("fsdp2" if ranks > 1 else "single") if model == "tiny" else ("ddp" if ranks > 1 else "single")
    return run_demo(
        DemoSettings(
            model=model,
            data=data,
            nproc=ranks,
            strategy=strategy or default,
            output_dir=output_dir,
            seed=seed,
        )
    )
