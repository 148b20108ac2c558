"""Checks that need nothing but the manifest and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memaudit.canaries.new_token import REASON
from memaudit.canaries.tokens import TokenizerLike, check_tokenizer
from memaudit.errors import InjectionError, ManifestError
from memaudit.injection import render
from memaudit.manifest import Manifest
from memaudit.preflight.findings import Finding

FEWEST_CONTROLS = 100


def check_design(manifest: Manifest) -> Iterator[Finding]:
    """Yield findings about coins, controls and the family."""
    members, held_out = manifest.members, manifest.held_out
    if not members:
        yield Finding(
            "coins-alike" if held_out else "no-members",
            "error",
            "no canary is included in the training data",
            "draw again with another seed, more canaries (n=) or a larger include_prob",
        )
    elif not held_out and 0.0 < manifest.include_prob < 1.0:
        yield Finding(
            "coins-alike",
            "warning",
            f"all {len(members)} coins included their canary: the coin leaves no held-out ones",
            "draw again with another seed; privacy estimates need both sides",
        )
    if len(manifest.controls) < FEWEST_CONTROLS and manifest.profile != "smoke":
        yield Finding(
            "few-controls",
            "warning",
            f"{len(manifest.controls)} controls: the detection rate at 1% false positives will be refused",
            f"draw at least {FEWEST_CONTROLS} controls (n_controls=)",
        )
    if manifest.family == "new_token" or any(canary.family == "new_token" for canary in manifest.canaries):
        yield Finding("new-token", "error", REASON.split(";")[0], "choose the family high_ppl")
    for warning in manifest.warnings:
        if "of the tokens" in warning:
            yield Finding(
                "token-share", "warning", warning, "use more data, fewer canaries or fewer repetitions"
            )


def check_resumed(manifest: Manifest, saved: Path, *, resumed: bool) -> Iterator[Finding]:
    """Yield a finding where a resumed run was begun with another manifest."""
    if not resumed or not saved.is_file():
        return
    try:
        before = Manifest.load(saved).content_hash()
    except ManifestError as error:
        yield Finding(
            "resumed-manifest-damaged",
            "warning",
            f"the manifest of the run that is resumed cannot be read ({error})",
            "make sure that the manifest given is the one that the run began with",
        )
        return
    if before != manifest.content_hash():
        yield Finding(
            "resumed-other-manifest",
            "error",
            "the run that is resumed began with another manifest: its members were not these",
            f"pass the manifest that lies in {saved.parent}, or start a new run in another folder",
        )


def check_text(
    manifest: Manifest, tokenizer: TokenizerLike | None, max_length: int | None
) -> Iterator[Finding]:
    """Yield findings about the tokenizer: its identity, its pad token, secrets that lose their ids or are too long."""
    if tokenizer is None:
        yield Finding(
            "no-tokenizer",
            "warning",
            "there is no tokenizer: the secrets are looked for by their ids alone",
            "pass tokenizer= (Trainer: processing_class=)",
        )
        return
    try:
        check_tokenizer(manifest, tokenizer)
    except ManifestError as error:
        yield Finding(
            "other-tokenizer",
            "error",
            str(error).split("; use")[0],
            "use the tokenizer of generate_canaries()",
        )
        return
    if getattr(tokenizer, "pad_token_id", None) is None:
        yield Finding(
            "no-pad-token",
            "warning",
            "the tokenizer has no pad token: a trainer may refuse it, or pad with the end-of-text token and mask it",
            "set tokenizer.pad_token; memaudit itself needs none",
        )
    unstable, long = [], []
    first: Any = None
    for canary in manifest.canaries:
        try:
            one = render(canary, manifest.fmt, tokenizer)
        except InjectionError as error:
            unstable.append(canary.id)
            first = first or error
            continue
        if canary.included and max_length is not None and one.span[1] > max_length:
            long.append(canary.id)
    if unstable:
        yield Finding(
            "record-not-rendered",
            "error",
            f"{len(unstable)} records do not render to their secret's ids ({first})",
            "use the tokenizer and chat template of the training when the canaries are made and injected",
            tuple(unstable),
        )
    if long:
        yield Finding(
            "over-max-length",
            "error",
            f"{len(long)} included secrets end beyond max_length={max_length}",
            "raise max_length, or draw shorter secrets (secret_len=)",
            tuple(long),
        )
