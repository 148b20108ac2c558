"""A small manifest with scores for doctests, tests and `memaudit doctor`: invented numbers, no model."""

from __future__ import annotations

import hashlib

from memaudit.manifest import Canary, Manifest, PlacedCanary, TokenizerIdentity
from memaudit.report.inputs import AuditInputs
from memaudit.seeds import generator


def example_manifest(
    n: int = 32,
    n_controls: int = 100,
    *,
    seed: int = 0,
    repetitions: tuple[int, ...] = (1, 4, 16),
    mark: str = "",
) -> Manifest:
    """Return a manifest of invented canaries with fair coins.

    Example:
        >>> manifest = example_manifest(8, 10)
        >>> len(manifest.members) + len(manifest.held_out), len(manifest.controls)
        (8, 10)
    """
    draws = generator(seed, "example-coins").random(n) < 0.5
    canaries = [
        _canary(f"c-{i:04d}", "candidate", repetitions[i % len(repetitions)], bool(draws[i]), seed, mark)
        for i in range(n)
    ]
    canaries += [_canary(f"k-{i:04d}", "control", 1, False, seed, mark) for i in range(n_controls)]
    return Manifest(
        seed=seed,
        fmt="text",
        include_prob=0.5,
        repetitions=repetitions,
        family="random",
        tokenizer=TokenizerIdentity(name="example", vocab_size=256, fingerprint="0" * 64),
        canaries=tuple(canaries),
        n_host_rows=1000,
        n_inserted_rows=sum(c.repetitions for c in canaries if c.included),
        token_share=0.01,
        dataset_fingerprint="example",
    )


def example_scores(manifest: Manifest, *, effect: float = 1.0, seed: int = 0) -> dict[str, float]:
    """Return a normal score per canary; members are shifted by ``effect`` times log2(1 + repetitions).

    Example:
        >>> len(example_scores(example_manifest(8, 10)))
        18
    """
    noise = generator(seed, "example-scores").normal(size=len(manifest.canaries))
    shift = {
        c.id: effect * (1 + c.repetitions).bit_length() if c.included else 0.0 for c in manifest.canaries
    }
    return {c.id: float(x) + shift[c.id] for c, x in zip(manifest.canaries, noise, strict=True)}


def example_inputs(*, effect: float = 1.0, seed: int = 0) -> AuditInputs:
    """Return inputs of a report over invented scores, regurgitation not run."""
    manifest = example_manifest(seed=seed)
    return AuditInputs(
        manifest=manifest,
        scores={"min_k_plus_plus": example_scores(manifest, effect=effect, seed=seed)},
        headline_attack="min_k_plus_plus",
        reference={"mode": "step0", "identity": "example"},
        extraction_reason="skip_generation",
        model={"class": "Example", "name_or_path": "example", "peft": False},
        step=10,
        epoch=1.0,
        audit_seconds=1.0,
    )


def _canary(name: str, role: str, repetitions: int, included: bool, seed: int, mark: str) -> PlacedCanary:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    secret = f" {mark}{digest.hex()[:24]}"
    canary = Canary(
        id=name,
        family="random",
        generator="uniform_vocab",
        secret=secret,
        secret_ids=tuple(digest[:25]),
        role="control" if role == "control" else "candidate",
        repetitions=repetitions,
        included=included,
    )
    return PlacedCanary(**canary.model_dump(), record={"text": secret})
