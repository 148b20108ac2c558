"""The regurgitation verdict and the extraction curves, from what ``memaudit.extraction`` found per canary.

Only what was judged is a number: while near-verbatim verdicts are open the rate by every rule is null and exact
matches stand alone, and a part that was not run is null with its reason, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memaudit.errors import ReportError
from memaudit.manifest import Manifest, PlacedCanary
from memaudit.report.groups import ScoreGroups, some_of
from memaudit.report.schema.base import Proportion
from memaudit.report.schema.extraction import (
    DetectedRegurgitation,
    Extraction,
    ExtractionCurve,
    NegativeControls,
    Regurgitation,
    RegurgitationRate,
)
from memaudit.stats.intervals import clopper_pearson

if TYPE_CHECKING:  # plain results; importing them at run time would bring the generating code along
    from memaudit.extraction.results import CanaryExtraction

Found = Mapping[str, "CanaryExtraction"]

PROTOCOL = "under this prefix/decoding/exact-match protocol"
BLEU_ABOVE = 0.75
EDIT_DISTANCE_AT_MOST = 0.1
CURVE_N = (1, 3, 10, 30, 100, 300, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
"""Numbers of samples at which the extraction curves are given."""


def regurgitation(
    manifest: Manifest, found: Found | None, reason: str | None, info: Mapping[str, Any]
) -> Regurgitation:
    """Return the verdict on inserted canaries.

    Args:
        manifest: what was planted.
        found: canary id to what extraction found; None when it was not run. Ids may be missing (records that
            could not be judged); they are named in the note and are in no denominator.
        reason: why it was not run.
        info: what the caller knows of the protocol: ``unit``, ``prefix_policy``, ``decoding``.

    Returns:
        A Regurgitation; with ``found`` None every number is None.

    Raises:
        ReportError: ids that are not the manifest's, or ``found`` is None without a reason.
    """
    if found is None:
        if not reason:
            raise ReportError(
                "regurgitation was not run and no reason is given; say why, as 'skip_generation'"
            )
        return Regurgitation(
            execution="not_run",
            reason=reason,
            detected=DetectedRegurgitation(
                n=0, n_detected=None, rate=None, wording=f"not run ({reason}): nothing was measured"
            ),
            overall=RegurgitationRate(n=0),
            by_tier={},
            near_verbatim_reason=reason,
        )
    strangers = sorted(found.keys() - {canary.id for canary in manifest.canaries})
    if strangers:
        raise ReportError(
            f"extraction results for {len(strangers)} ids that the manifest lacks ({some_of(strangers)}); "
            "give the results of this manifest's canaries"
        )
    members = [found[c.id] for c in manifest.members if c.id in found]
    lost = [c.id for c in manifest.members if c.id not in found]
    fractions = _fractions(found)
    exact = _proportion([one.verbatim for one in members])
    n_open = sum(one.regurgitated is None for one in members)
    near_ran = bool(members) and not n_open
    notes = []
    if lost:
        notes.append(f"{len(lost)} inserted canaries could not be judged: {some_of(lost, 20)}")
    if n_open:
        notes.append(
            f"near-verbatim matches of {n_open} inserted canaries are open because nothing was generated: the "
            "overall rate is not measured, exact matches are"
        )
    return Regurgitation(
        execution="executed",
        prefix_policy=str(
            info.get("prefix_policy")
            or "the record's own context (template, earlier turns) in token ids, then the secret's first part"
        ),
        decoding=str(info.get("decoding") or "greedy"),
        match_rule=(
            "exact: every token left of the secret is the argmax given the true tokens before it, which is "
            "what "
            f"greedy decoding emits; near-verbatim: BLEU > {BLEU_ABOVE} or normalised edit distance <= "
            f"{EDIT_DISTANCE_AT_MOST} over every window of a generation (unit: {info.get('unit', 'tokens')})"
        ),
        prefix_fractions=fractions,
        thresholds={"bleu": BLEU_ABOVE, "edit_distance": EDIT_DISTANCE_AT_MOST},
        detected=DetectedRegurgitation(
            n=exact.n,
            n_detected=exact.count,
            rate=exact.rate,
            ci_low=exact.ci_low,
            ci_high=exact.ci_high,
            wording=f"{exact.count}/{exact.n} {PROTOCOL}",
        ),
        overall=_rate(members),
        by_tier={
            f"{tier}x": _tier(manifest.members, found, tier)
            for tier in sorted({c.repetitions for c in manifest.members})
        },
        by_prefix={
            f"{fraction:g}": _proportion(
                [part.verbatim for one in members for part in one.by_prefix if part.fraction == fraction]
            )
            for fraction in fractions
        },
        near_verbatim="executed" if near_ran else "not_run",
        near_verbatim_reason=None if near_ran else str(info.get("near_reason") or "generation was not run"),
        note="; ".join(notes) or None,
    )


def negative_controls(
    groups: ScoreGroups,
    found: Found | None,
    reason: str | None,
    mean: float | None,
    member_mean: float | None,
) -> NegativeControls:
    """Return what the same attacks say of canaries that were never inserted (controls and coin losers)."""
    outside = [*groups.manifest.controls, *groups.manifest.held_out]
    if found is None:
        return NegativeControls(
            n=len(outside),
            mean_headline_score=mean,
            mean_member_score=member_mean,
            regurgitation="not_run",
            regurgitation_reason=reason,
            regurgitation_rate=None,
        )
    judged = [found[c.id] for c in outside if c.id in found]
    if not judged:
        return NegativeControls(
            n=len(outside),
            mean_headline_score=mean,
            mean_member_score=member_mean,
            regurgitation="not_run",
            regurgitation_reason="no control was judged",
            regurgitation_rate=None,
        )
    whole = _rate(judged)
    return NegativeControls(
        n=len(outside),
        mean_headline_score=mean,
        mean_member_score=member_mean,
        regurgitation="executed",
        regurgitation_reason="near-verbatim not run" if whole.n_open else None,
        regurgitation_rate=whole.rate,
        n_regurgitated=whole.count,
        ci_low=whole.ci_low,
        ci_high=whole.ci_high,
        exact=_proportion([one.verbatim for one in judged]),
        note=f"{whole.n_open} of {len(judged)} have an exact verdict alone" if whole.n_open else None,
    )


def extraction(manifest: Manifest, found: Found | None, reason: str | None) -> Extraction:
    """Return curves over n of the share of canaries that n samples emit with probability at least p."""
    if found is None:
        return Extraction(execution="not_run", reason=reason)
    members = [found[c.id] for c in manifest.members if c.id in found]
    controls = [found[c.id] for c in (*manifest.controls, *manifest.held_out) if c.id in found]
    keys = [
        (scheme, "context", tries.p)
        for one in members[:1]
        for scheme, all_tries in one.n_for_p.items()
        for tries in all_tries
    ] + [
        (scheme, f"{part.fraction:g}", tries.p)
        for one in members[:1]
        for part in one.by_prefix
        for scheme, all_tries in part.n_for_p.items()
        for tries in all_tries
    ]
    if not keys:
        return Extraction(
            execution="not_run", reason="the signals hold no decoding scheme's log-probabilities"
        )
    curves = [
        ExtractionCurve(
            scheme=scheme,
            prefix=prefix,
            p=p,
            n=[float(n) for n in CURVE_N],
            members=_share(members, scheme, prefix, p),
            controls=_share(controls, scheme, prefix, p),
        )
        for scheme, prefix, p in keys
    ]
    runs = [one.longest_run for one in members]
    return Extraction(
        execution="executed",
        curves=curves,
        summary={
            "longest_run_max": max(runs, default=0),
            "n_members": len(members),
            "n_controls": len(controls),
            "whole_secret_from_context": sum(one.shortest_prefix == 0 for one in members),
        },
        note="(n, p)-discoverable extraction (Hayes et al. 2024): independent samples under each decoding "
        "scheme, "
        "given the record's context and the named share of the secret; exact probabilities, nothing was "
        "sampled",
    )


def _log10_tries(one: CanaryExtraction, scheme: str, prefix: str, p: float) -> float | None:
    source = one.n_for_p if prefix == "context" else None
    if source is None:
        parts = [part for part in one.by_prefix if f"{part.fraction:g}" == prefix]
        source = parts[0].n_for_p if parts else {}
    for tries in source.get(scheme, ()):
        if tries.p == p:
            return tries.log10_n
    return None


def _share(records: Sequence[CanaryExtraction], scheme: str, prefix: str, p: float) -> list[float]:
    needed = [_log10_tries(one, scheme, prefix, p) for one in records]
    total = max(1, len(records))
    return [sum(x is not None and x <= math.log10(n) + 1e-12 for x in needed) / total for n in CURVE_N]


def _fractions(found: Found) -> list[float]:
    return sorted({part.fraction for one in found.values() for part in one.by_prefix})


def _tier(members: Sequence[PlacedCanary], found: Found, tier: int) -> RegurgitationRate:
    rate = _rate([found[c.id] for c in members if c.repetitions == tier and c.id in found])
    rate.meaning = (
        "single exposure: says little about extraction, read it with the membership tier"
        if tier == 1
        else None
    )
    return rate


def _rate(records: Sequence[CanaryExtraction]) -> RegurgitationRate:
    """The rate by every rule; not measured while a verdict is open, since the open ones are all misses so far."""
    exact = sum(one.verbatim for one in records)
    n_open = sum(one.regurgitated is None for one in records)
    if n_open:
        return RegurgitationRate(n=len(records), exact=exact, n_open=n_open)
    whole = _proportion([bool(one.regurgitated) for one in records])
    return RegurgitationRate(
        n=whole.n,
        count=whole.count,
        rate=whole.rate,
        ci_low=whole.ci_low,
        ci_high=whole.ci_high,
        exact=exact,
        near=(whole.count or 0) - exact,
    )


def _proportion(hits: Sequence[bool]) -> Proportion:
    n, count = len(hits), sum(hits)
    if n == 0:
        return Proportion(n=0, count=0)
    low, high = clopper_pearson(count, n)
    return Proportion(n=n, count=count, rate=count / n, ci_low=low, ci_high=high)
