"""Running the survival scan over a source, and saying what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memaudit.canaries.tokens import TokenizerLike, decode
from memaudit.errors import ConfigurationError, InjectionError
from memaudit.injection import Rendered, render
from memaudit.manifest import Manifest, PlacedCanary
from memaudit.preflight.findings import Finding, ScanCounts
from memaudit.preflight.scan import SurvivalScan
from memaudit.preflight.sources import CollatorFailed, Source

TEXT_ROWS = 20_000
"""Rows that are decoded to look for secrets as text, where none of their ids was found."""


@dataclass(frozen=True, slots=True)
class Survival:
    """What the scan found: findings, counts, and the observed contexts that differ from the rendered ones."""

    findings: tuple[Finding, ...]
    counts: ScanCounts
    observed_prefix: tuple[int, ...] | None
    observed: Mapping[str, tuple[int, ...]]


def survive(
    manifest: Manifest, source: Source, tokenizer: TokenizerLike | None, max_length: int | None = None
) -> Survival:
    """Look for every canary in the rows that the model gets, and judge what is found.

    A secret that is nowhere and would end beyond ``max_length`` tokens counts as truncated.
    """
    members = manifest.members
    if not source.readable:
        finding = Finding(
            "scan-impossible",
            "warning",
            "the training data can be read only once, so it was not looked at",
            "pass data that can be iterated again, or run `memaudit preflight` on a copy",
        )
        return Survival((finding,), ScanCounts(expected=len(members), complete=False), None, {})
    rendered = _rendered(manifest, tokenizer)
    contexts = {name: one.span[0] for name, one in rendered.items()}
    scan = SurvivalScan(manifest.canaries, contexts, tokenizer)
    try:
        for rows in source.read():
            scan.add(rows)
        scan = _through_collator(manifest, source, scan, contexts, tokenizer)
        _as_text(manifest, source, scan, tokenizer)
    except CollatorFailed as error:
        finding = Finding(
            "collator-failed",
            "error",
            str(error),
            "repair the collator, or keep the columns that it needs with remove_unused_columns=False",
        )
        return Survival((finding,), ScanCounts(expected=len(members), complete=False), None, {})
    except ConfigurationError as error:
        finding = Finding(
            "no-input-ids",
            "error",
            f"the trainer's rows hold no token ids ({error})",
            "tokenise the data, or keep the columns that the collator needs with remove_unused_columns=False",
        )
        return Survival((finding,), ScanCounts(expected=len(members), missing=len(members)), None, {})
    if max_length is not None:
        scan.presume_cut(_too_long(manifest.members, rendered, max_length))
    counts = scan.counts(complete=source.complete)
    findings = [*_lost(manifest, scan, counts), *_extra(manifest, scan, counts)]
    different = _contexts(manifest, scan, rendered)
    common = set(different.values())
    if different:
        findings.append(
            Finding(
                "context-differs",
                "warning",
                f"{len(different)} of {counts.found} secrets stand after other tokens than their record renders to",
                "score them after the observed tokens (the result holds them), or train on the rendered format "
                "(alpaca: formatting_func=memaudit.injection.alpaca_text)",
                tuple(different),
            )
        )
    prefix = next(iter(common)) if len(common) == 1 and len(different) >= counts.found else None
    return Survival(tuple(findings), counts, prefix, different)


def _rendered(manifest: Manifest, tokenizer: TokenizerLike | None) -> dict[str, Rendered]:
    if tokenizer is None:
        return {}
    found = {}
    for canary in manifest.canaries:
        try:
            found[canary.id] = render(canary, manifest.fmt, tokenizer)
        except InjectionError:  # told by its own check; the scan looks for the ids all the same
            continue
    return found


def _through_collator(
    manifest: Manifest,
    source: Source,
    scan: SurvivalScan,
    contexts: Mapping[str, int],
    tokenizer: TokenizerLike | None,
) -> SurvivalScan:
    """Pass the rows with secrets through the trainer's collator, which has the last word on the labels."""
    if source.collator is None or not source.tokenised_columns() or not scan.sightings:
        return scan
    rows = list(dict.fromkeys(sighting.row for sighting in scan.sightings))
    again = SurvivalScan(manifest.canaries, contexts, tokenizer)
    for flat in source.collated(rows):
        again.add(flat)
    again.rows, again.tokens = scan.rows, scan.tokens
    return again


def _as_text(manifest: Manifest, source: Source, scan: SurvivalScan, tokenizer: TokenizerLike | None) -> None:
    """Decode rows where included secrets were not seen at all: their ids may differ where their words do not."""
    states = scan.states()
    if tokenizer is None or all(canary.id in states for canary in manifest.members):
        return
    known = set(states)
    seen = 0
    texts = SurvivalScan([c for c in manifest.canaries if c.id not in known], None, tokenizer)
    for rows in source.read():
        for row in range(rows.n_rows):
            low, high = rows.bounds(row)
            texts.add_texts([decode(tokenizer, rows.ids[low:high].tolist())], rows.first_row + row)
            seen += 1
            if seen >= TEXT_ROWS:
                break
        if seen >= TEXT_ROWS:
            break
    scan.sightings.extend(texts.sightings)


def _lost(manifest: Manifest, scan: SurvivalScan, counts: ScanCounts) -> list[Finding]:
    """Return findings about included secrets that are not trained on."""
    states = scan.states()
    findings = []
    by_state: dict[str, list[str]] = {"masked": [], "partial": [], "cut": [], "missing": []}
    for canary in manifest.members:
        seen = states.get(canary.id)
        if not seen:
            by_state["missing"].append(canary.id)
        elif seen["whole"] or seen["text"]:
            continue
        elif seen["partial_labels"]:
            by_state["partial"].append(canary.id)
        elif seen["masked"]:
            by_state["masked"].append(canary.id)
        else:
            by_state["cut"].append(canary.id)
    total = counts.expected

    def add(state: str, code: str, severity: Any, what: str, advice: str) -> None:
        names = by_state[state]
        if names:
            findings.append(
                Finding(code, severity, f"{len(names)} of {total} secrets {what}", advice, tuple(names))
            )

    add(
        "masked",
        "secret-masked",
        "error",
        "have the label -100 on every token: nothing of them is trained on",
        "put the secret on the side that is trained on (fmt= of inject(), completion_only_loss, "
        "assistant_only_loss, the collator)",
    )
    add(
        "partial",
        "secret-partly-masked",
        "warning",
        "are trained on in part: some of their tokens have the label -100, or open a row",
        "look at the loss mask and at packing",
    )
    add(
        "cut",
        "secret-truncated",
        "error",
        "are cut off or split over rows",
        "raise max_length, shorten secret_len, or choose a packing strategy that keeps records whole (bfd)",
    )
    if counts.complete:
        add(
            "missing",
            "secret-missing",
            "error",
            f"are in none of the {counts.rows} rows that the trainer sees",
            "inject into the data before the trainer is made (it tokenises in its constructor), and pass what "
            "inject() returned",
        )
    else:
        add(
            "missing",
            "secret-not-seen",
            "warning",
            f"were not seen in the first {counts.rows} rows, and the rest was not looked at",
            "raise max_rows, or give inject() the stream's length with n_rows=",
        )
    if not counts.labels_seen and total and counts.found:
        findings.append(
            Finding(
                "labels-unknown",
                "info",
                "no batch has labels: whether the secrets are trained on could not be checked",
                "pass batches with labels, or make sure that the loss leaves nothing out",
            )
        )
    if counts.by_text:
        findings.append(
            Finding(
                "secret-as-text",
                "warning",
                f"{counts.by_text} of {total} secrets stand there as text, their ids differing from the planted ones",
                "use the tokenizer that the canaries were made with; scores are taken on the planted ids",
            )
        )
    return findings


def _extra(manifest: Manifest, scan: SurvivalScan, counts: ScanCounts) -> list[Finding]:
    """Return findings about copies that should not be there, and about copies that are not."""
    states = scan.states()
    findings = []
    leaked = tuple(c.id for c in manifest.canaries if not c.included and c.id in states)
    if leaked:
        findings.append(
            Finding(
                "excluded-present",
                "error",
                f"{len(leaked)} excluded canaries stand in the training data",
                "train on the data that this manifest was made with, without other copies of the canaries",
                leaked,
            )
        )
    more, fewer = [], []
    for canary in manifest.members:
        seen = states.get(canary.id)
        planted = 1 if canary.variants else canary.repetitions
        if not seen or canary.variants:
            continue
        copies = seen["whole"] + seen["text"] + seen["masked"] + seen["partial_labels"]
        if copies > planted:
            more.append(canary.id)
        elif counts.complete and (seen["whole"] + seen["text"]) and copies < planted:
            fewer.append(canary.id)
    if more:
        findings.append(
            Finding(
                "more-copies",
                "warning",
                f"{len(more)} secrets occur more often than they were planted: the data holds them besides",
                "inject into the original data once; the split by repetition is wrong otherwise",
                tuple(more),
            )
        )
    if fewer:
        findings.append(
            Finding(
                "fewer-copies",
                "warning",
                f"{len(fewer)} secrets occur whole less often than they were planted: other copies were cut or dropped",
                "raise max_length, or choose a packing strategy that keeps records whole (bfd)",
                tuple(fewer),
            )
        )
    return findings


def _contexts(
    manifest: Manifest, scan: SurvivalScan, rendered: Mapping[str, Rendered]
) -> dict[str, tuple[int, ...]]:
    """Return, for secrets whose preceding ids in no row are the rendered ones, those that stand there."""
    seen: dict[str, list[tuple[int, ...]]] = {}
    for sighting in scan.sightings:
        if sighting.state == "whole":
            seen.setdefault(sighting.canary, []).append(sighting.prefix)
    different = {}
    for canary in manifest.members:
        if canary.id in seen and canary.id in rendered:
            one = rendered[canary.id]
            expected = one.ids[: one.span[0]]
            if expected not in seen[canary.id]:
                different[canary.id] = seen[canary.id][0]
    return different


def _too_long(
    canaries: tuple[PlacedCanary, ...], rendered: Mapping[str, Rendered], limit: int
) -> tuple[str, ...]:
    """Return the ids of canaries whose secret ends beyond ``limit`` tokens of their record."""
    return tuple(c.id for c in canaries if c.id in rendered and rendered[c.id].span[1] > limit)
