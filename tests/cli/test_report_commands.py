"""report, gate, verify, compare, schema and doctor through the command line: exit codes and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.version import Version

from memaudit.cli import _checks, main
from memaudit.report.build import build_report, write_report
from memaudit.report.examples import example_inputs
from tests.report.inputs_for_tests import whole_inputs


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = tmp_path_factory.mktemp("cli") / "report.json"
    write_report(build_report(whole_inputs()), found)
    return str(found)


def test_verify(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", path]) == 0
    changed = tmp_path / "report.json"
    changed.write_text(Path(path).read_text().replace('"phone_home": false', '"phone_home": true'))
    assert main(["verify", str(changed)]) == 1
    assert "MISMATCH" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "none.json")]) == 2
    (tmp_path / "bad.json").write_text("no json")
    assert main(["verify", str(tmp_path / "bad.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def test_report(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", path, "--html", str(tmp_path / "r.html")]) == 0
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")
    capsys.readouterr()
    assert main(["report", "--annex", path]) == 0
    annex = capsys.readouterr().out
    assert annex.startswith("# Compliance annex")
    assert main(["report", path, "-o", str(tmp_path / "annex.md")]) == 0
    assert (tmp_path / "annex.md").read_text() == annex
    capsys.readouterr()
    assert main(["report", path, "--model-card"]) == 0
    assert capsys.readouterr().out.startswith("## Memorisation audit")


def test_gate(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", path, "--max-tpr", "1", "--max-epsilon", "2"]) == 0
    assert main(["gate", path, "--max-tpr", "0.05", "--junit", str(tmp_path / "j.xml")]) == 1
    assert "FAILED: tpr_at_1%_fpr" in capsys.readouterr().out and (tmp_path / "j.xml").exists()
    assert main(["gate", path]) == 2
    assert main(["gate", path, "--max-tpr", "2"]) == 2
    assert main(["gate", path, "--max-tpr", "much"]) == 2
    assert main(["gate", str(tmp_path / "none.json"), "--max-tpr", "1"]) == 2
    refused = tmp_path / "smoke.json"
    write_report(build_report(whole_inputs(profile="smoke")), refused)
    assert main(["gate", str(refused), "--max-tpr", "1"]) == 3


def test_the_gate_does_not_judge_a_changed_report(path: str, tmp_path: Path) -> None:
    content = json.loads(Path(path).read_text())
    content["membership"]["tpr_at_target_fpr"] = 0.0
    forged = tmp_path / "report.json"
    forged.write_text(json.dumps(content))
    assert main(["gate", str(forged), "--max-tpr", "0.05"]) == 2


def test_compare(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    write_report(build_report(example_inputs(effect=0.0)), other)
    capsys.readouterr()
    assert main(["compare", str(other), path, "--json", "-o", str(tmp_path / "c.json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "c.json").read_text())
    assert printed["changes"][0]["judgement"] == "higher"
    assert main(["compare", str(other), path]) == 0
    assert "beyond" in capsys.readouterr().out


def test_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["properties"]["schema_version"]["const"] == "2.0.0"
    assert main(["schema", "-o", str(tmp_path / "s.json")]) == 0
    assert (tmp_path / "s.json").read_text() == printed


def test_doctor_without_the_run(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--skip-demo", "--report", path]) == 0
    printed = capsys.readouterr().out
    for word in ("torch", "transformers", "gloo", "report checksum", "intact", "left out"):
        assert word in printed
    changed = tmp_path / "report.json"
    changed.write_text(Path(path).read_text().replace('"epoch": 1.0', '"epoch": 2.0'))
    assert main(["doctor", "--skip-demo", "--report", str(changed)]) == 1
    assert "NOT ready: report checksum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("installed", "bad"),
    [
        ({"transformers": "5.16.1", "torch": "2.6.0.dev20241112"}, True),
        ({"transformers": "5.16.1", "torch": "2.13.0"}, False),
        ({"transformers": "4.56.2", "torch": "2.6.0.dev20241112"}, False),
        ({"transformers": "5.16.1"}, False),
    ],
)
def test_known_bad_combinations(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], bad: bool
) -> None:
    versions = {name: Version(text) for name, text in installed.items()}
    monkeypatch.setattr(_checks, "_version", versions.get)
    states = [finding.state for finding in _checks.combinations()]
    assert ("bad" in states) is bad


def test_missing_and_old_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _checks._version
    changed = {"peft": None, "torch": Version("1.0"), "numpy": None}
    monkeypatch.setattr(_checks, "_version", lambda name: changed[name] if name in changed else real(name))
    found = {one.what: one for one in _checks.versions()}
    assert found["torch"].state == "bad" and "pip install 'torch" in found["torch"].detail
    assert found["numpy"].state == "bad"
    assert found["extra peft"].state == "missing" and "memaudit[peft]" in found["extra peft"].detail


@pytest.mark.slow
def test_doctor_runs_an_audit_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--output-dir", str(tmp_path)]) == 0
    assert "this machine can run audits" in capfd.readouterr().out
    assert main(["verify", str(tmp_path / "memaudit-report.json")]) == 0
