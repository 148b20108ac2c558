"""Writing, reading and verifying reports. The hash proves that nothing changed, not who wrote it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memaudit.errors import ReportError
from memaudit.files import sha256_bytes, write_atomic
from memaudit.report.schema import SCHEMA_VERSION, Report


@dataclass(frozen=True)
class Verification:
    """Whether a report is what was written: ``problems`` is empty when it is."""

    path: Path
    report_sha256: str | None
    sidecar: Path | None
    problems: tuple[str, ...] = field(default=())

    @property
    def intact(self) -> bool:
        """Whether no check failed."""
        return not self.problems


def canonical_json(content: dict[str, Any]) -> str:
    """Return content as JSON with sorted keys and compact separators, without its ``report_sha256``.

    Example:
        >>> canonical_json({"b": 1, "a": None, "report_sha256": "x"})
        '{"a":null,"b":1}'
    """
    body = {key: value for key, value in content.items() if key != "report_sha256"}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_sha256(content: dict[str, Any]) -> str:
    """Return the SHA-256 over the canonical JSON."""
    return sha256_bytes(canonical_json(content).encode())


def sidecar_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of a report's sidecar.

    Example:
        >>> sidecar_of("a/report.json").name
        'report.json.sha256'
    """
    target = Path(path)
    return target.with_name(target.name + ".sha256")


def write_report(report: Report, path: str | os.PathLike[str]) -> Report:
    """Stamp ``report_sha256``, write the report and its sidecar, each atomically.

    The sidecar holds the report's content hash in a comment and a line for ``sha256sum -c``.

    Args:
        report: what :func:`memaudit.report.build.build_report` returned.
        path: where to write; missing folders are made.

    Returns:
        The report with its hash.

    Raises:
        ConfigurationError: the folder cannot be written.
    """
    content = report.to_json()
    content["report_sha256"] = content_sha256(content)
    data = (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
    target = write_atomic(path, data)
    write_atomic(
        sidecar_of(target),
        f"# report_sha256 {content['report_sha256']}\n{sha256_bytes(data)}  {target.name}\n",
    )
    return report.model_copy(update={"report_sha256": content["report_sha256"]})


def read_json(path: str | os.PathLike[str]) -> tuple[bytes, dict[str, Any]]:
    """Return a report file's bytes and its JSON object, not validated.

    Raises:
        ReportError: it is missing, unreadable, no JSON or no object.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ReportError(f"no report at {path}; write one with an audit, or correct the path") from error
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror or type(error).__name__}") from error
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ReportError(
            f"{path} is not a whole JSON report ({type(error).__name__}); restore it from a copy or audit "
            "again"
        ) from error
    if not isinstance(content, dict):
        raise ReportError(f"{path} holds JSON but no report (an object was expected)")
    return data, content


def load_report(path: str | os.PathLike[str]) -> Report:
    """Read a report and check it against the schema.

    Raises:
        ReportError: it is missing, damaged, of another schema version, or lacks a field.
    """
    _, content = read_json(path)
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ReportError(
            f"{path} has schema_version {version!r}, this memaudit reads {SCHEMA_VERSION}; "
            "audit again, or use the memaudit that wrote it"
        )
    try:
        return Report.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "content"
        raise ReportError(
            f"{path} is not a memaudit report: field {where}: {first['msg']} ({error.error_count()} such "
            "fields)"
        ) from error


def verify_report(path: str | os.PathLike[str]) -> Verification:
    """Say whether a report's content has its stamped hash, and its bytes the sidecar's.

    Args:
        path: the report; its sidecar is looked for beside it, and checked when it is there.

    Returns:
        A Verification. Without a sidecar only the content is checked: a change of layout alone goes unseen.

    Raises:
        ReportError: the file is missing, no JSON, or never had a hash.
    """
    data, content = read_json(path)
    stamped = content.get("report_sha256")
    if not isinstance(stamped, str) or not stamped:
        raise ReportError(
            f"{path} has no report_sha256, so nothing can be verified; was it written by memaudit?"
        )
    problems = []
    if content_sha256(content) != stamped:
        problems.append("the content does not have the report_sha256 that is stamped in it")
    sidecar: Path | None = sidecar_of(path)
    assert sidecar is not None
    try:
        lines = sidecar.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        sidecar, lines = None, []
    except (OSError, UnicodeDecodeError):
        problems.append(f"the sidecar {sidecar} cannot be read")
        lines = []
    else:
        words = [word for line in lines for word in line.split()]
        if stamped not in words:
            problems.append("the sidecar holds another report_sha256")
        if sha256_bytes(data) not in words:
            problems.append("the file's bytes do not have the SHA-256 in the sidecar")
    return Verification(Path(path), stamped, sidecar, tuple(problems))


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
