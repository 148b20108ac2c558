"""memaudit preflight: whether the canaries survive tokenisation, truncation and masks, before anything is trained."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from memaudit.files import write_atomic

ALIASES = {"-o": "--output"}


def preflight(
    data: str,
    *,
    manifest: str,
    tokenizer: str,
    max_length: int | None = None,
    completion_only_loss: bool | None = None,
    assistant_only_loss: bool = False,
    output: str | None = None,
    json_lines: bool = False,
) -> int:
    """Look for every canary in a data file as its trainer would see it; exit with 1 where the audit would be void.

    Records are tokenised, masked and cut as TRL's SFTTrainer does it, without packing. The callback repeats the
    pre-flight on the real trainer when training begins.

    Args:
        data: the file that `memaudit inject` wrote.
        manifest: its manifest.
        tokenizer: folder or hub id of the training's tokenizer.
        max_length: tokens that records are cut to.
        completion_only_loss: whether prompts are left out of the loss; by default where there are any.
        assistant_only_loss: whether all but the assistant's turns are left out of the loss.
        output: file for the result as JSON.
        json_lines: print the result as JSON instead of lines for people.
    """
    from memaudit.cli._loading import load_tokenizer
    from memaudit.manifest import Manifest
    from memaudit.preflight import run_preflight
    from memaudit.preflight.emulation import TokenisedFile

    planted = Manifest.load(manifest)
    loaded = load_tokenizer(tokenizer)
    rows = TokenisedFile(
        Path(data),
        planted,
        loaded,
        max_length=max_length,
        completion_only_loss=completion_only_loss,
        assistant_only_loss=assistant_only_loss,
    )
    result = run_preflight(rows, planted, tokenizer=loaded, max_length=max_length, max_rows=len(rows))
    found = result.to_dict()
    if output is not None:
        write_atomic(output, json.dumps(found, indent=1))
    if json_lines:
        print(json.dumps(found))
    else:
        counts = result.counts
        print(
            f"{counts.expected} included canaries in {counts.rows} rows: {counts.found} found, {counts.masked} masked, "
            f"{counts.truncated} truncated, {counts.missing} missing; {counts.leaked} excluded ones present"
        )
        for one in result.findings:
            print(str(one), file=sys.stderr if one.severity == "error" else sys.stdout)
    return 0 if result.ok else 1
