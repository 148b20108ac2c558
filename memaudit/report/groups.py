"""Scores by group: members, candidates that their coin kept out, controls; joined to the manifest by id."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from memaudit.errors import ReportError
from memaudit.manifest import Manifest, PlacedCanary
from memaudit.report.schema.membership import CalibrationSet, Unscored
from memaudit.stats.arrays import Floats


class ScoreGroups:
    """The scores by group, NaN ones set aside; the join on ids is one-to-one or it raises."""

    def __init__(self, manifest: Manifest, scores: Mapping[str, float]) -> None:
        planted = {canary.id for canary in manifest.canaries}
        missing, extra = sorted(planted - scores.keys()), sorted(scores.keys() - planted)
        if missing or extra:
            raise ReportError(
                f"the scores do not fit the manifest: {len(missing)} canaries have none "
                f"({some_of(missing)}), "
                f"{len(extra)} scores have no canary ({some_of(extra)}); score the manifest's canaries, "
                "each once"
            )
        self.manifest = manifest
        self.score = {name: float(value) for name, value in scores.items()}
        generators = {canary.generator for canary in manifest.canaries if canary.role == "candidate"}
        alike = [c for c in manifest.controls if c.generator in generators or not generators]
        self.excluded = len(manifest.controls) - len(alike)
        self.calibrating = {canary.id for canary in (*alike, *manifest.held_out)}
        self.never_inserted = self.values(alike)
        self.coin_losers = self.values(manifest.held_out)
        self.calibration = np.concatenate([self.never_inserted, self.coin_losers])
        self.members = self.values(manifest.members)

    def values(self, canaries: Sequence[PlacedCanary]) -> Floats:
        """The scores of some canaries, those that are not a number left out."""
        kept = [self.score[c.id] for c in canaries if not math.isnan(self.score[c.id])]
        return np.asarray(kept, dtype=np.float64)

    def tiers(self) -> list[int]:
        """The repetitions that candidates have, in order."""
        return sorted({c.repetitions for c in self.manifest.canaries if c.role == "candidate"})

    def of_tier(self, repetitions: int) -> Floats:
        """The members' scores of one tier."""
        return self.values([c for c in self.manifest.members if c.repetitions == repetitions])

    def unscored(self) -> Unscored:
        """Count and name the canaries whose score is not a number."""

        def lost(canaries: Sequence[PlacedCanary]) -> list[str]:
            return [c.id for c in canaries if math.isnan(self.score[c.id])]

        parts = [
            lost(group) for group in (self.manifest.members, self.manifest.held_out, self.manifest.controls)
        ]
        members, held_out, controls = (len(part) for part in parts)
        ids = sorted(name for part in parts for name in part)
        return Unscored(n_members=members, n_held_out=held_out, n_controls=controls, ids=ids)

    def info(self) -> CalibrationSet:
        """Say whose scores set the threshold."""
        return CalibrationSet(
            rule="never-inserted controls and candidates that their coin kept out, drawn by the same "
            "generator as "
            "the members: exchangeable with a member that had not been trained on",
            n=self.calibration.size,
            n_never_inserted=self.never_inserted.size,
            n_coin_losers=self.coin_losers.size,
            n_excluded=self.excluded,
        )


def some_of(ids: Sequence[str], most: int = 5) -> str:
    """Name the first few ids and count the rest."""
    if not ids:
        return "none"
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")
