"""Run under torchrun: a Trainer's fine-tune on shards, as a whole, resumed from its checkpoint, or audited too late.

Dropout is on, so that a random state that is not brought back would show in the weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.distributed import cpu_backends
from tests.distributed.integrations_worker import FSDP2, a_model, local_parameters, planted

SAVED = 4
STEPS = 8


class Stops(Exception):
    """The run is cut off here."""


def trainer_of(kind: str, folder: Path, data: Any) -> Any:
    """Return a Trainer that saves a checkpoint at step SAVED."""
    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    options: dict[str, Any] = {}
    if kind == "fsdp2":
        options = {"fsdp": True, "fsdp_config": FSDP2}
    elif kind == "zero3":
        options = {"deepspeed": cpu_backends.zero_config(3)}
    else:
        options = {"use_cpu": True}
    arguments = TrainingArguments(
        str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=SAVED,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )
    return Trainer(
        model=a_model(dropout=0.1),
        args=arguments,
        train_dataset=data[2],
        data_collator=DataCollatorForLanguageModeling(data[0], mlm=False),
        processing_class=data[0],
    )


def run(
    kind: str, folder: Path, data: Any, *, resume: Path | None = None, cut_off: int | None = None
) -> dict[str, Any]:
    """Train with audits every second step and return what was seen of them and of the weights."""
    from transformers import TrainerCallback

    from memaudit import MemorizationAuditCallback
    from memaudit.strategies.resolve import resolve

    trainer = trainer_of(kind, folder, data)
    out: dict[str, Any] = {}

    class Keeps(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == cut_off:
                raise Stops

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            strategy = resolve(trainer)
            out["weights"] = {k: _whole(v) for k, v in strategy.consolidate().items()}
            out["wrapper"] = [cls.__name__ for cls in type(trainer.model_wrapped).__mro__]
            facts = strategy.facts()
            out["shares"] = (facts.local_parameters, facts.total_parameters)
            out["local"] = local_parameters(strategy.model)

    audit = MemorizationAuditCallback(
        trainer=trainer, manifest=data[1], every=2, ref="initial", skip_generation=True, real_sample=0
    )
    trainer.add_callback(audit)
    trainer.add_callback(Keeps())
    try:
        trainer.train(resume_from_checkpoint=str(resume) if resume is not None else None)
    except Stops:
        return out
    reference = audit.results[-1].reference
    out["steps"] = [result.step for result in audit.results]
    out["scores"] = [result.scores["ref_minkpp"] for result in audit.results]
    out["reference"] = {
        "mode": reference.mode,
        "note": audit.report.reference.note,
        "forwarded": reference.cost is not None,
        "logprobs": {name: one.logprob.tolist() for name, one in (reference.signals or {}).items()},
    }
    return out


def _whole(value: Any) -> torch.Tensor:
    found: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return found.clone()


def late(kind: str, folder: Path, data: Any, resume: Path) -> str:
    """Resume in a folder without scores from step 0 and return the refusal."""
    from memaudit.errors import ReferenceModeError

    try:
        run(kind, folder, data, resume=resume)
    except ReferenceModeError as error:
        return str(error)
    return "not refused"


def main(kind: str, phase: str, folder: Path) -> None:
    """Run one phase: ``first`` is a whole run and one that is cut off; ``second`` resumes that one."""
    if kind == "zero3":
        cpu_backends.deepspeed_on_cpu()
    cpu_backends.accelerate_on_cpu()
    data = planted()
    if phase == "first":
        parts = {
            "whole": run(kind, folder / "whole", data),
            "cut": run(kind, folder / "parts", data, cut_off=7),
        }
    else:
        checkpoint = folder / "parts" / f"checkpoint-{SAVED}"
        parts = {"resumed": run(kind, folder / "parts", data, resume=checkpoint)}
        parts["late"] = {"refusal": late(kind, folder / "late", data, checkpoint)}
    views: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(
        views, {name: {k: v for k, v in part.items() if k != "weights"} for name, part in parts.items()}
    )
    if dist.get_rank() == 0:
        (folder / f"{phase}.json").write_text(json.dumps(views))
        for name, part in parts.items():
            if "weights" in part:
                torch.save(part["weights"], folder / f"{name}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
