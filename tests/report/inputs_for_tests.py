"""Reports to test with: manifests of marked secrets, scores by hand, extraction results by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from memaudit.extraction.results import CanaryExtraction, PrefixResult, Tries
from memaudit.manifest import Manifest, PlacedCanary, TokenizerIdentity
from memaudit.report.build import AuditInputs
from memaudit.report.examples import example_inputs, example_manifest, example_scores

MARK = "ZEBRAQUARTZ"


def by_hand(
    members: Sequence[float],
    controls: Sequence[float],
    *,
    held_out: Sequence[float] = (),
    repetitions: int = 1,
) -> tuple[Manifest, dict[str, float]]:
    """A manifest with one canary a score, and the scores by id."""
    groups = [
        ("m", "candidate", True, members),
        ("h", "candidate", False, held_out),
        ("k", "control", False, controls),
    ]
    canaries, scores = [], {}
    for letter, role, included, values in groups:
        for index, value in enumerate(values):
            name = f"{letter}-{index:05d}"
            canaries.append(
                PlacedCanary(
                    id=name,
                    family="random",
                    generator="uniform_vocab",
                    secret=f" {MARK}{name}",
                    secret_ids=(1, 2, 3),
                    role=role,
                    repetitions=repetitions if role == "candidate" else 1,
                    included=included,
                    record={"text": f" {MARK}{name}"},
                )
            )
            scores[name] = value
    manifest = Manifest(
        seed=0,
        fmt="text",
        include_prob=0.5,
        repetitions=(repetitions,),
        family="random",
        tokenizer=TokenizerIdentity(name="t", vocab_size=9, fingerprint="0"),
        canaries=tuple(canaries),
    )
    return manifest, scores


def extracted(
    name: str, *, verbatim: bool, near: bool | None = False, log10_n: float | None = 2.0, n_tokens: int = 25
) -> CanaryExtraction:
    """One canary's extraction at two prefixes; ``near`` None leaves the near-verbatim verdict open."""
    tries = {"t1-k0-p1": (Tries(0.5, None, log10_n),)}
    parts = tuple(
        PrefixResult(
            fraction=fraction,
            n_prefix_tokens=int(fraction * n_tokens),
            n_suffix_tokens=n_tokens - int(fraction * n_tokens),
            verbatim=verbatim and fraction == 0.5,
            near_verbatim=True if verbatim and fraction == 0.5 else near,
            bleu=None,
            edit_distance=None,
            source="teacher_forced",
            log_probability={"t1-k0-p1": -3.0},
            n_for_p=tries,
        )
        for fraction in (0.25, 0.5)
    )
    return CanaryExtraction(name, n_tokens, parts, 7, 12 if verbatim else None, {"t1-k0-p1": -9.0}, tries)


def whole_inputs(**changes: Any) -> AuditInputs:
    """Inputs in which every part was run, with marked secrets, two attacks and two timeline entries."""
    manifest = example_manifest(mark=MARK)
    scores = example_scores(manifest)
    found = {c.id: extracted(c.id, verbatim=c.included and c.repetitions == 16) for c in manifest.canaries}
    point = {"ci_low": 0.1, "ci_high": 0.5, "regurgitation_rate": 0.0, "seconds": 1.5}
    inputs = dataclasses.replace(
        example_inputs(),
        manifest=manifest,
        scores={"ref_minkpp": scores, "loss": {name: value / 2 for name, value in scores.items()}},
        headline_attack="ref_minkpp",
        extraction=found,
        extraction_reason=None,
        privacy={
            "m": 32,
            "epsilon": [
                {
                    "delta": 0.0,
                    "value": 1.2,
                    "ceiling": 2.5,
                    "guarantee": "certified",
                    "at": "at delta 0",
                    "m": 32,
                    "sentence": "epsilon >= 1.2 at delta 0",
                }
            ],
            "exposure": {"by_repetition": {"1x": {"n": 3, "mean": 2.0, "max": 4.0}}},
        },
        real_records={
            "sample_seed": 0,
            "n_train_sampled": 4,
            "comparison_population": "held_out",
            "exact_dup_rate": 0.25,
            "set_level": {
                "assumption": "one distribution",
                "blind_baseline": {"auc": 0.9, "pvalue": 0.003},
                "mann_whitney": {"loss": {"pvalue": 0.04}},
            },
            "verbatim": {"n": 4, "n_verbatim_by_prefix": {"0.25": 1, "0.5": 2}},
            "ranked": [{"hash": "ab", "score": 1.0}],
        },
        timeline=[
            {"step": 5, "epoch": 0.5, "tpr_at_target_fpr": 0.2, "auc": 0.7, **point},
            {"step": 10, "epoch": 1.0, "tpr_at_target_fpr": 0.4, "auc": 0.9, **point},
        ],
        distributed={"strategy": "fsdp2", "world_size": 2},
        forwards={"target": [3, 3]},
        preflight={"ok": True, "warnings": [{"message": "packing is on"}]},
        adapter={"r": 64, "lora_alpha": 256, "modules_to_save": ["lm_head"]},
        config={"training": {"learning_rate": 1e-3, "num_train_epochs": 3}},
        environment={"python": "3.11"},
        seeds=(0, 1, 2),
        release_context="internal",
    )
    return dataclasses.replace(inputs, **changes)
