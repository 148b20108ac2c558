"""What was planted, or held out, or kept as a control: pydantic records, hashed and saved before training."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from memaudit.errors import ManifestError
from memaudit.files import PRIVATE, write_atomic

MANIFEST_VERSION = 1
"""Version of the file format; a file with a larger one is refused, never guessed at."""

Role = Literal["candidate", "control"]

_T = TypeVar("_T", bound="_Hashed")


class TokenizerIdentity(BaseModel):
    """Which tokenizer the secrets were drawn for, so that a manifest is never scored under another.

    ``fingerprint`` is a SHA-256 over the vocabulary and over the ids of fixed sample texts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    vocab_size: int
    fingerprint: str


class Canary(BaseModel):
    """One secret, the coin that decides about its inclusion, and how often an included one is repeated.

    ``family`` is the construction that was asked for, ``generator`` what really drew the tokens.
    ``metadata`` says how it was drawn and holds no text of it; ``variants`` are near-duplicates of the secret that
    stand in its second and later repetitions, where the family makes them.
    A control is never inserted; a candidate is inserted when its coin says so, and is held out otherwise.

    Example:
        >>> canary = Canary(id="c-0", family="random", generator="uniform_vocab", secret=" a b",
        ...                 secret_ids=(1, 2), role="candidate", repetitions=4, included=True)
        >>> canary.is_member, "a b" in repr(canary)
        (True, False)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    family: str
    generator: str
    secret: str = Field(repr=False)
    secret_ids: tuple[int, ...] = Field(repr=False)
    role: Role
    repetitions: int = Field(default=1, ge=1)
    included: bool = False
    metadata: dict[str, Any] = Field(default_factory=dict, repr=False)
    variants: tuple[str, ...] = Field(default=(), repr=False)

    @model_validator(mode="after")
    def _controls_stay_out(self) -> Canary:
        if self.role == "control" and self.included:
            raise ValueError(f"canary {self.id} is a control and cannot be included")
        return self

    @property
    def is_member(self) -> bool:
        """Whether the secret was inserted into the training data."""
        return self.included

    @property
    def secret_hash(self) -> str:
        """The first 16 hexadecimal digits of the secret's SHA-256: what reports and logs may show."""
        return hashlib.sha256(self.secret.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"canary {self.id} (sha256 {self.secret_hash})"


class PlacedCanary(Canary):
    """A canary with the record that holds its secret, for members and for those that stay out alike.

    ``record`` maps the dataset's columns to the values of the row that was, or would have been, inserted.
    """

    record: dict[str, Any] = Field(repr=False)


class _Hashed(BaseModel):
    """A versioned file with a SHA-256 over its content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = MANIFEST_VERSION

    def content_hash(self) -> str:
        """Return the SHA-256 over the content, in a form that does not depend on the file's layout."""
        body = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(body.encode()).hexdigest()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file atomically with mode 0600; return its path."""
        document = {"sha256": self.content_hash(), "content": self.model_dump(mode="json")}
        return write_atomic(path, json.dumps(document, ensure_ascii=False, indent=1), mode=PRIVATE)

    @classmethod
    def load(cls: type[_T], path: str | os.PathLike[str]) -> _T:
        """Read a file that :meth:`save` wrote.

        Raises:
            ManifestError: it is missing, truncated, changed since it was written, or of a newer version.
        """
        kind = "manifest" if cls.__name__ == "Manifest" else "canary set"
        shown = str(path)
        if len(shown) > 1024 or "\n" in shown or "{" in shown:
            # A manifest's own text given for its path must not end up, secrets and all, in an error.
            raise ManifestError(f"a path of a {kind} was expected, given a text of {len(shown)} characters")
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise ManifestError(
                f"no {kind} at {path}; write one with inject() or `memaudit inject`, or correct the path"
            ) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"cannot read the {kind} {path}: {type(error).__name__}") from error
        try:
            document = json.loads(text)
            content, digest = document["content"], document["sha256"]
            version = int(content["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(
                f"{path} is not a whole {kind} (truncated, damaged or another file); restore it from a copy"
            ) from error
        if version > MANIFEST_VERSION:
            raise ManifestError(
                f"{path} has version {version}, this memaudit reads up to {MANIFEST_VERSION}; upgrade memaudit"
            )
        try:
            loaded = cls.model_validate(content)
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "content"
            raise ManifestError(f"{path} is not a {kind}: field {where} is wrong or missing") from error
        if loaded.content_hash() != digest:
            raise ManifestError(
                f"{path} was changed after it was written (its SHA-256 does not match); restore it from a copy"
            )
        return loaded


class CanarySet(_Hashed):
    """The canaries of one design, drawn for one tokenizer, before they are placed in records.

    Args in order of use: ``seed`` the root seed, ``family`` as asked for, ``include_prob`` the coin's,
    ``repetitions`` the tiers, ``profile`` the named design or "custom", ``notes`` what the reader of the
    report should know about the drawing (never a secret).
    """

    seed: int
    family: str
    include_prob: float = Field(ge=0.0, le=1.0)
    repetitions: tuple[int, ...]
    profile: str = "custom"
    tokenizer: TokenizerIdentity
    canaries: tuple[Canary, ...]
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> CanarySet:
        _require_unique_ids(self.canaries)
        return self

    def __len__(self) -> int:
        return len(self.canaries)

    def __iter__(self) -> Iterator[Canary]:  # type: ignore[override]
        return iter(self.canaries)


class Manifest(_Hashed):
    """What :func:`memaudit.inject` planted and what it held out: the ground truth of every later claim.

    ``fmt`` names the record format; ``n_host_rows`` counts the rows before injection (None for a stream),
    ``n_inserted_rows`` those added; ``observed_prefix`` holds the ids that the trainer really puts before each
    secret, where they are the same for all and differ from what the format renders to; ``token_share`` is the
    canaries' share of all tokens where it is known.
    """

    seed: int
    fmt: str
    include_prob: float = Field(ge=0.0, le=1.0)
    repetitions: tuple[int, ...]
    family: str
    profile: str = "custom"
    tokenizer: TokenizerIdentity
    canaries: tuple[PlacedCanary, ...]
    n_host_rows: int | None = None
    n_inserted_rows: int = 0
    token_share: float | None = None
    dataset_fingerprint: str | None = None
    canary_set_sha256: str | None = None
    observed_prefix: tuple[int, ...] | None = Field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Manifest:
        _require_unique_ids(self.canaries)
        return self

    @property
    def members(self) -> tuple[PlacedCanary, ...]:
        """Candidates that were inserted."""
        return tuple(c for c in self.canaries if c.included)

    @property
    def held_out(self) -> tuple[PlacedCanary, ...]:
        """Candidates that their coin kept out: the coin's own comparison group."""
        return tuple(c for c in self.canaries if c.role == "candidate" and not c.included)

    @property
    def controls(self) -> tuple[PlacedCanary, ...]:
        """Canaries that could never have been inserted."""
        return tuple(c for c in self.canaries if c.role == "control")


def _require_unique_ids(canaries: tuple[Canary, ...] | tuple[PlacedCanary, ...]) -> None:
    seen: set[str] = set()
    for canary in canaries:
        if canary.id in seen:
            raise ValueError(f"canary id {canary.id} occurs twice")
        seen.add(canary.id)
