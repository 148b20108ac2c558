"""memaudit audit: a checkpoint of any kind against a manifest, on one process or on every rank of a launcher."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

ALIASES = {"-o": "--output-dir"}


def audit(
    *,
    model: str,
    manifest: str | None = None,
    canary_set: str | None = None,
    dataset: str | None = None,
    held_out: str | None = None,
    ref: str = "auto",
    strategy: Literal["auto", "single", "ddp", "fsdp2", "zero3", "device-map"] = "auto",
    output_dir: str = "memaudit-audit",
    store: str | None = None,
    report: str | None = None,
    slice: str | None = None,
    step: int | None = None,
    tokenizer: str | None = None,
    config_from: str | None = None,
    base: str | None = None,
    prefix: str | None = None,
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    trust_pickle: bool = False,
    offload_dir: str | None = None,
    max_memory: dict[str, str] | None = None,
    skip_generation: bool = False,
    seeds: str = "0",
    release_context: Literal["unspecified", "public-api", "internal", "open-weights"] = "unspecified",
    target_fpr: float = 0.01,
    profile: Literal["smoke", "routine", "powered"] | None = None,
    attacks: str | None = None,
    real_sample: int = 64,
    batch_size: int = 32,
    batch_tokens: int = 8192,
    timeout: float = 1800.0,
) -> int:
    """Audit a checkpoint against a manifest; the same command goes on after any interruption.

    Under torchrun, accelerate launch or srun every rank runs the same command.

    Args:
        model: path of a checkpoint (Hugging Face folder, LoRA adapter, DCP, DeepSpeed ZeRO, Lightning .ckpt,
            GGUF, quantised) or a hub id.
        manifest: the manifest that inject() wrote.
        canary_set: the same as --manifest.
        dataset: the training records (JSON, JSONL, CSV, Parquet), for duplicates and a descriptive ranking.
        held_out: records that were really held out, for the set-level test.
        ref: auto (adapters off, or scores kept from step 0), adapter, initial, none, or the path of a base model.
        strategy: how the model lies on the ranks; auto takes what fits.
        output_dir: folder of the report.
        store: folder of the signals; several jobs may share one.
        report: path of the report; memaudit-report.json in the output folder by default.
        slice: K/N scores one slice of the canaries and writes no report; see memaudit merge.
        step: the training step, where the checkpoint's name does not tell it.
        tokenizer: path or hub id, where the checkpoint does not hold one.
        config_from: folder or hub id of the model's config.json, where the checkpoint does not hold one.
        base: base model of an adapter, where its configuration names one that has moved.
        prefix: the attribute that holds the model, where a checkpoint holds several.
        dtype: precision to load in; auto keeps the checkpoint's.
        trust_pickle: load files that hold Python objects, which runs their code.
        offload_dir: folder for weights that device-map puts on the disk.
        max_memory: memory by device for device-map, for example {"0":"20GiB","cpu":"60GiB"}.
        skip_generation: leave near-verbatim matches out; verbatim ones need no generation.
        seeds: seeds of the audit procedure, for example 0,1,2; more than one adds a stability part.
        release_context: how the model will be exposed, as its owner declares it.
        target_fpr: false-positive rate at which detection is reported.
        profile: named design; by default the manifest's.
        attacks: names of membership attacks beside the headline's, separated by commas.
        real_sample: how many of the dataset's records are scored.
        batch_size: records of a forward at most.
        batch_tokens: padded tokens of a forward at most.
        timeout: seconds that a collective waits for the other ranks.
    """
    from memaudit.errors import ConfigurationError
    from memaudit.options import DEFAULT_ATTACKS, AuditOptions
    from memaudit.posthoc.audit import Request, audit_checkpoint
    from memaudit.posthoc.checkpoints import Loading
    from memaudit.posthoc.interrupt import Interrupted, InterruptedAuditError, StoreFailed, listening
    from memaudit.posthoc.ranks import process_group
    from memaudit.posthoc.slices import Slice

    named = manifest or canary_set
    if named is None or (manifest and canary_set and manifest != canary_set):
        raise ConfigurationError("give the manifest that inject() wrote once: --manifest FILE")
    request = Request(
        model=model,
        manifest=named,
        output_dir=Path(output_dir),
        store=Path(store) if store else None,
        tokenizer=tokenizer,
        dataset=dataset,
        held_out=held_out,
        part=Slice.parse(slice) if slice else None,
        report=Path(report) if report else None,
        step=step,
        loading=Loading(
            strategy=strategy,
            config_from=config_from,
            base=base,
            prefix=prefix,
            dtype=dtype,
            trust_pickle=trust_pickle,
            offload_dir=offload_dir,
            max_memory={
                int(key) if key.isdigit() else key: value for key, value in (max_memory or {}).items()
            },
        ),
        options=AuditOptions(
            ref=ref,
            attacks=tuple(attacks.split(",")) if attacks else DEFAULT_ATTACKS,
            target_fpr=target_fpr,
            profile=profile,
            skip_generation=skip_generation,
            real_sample=real_sample,
            release_context=release_context,
            seeds=parse_seeds(seeds),
            max_batch_size=batch_size,
            max_batch_tokens=batch_tokens,
        ),
    )
    try:
        with listening() as flag, process_group(timeout) as rank:
            outcome = audit_checkpoint(request, flag)
            if rank == 0:
                _say(request, outcome)
    except Interrupted as stop:
        raise InterruptedAuditError(
            f"told to end by {stop}; what was scored is in {request.store or request.output_dir}, "
            "the same command goes on from there"
        ) from None
    except StoreFailed as failed:
        raise failed.error from None
    return 0


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read ``0,1,2``.

    Raises:
        ConfigurationError: a part is no whole number.

    Example:
        >>> parse_seeds("0,1,2")
        (0, 1, 2)
    """
    from memaudit.errors import ConfigurationError

    try:
        return tuple(int(part) for part in text.strip("[]").split(","))
    except ValueError as error:
        raise ConfigurationError(f"seeds {text!r}; give whole numbers such as 0,1,2") from error


def _say(request: object, outcome: object) -> None:
    """Print the verdicts and where the report lies."""
    from memaudit.posthoc.audit import Request
    from memaudit.report.schema import Report
    from memaudit.session import REPORT_NAME

    assert isinstance(request, Request)
    if not isinstance(outcome, Report):
        print(f"slice {request.part} is scored; join the slices with: memaudit merge {request.output_dir}")
        return
    for verdict in (outcome.verdicts.membership, outcome.verdicts.regurgitation):
        print(f"{verdict.question} {verdict.answer}")
    print(f"report: {request.report or request.output_dir / REPORT_NAME}")
