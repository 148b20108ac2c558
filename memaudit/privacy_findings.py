"""The report's privacy part: what the coins certify, and how exposed each inserted secret is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memaudit.errors import ConfigurationError
from memaudit.manifest import Manifest, PlacedCanary
from memaudit.privacy import estimate_from_scores
from memaudit.stats.exposure import extrapolated_exposure, fit_skew_normal, strict_exposure


def privacy_findings(
    manifest: Manifest, scores: Mapping[str, float], *, seed: int = 0
) -> tuple[dict[str, Any] | None, str | None]:
    """Estimate the privacy loss from the coins, or say why that cannot be done.

    Args:
        manifest: with the coins; only candidates count, since a control had no coin.
        scores: canary id to score of the headline attack; NaN where a canary could not be scored.
        seed: of the randomisation test's draws.

    Returns:
        The estimates as a dictionary, and the reason where there are none.
    """
    candidates = [c for c in manifest.canaries if c.role == "candidate" and math.isfinite(scores[c.id])]
    if len(candidates) < 2:
        return None, f"{len(candidates)} candidate(s) have a score; a one-run estimate needs at least 2"
    if manifest.include_prob != 0.5:
        return None, (
            f"the coins include with probability {manifest.include_prob}; one-run bounds are proven for 1/2 alone"
        )
    coins = np.array([c.included for c in candidates])
    values = np.array([scores[c.id] for c in candidates], dtype=np.float64)
    summary = dict(estimate_from_scores(values, coins, [c.id for c in candidates], seed=seed).to_dict())
    summary["exposure"] = exposure_findings(manifest.canaries, scores)
    most = max(c.repetitions for c in candidates)
    summary["note"] = (
        f"canaries are inserted up to {most} times: the bound is about adding or removing all copies of one canary "
        "(group privacy), not about a single record"
        if most > 1
        else "each canary is inserted once: the bound is about adding or removing one record"
    )
    return summary, None


def exposure_findings(canaries: Sequence[PlacedCanary], scores: Mapping[str, float]) -> dict[str, Any]:
    """Return the exposure in bits of the inserted secrets, by repetition (Carlini 2019).

    Secrets of the same construction that were not inserted are the references. Beyond log2 of their number a
    skew-normal law is fitted, and used only where the test of its fit does not reject it. For a structured
    family the size of the space of fills caps what can be shown.

    Args:
        canaries: all of the manifest.
        scores: canary id to score, higher = more member-like.
    """
    members = [c for c in canaries if c.included and math.isfinite(scores[c.id])]
    others = [scores[c.id] for c in canaries if not c.included and math.isfinite(scores[c.id])]
    if not members or not others:
        return {"execution": "not_run", "reason": "no inserted secret, or none to compare with, has a score"}
    references = -np.asarray(others)
    bits = strict_exposure(-np.asarray([scores[c.id] for c in members]), references)
    result: dict[str, Any] = {
        "execution": "executed",
        "n_references": len(others),
        "largest_sampled_bits": math.log2(len(others) + 1),
        "mean_bits_if_never_seen": 1 / math.log(2),
        "by_repetition": _by_tier(members, bits),
        "guarantee": "descriptive",
    }
    spaces = {float(c.metadata["space_log2"]) for c in members if "space_log2" in c.metadata}
    result["space_log2"] = min(spaces) if spaces else None
    try:
        fit = fit_skew_normal(references)
    except ConfigurationError as error:
        result["extrapolated"] = None
        result["extrapolated_reason"] = str(error)
        return result
    if not fit.trusted:
        result["extrapolated"] = None
        result["extrapolated_reason"] = (
            f"the skew-normal law does not fit the references (Kolmogorov-Smirnov p = {fit.ks_pvalue:.3g})"
        )
        return result
    far = extrapolated_exposure(-np.asarray([scores[c.id] for c in members]), fit)
    if spaces:
        far = np.minimum(far, min(spaces))
    result["extrapolated"] = {"fit": fit.to_dict(), "by_repetition": _by_tier(members, far)}
    return result


def _by_tier(members: Sequence[PlacedCanary], bits: Any) -> dict[str, dict[str, float]]:
    tiers: dict[str, list[float]] = {}
    for canary, value in zip(members, bits, strict=True):
        tiers.setdefault(f"{canary.repetitions}x", []).append(float(value))
    return {
        name: {"n": len(values), "mean": float(np.mean(values)), "max": float(np.max(values))}
        for name, values in sorted(tiers.items(), key=lambda item: int(item[0][:-1]))
    }
