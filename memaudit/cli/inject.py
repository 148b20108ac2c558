"""memaudit inject: plant canaries in a data file and write the manifest."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from memaudit.errors import ConfigurationError

ALIASES = {"-o": "--output"}


def inject(
    data: str,
    *,
    output: str,
    manifest: str,
    canaries: str | None = None,
    tokenizer: str | None = None,
    model: str | None = None,
    fmt: str = "auto",
    columns: dict[str, str] | None = None,
    seed: int = 0,
    family: str = "high_ppl",
    profile: Literal["smoke", "routine", "powered"] = "routine",
) -> int:
    """Plant canaries in a JSONL, CSV or Parquet file; the original file stays as it is.

    Args:
        data: the training data.
        output: the new file, of the same kind.
        manifest: where the manifest goes: the ground truth of the audit, readable by its owner alone.
        canaries: file of `memaudit canaries`; without it they are drawn here, which needs a tokenizer.
        tokenizer: folder or hub id of the training's tokenizer; checks that secrets keep their ids.
        model: folder or hub id of the model to sample from, where canaries are drawn here.
        fmt: auto, text, prompt_completion, messages, sharegpt, alpaca, preference or input_ids.
        columns: which column plays a role of the format, as ``{text: body}``.
        seed: of the places, and of canaries that are drawn here.
        family: of canaries that are drawn here.
        profile: of canaries that are drawn here.
    """
    from memaudit.cli._loading import load_model, load_tokenizer
    from memaudit.injection import inject as plant
    from memaudit.manifest import CanarySet
    from memaudit.sampling import generate_canaries

    source = tokenizer or model
    loaded = load_tokenizer(source) if source else None
    if Path(manifest).resolve() in (Path(data).resolve(), Path(output).resolve()):
        raise ConfigurationError(f"the manifest {manifest} is the data; name another file")
    if canaries is not None:
        given = CanarySet.load(canaries)
    elif loaded is None:
        raise ConfigurationError(
            "neither canaries nor a tokenizer is given; make canaries with `memaudit canaries`, or name the "
            "training's tokenizer with --tokenizer"
        )
    else:
        given = generate_canaries(
            loaded, family=family, profile=profile, seed=seed, model=load_model(model) if model else None
        )
    path, made = plant(data, given, fmt, seed, tokenizer=loaded, columns=columns, output=output)
    made.save(manifest)
    share = "unknown" if made.token_share is None else f"{made.token_share:.3%}"
    print(
        f"{made.n_inserted_rows} rows for {len(made.members)} canaries among {made.n_host_rows} rows in {path}"
    )
    print(
        f"format {made.fmt}, share of the tokens {share}; manifest {manifest}, sha256 {made.content_hash()}"
    )
    for warning in made.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0
