"""Reports on disk: the round trip is the identity, any changed byte is seen, bad files give one-line errors."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from memaudit.errors import ReportError
from memaudit.report.build import build_report
from memaudit.report.examples import example_inputs
from memaudit.report.schema import Report
from memaudit.report.store import load_report, sidecar_of, verify_report, write_report
from tests.report.inputs_for_tests import whole_inputs


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    path = tmp_path_factory.mktemp("reports") / "report.json"
    return write_report(build_report(whole_inputs()), path), path


def test_the_round_trip_is_the_identity(written: tuple[Report, Path]) -> None:
    report, path = written
    loaded = load_report(path)
    assert loaded == report
    assert loaded.to_json() == json.loads(path.read_text())
    assert Report.model_validate_json(json.dumps(report.to_json())) == report


def test_the_hash_is_that_of_the_canonical_content(written: tuple[Report, Path]) -> None:
    report, path = written
    content = json.loads(path.read_text())
    stamped = content.pop("report_sha256")
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert stamped == report.report_sha256 == hashlib.sha256(body.encode()).hexdigest()
    assert stamped in sidecar_of(path).read_text()
    done = subprocess.run(
        ["sha256sum", "-c", sidecar_of(path).name], cwd=path.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_changed_byte_fails(written: tuple[Report, Path], tmp_path: Path) -> None:
    _, path = written
    data = path.read_bytes()
    copy = tmp_path / path.name
    sidecar_of(copy).write_bytes(sidecar_of(path).read_bytes())
    step = max(1, len(data) // 120)
    for place in range(0, len(data), step):
        copy.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            intact = verify_report(copy).intact
        except ReportError:  # no longer JSON
            intact = False
        assert not intact, f"byte {place} of {len(data)}"
    copy.write_bytes(data)
    assert verify_report(copy).intact


def test_a_changed_value_fails_without_a_sidecar(written: tuple[Report, Path], tmp_path: Path) -> None:
    content = json.loads(written[1].read_text())
    content["membership"]["tpr_at_1pct_fpr"] = 0.0
    copy = tmp_path / "report.json"
    copy.write_text(json.dumps(content))
    found = verify_report(copy)
    assert not found.intact and found.sidecar is None and "report_sha256" in found.problems[0]


def test_a_changed_sidecar_fails(written: tuple[Report, Path], tmp_path: Path) -> None:
    copy = tmp_path / written[1].name
    copy.write_bytes(written[1].read_bytes())
    sidecar_of(copy).write_text("0" * 64 + "  report.json\n")
    assert len(verify_report(copy).problems) == 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not a whole JSON report"),
        ("[]", "no report"),
        ('{"schema_version": "1.3.0"}', "this memaudit reads 2.0.0"),
        ('{"schema_version": "2.0.0"}', "field"),
        ('{"schema_version": NaN}', "not a whole JSON report"),
    ],
)
def test_unusable_files_say_what_to_do(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "report.json"
    path.write_text(content)
    with pytest.raises(ReportError, match=says) as error:
        load_report(path)
    assert "\n" not in str(error.value)
    with pytest.raises(ReportError):
        verify_report(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="no report at"):
        load_report(tmp_path / "none.json")


def test_writing_again_replaces_report_and_sidecar(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "report.json"
    first = write_report(build_report(example_inputs(seed=0)), path)
    second = write_report(build_report(example_inputs(seed=1)), path)
    assert first.report_sha256 != second.report_sha256 and verify_report(path).intact
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.json", "report.json.sha256"]
