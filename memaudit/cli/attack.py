"""memaudit attack: membership attacks on a model and labelled texts; Fast-MIA's configuration files run as they are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

from memaudit.errors import ConfigurationError

ALIASES = {"-o": "--output"}


def attack(
    *,
    config: str | None = None,
    model: str | None = None,
    data: str | None = None,
    attacks: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    id_column: str | None = None,
    group_column: str | None = None,
    format: Literal["csv", "json", "jsonl", "parquet", "huggingface"] | None = None,
    split: str | None = None,
    text_length: int | None = None,
    spaced: bool = True,
    limit: int | None = None,
    tokenizer: str | None = None,
    adapter: str | None = None,
    reference: str | None = None,
    nonmembers: str | None = None,
    members: str | None = None,
    corpus: str | None = None,
    masked_lm: str | None = None,
    store: str | None = None,
    seed: int = 0,
    long_texts: Literal["window", "truncate", "refuse"] = "window",
    max_length: int | None = None,
    level: float = 0.95,
    stack: bool = True,
    strategy: Literal["auto", "single", "ddp", "fsdp2", "zero3", "device-map"] = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    max_batch_size: int | None = None,
    max_batch_tokens: int = 8192,
    fixed_batches: bool = False,
    backend: Literal["transformers", "vllm"] = "transformers",
    output: str | None = None,
) -> int:
    """Run membership attacks on a model and labelled texts; each distinct probe is forwarded once.

    Args:
        config: a Fast-MIA configuration file (YAML); options given beside it win.
        model: path of a checkpoint of any kind, or a hub id.
        data: CSV, JSON, JSONL or Parquet file, or the id of a hub dataset.
        attacks: names such as "loss,mink(ratio=0.1),recall"; "all" for every one that can run; by default those
            that share the forwards of the texts under target and reference.
        text_column: column of the texts.
        label_column: column of the labels, 1 for members and 0 for non-members; "none" where there are none.
        id_column: column of the records' names; by default row numbers.
        group_column: column of the records' source, by which metrics are split as well.
        format: of the data; by default told by the file's ending.
        split: of a hub dataset.
        text_length: words to keep of each text.
        spaced: whether words are separated by spaces; false for Chinese or Japanese.
        limit: rows to read at most.
        tokenizer: path or hub id; by default the one beside the checkpoint.
        adapter: folder of a LoRA adapter over the model.
        reference: path or hub id of a reference model; by default the target's adapters off, where it has any. An
            attack may name another: "ref(reference='PATH')".
        nonmembers: file of texts known not to be members, for prefixes and populations.
        members: file of texts known to be members, for prefixes.
        corpus: file of texts, a reference corpus for dcpdd.
        masked_lm: path or hub id of a masked language model, for neighbour.
        store: folder of the signal store; a second run forwards only what is not there.
        seed: root of every random choice.
        long_texts: what is done with texts longer than the context.
        max_length: tokens of the context; by default the model's.
        level: confidence of the intervals.
        stack: whether a cross-fitted combination is reported beside the attacks.
        strategy: how the model lies on the ranks.
        dtype: precision of the weights.
        max_batch_size: rows of a forward at most; 32 by default.
        max_batch_tokens: padded tokens of a forward at most.
        fixed_batches: make batches that do not depend on the number of ranks.
        backend: what runs the model.
        output: folder of the results, in a sub-folder named by the time; results by default.
    """
    from memaudit.posthoc.membership.config import read_config, unnamed
    from memaudit.posthoc.membership.data import read_lines, read_texts

    logging.basicConfig(level=logging.WARNING, format="memaudit: %(message)s")
    read: dict[str, Any] = {"format": format, "text_length": text_length, "spaced": spaced}
    read.update(text_column=text_column, label_column=label_column)
    chosen: Any = attacks
    limits: dict[str, Any] = {"max_batch_tokens": max_batch_tokens, "fixed_batches": fixed_batches}
    if config is not None:
        run = read_config(config, corpus=corpus is not None, masked_lm=masked_lm is not None)
        model, adapter = model or run.model, adapter or run.adapter
        tokenizer, reference = tokenizer or run.tokenizer, reference or run.reference
        masked_lm, dtype = masked_lm or run.masked_lm, dtype if dtype != "auto" else run.dtype  # type: ignore[assignment]
        max_length, output = max_length or run.max_length, output or run.output_dir
        max_batch_size = max_batch_size or run.max_batch_size
        chosen = attacks or (
            unnamed(run.attacks) if reference and reference != run.reference else run.attacks
        )
        given = {name: value for name, value in read.items() if value != _DEFAULT_READ[name]}
        read = {**read, **run.data, **given}
        data = data or run.data["path"]
        read.pop("path", None)
    if model is None or data is None:
        raise ConfigurationError("memaudit attack needs --model and --data, or --config with a Fast-MIA file")
    if str(read["label_column"]).lower() == "none":
        read["label_column"] = None
    found = read_texts(data, id_column=id_column, group_column=group_column, split=split, limit=limit, **read)
    pools = {
        name: read_lines(path, text_column=read["text_column"])
        for name, path in (("nonmembers", nonmembers), ("members", members), ("corpus", corpus))
        if path is not None
    }
    loading: dict[str, Any] = {}
    if backend == "transformers":
        loading = {"strategy": strategy, "dtype": dtype, **({"base": model} if adapter else {})}
    else:
        loading = {
            "dtype": None if dtype == "auto" else dtype,
            "adapter": adapter,
            "max_model_len": max_length,
        }
    return _run(
        adapter if adapter is not None and backend == "transformers" else model,
        found,
        chosen,
        output or "results",
        tokenizer=tokenizer,
        reference=reference,
        masked_lm=masked_lm,
        store=store,
        seed=seed,
        long_texts=long_texts,
        max_length=max_length,
        spaced=bool(read["spaced"]),
        level=level,
        stack=stack,
        max_batch_size=max_batch_size or 32,
        backend=backend,
        **limits,
        **pools,
        **loading,
    )


_DEFAULT_READ = {
    "format": None,
    "text_length": None,
    "spaced": True,
    "text_column": "text",
    "label_column": "label",
}


def _run(model: str, found: Any, chosen: Any, output: str, **options: Any) -> int:
    from dataclasses import replace

    from rich.console import Console

    from memaudit.posthoc.attack import attack as run_attacks
    from memaudit.posthoc.membership.output import cost_line, table
    from memaudit.posthoc.ranks import process_group

    with process_group() as rank:
        if chosen == "all":
            chosen = _everything(options)
        result = run_attacks(model, found.texts, found.labels, attacks=chosen, groups=found.groups, **options)
        if rank != 0:
            return 0
        result = replace(result, notes=(*found.notes, *result.notes))
        folder = result.save(Path(output))
    console = Console()
    if result.metrics:
        console.print(table(result))
    else:
        console.print("no metrics: labels of at least two members and two non-members are needed")
    for note in result.notes:
        console.print(f"note: {note}", markup=False)
    console.print(cost_line(result), markup=False)
    console.print(f"results: {folder}", markup=False, soft_wrap=True)
    return 0


def _everything(options: dict[str, Any]) -> list[str]:
    """Return every attack for which the resources that it needs were named."""
    from memaudit.attacks.registry import make, names

    lacking = {
        "reference": options.get("reference") is None and "base" not in options,
        "corpus": options.get("corpus") is None,
        "masked_lm": options.get("masked_lm") is None,
        "distribution": options["backend"] == "vllm",
        "gradients": options["backend"] == "vllm",
    }
    return [
        name
        for name in names()
        if not any(absent and getattr(make(name).requirements, need) for need, absent in lacking.items())
    ]
