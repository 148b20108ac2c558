"""Manifests: what is read is what was written, or a clear refusal."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from memaudit.errors import ManifestError
from memaudit.manifest import MANIFEST_VERSION, Canary, Manifest, PlacedCanary, TokenizerIdentity


def a_manifest() -> Manifest:
    def canary(index: int, role: str, included: bool) -> PlacedCanary:
        return PlacedCanary(
            id=f"c-{index}",
            family="random",
            generator="uniform_vocab",
            secret=f"top secret {index} é😀",
            secret_ids=(index, 7),
            role=role,
            included=included,
            repetitions=4,  # type: ignore[arg-type]
            record={"text": f"x top secret {index} é😀", "other": None},
        )

    return Manifest(
        seed=0,
        fmt="text",
        include_prob=0.5,
        repetitions=(4,),
        family="random",
        tokenizer=TokenizerIdentity(name="t", vocab_size=9, fingerprint="f"),
        canaries=(canary(0, "candidate", True), canary(1, "candidate", False), canary(2, "control", False)),
    )


def test_round_trip_with_private_mode(tmp_path: Path) -> None:
    path = a_manifest().save(tmp_path / "m.json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Manifest.load(path) == a_manifest()
    assert [len(part) for part in (a_manifest().members, a_manifest().held_out, a_manifest().controls)] == [
        1,
        1,
        1,
    ]


def test_every_truncation_and_every_changed_byte_is_refused(tmp_path: Path) -> None:
    path = a_manifest().save(tmp_path / "m.json")
    whole = path.read_bytes()
    for cut in range(0, len(whole) - 1, max(1, len(whole) // 60)):
        path.write_bytes(whole[:cut])
        with pytest.raises(ManifestError):
            Manifest.load(path)
    path.write_bytes(whole.replace(b'"repetitions": 4', b'"repetitions": 5', 1))
    with pytest.raises(ManifestError, match="changed after it was written"):
        Manifest.load(path)


def test_newer_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="no manifest at"):
        Manifest.load(tmp_path / "none.json")
    document = json.loads(a_manifest().save(tmp_path / "m.json").read_text())
    document["content"]["version"] = MANIFEST_VERSION + 1
    (tmp_path / "m.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match="upgrade memaudit"):
        Manifest.load(tmp_path / "m.json")
    (tmp_path / "list.json").write_text("[1, 2]")
    with pytest.raises(ManifestError, match="not a whole manifest"):
        Manifest.load(tmp_path / "list.json")


def test_no_secret_in_representations_or_errors(tmp_path: Path) -> None:
    manifest = a_manifest()
    assert "top secret" not in repr(manifest) + str(manifest.canaries[0]) + repr(manifest.canaries[0])
    path = manifest.save(tmp_path / "m.json")
    document = json.loads(path.read_text())
    document["content"]["canaries"][0]["role"] = "top secret 0"
    path.write_text(json.dumps(document))
    with pytest.raises(ManifestError) as caught:
        Manifest.load(path)
    assert "top secret" not in str(caught.value)


def test_a_manifests_text_given_for_its_path_stays_out_of_the_error() -> None:
    with pytest.raises(ManifestError, match="a path of a manifest was expected") as caught:
        Manifest.load(a_manifest().model_dump_json())
    assert "top secret" not in str(caught.value)


def test_a_control_cannot_be_included() -> None:
    with pytest.raises(ValueError, match="control"):
        Canary(id="c", family="f", generator="g", secret="s", secret_ids=(1,), role="control", included=True)
