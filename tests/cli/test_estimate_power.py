"""memaudit estimate and memaudit power, as called from a shell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from memaudit.cli import main
from memaudit.stats.one_run import steinke_epsilon
from memaudit.stats.power import audit_power


@pytest.fixture(name="scores")
def scores_fixture(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    included = rng.random(400) < 0.5
    values = rng.standard_normal(400) + 1.5 * included
    path = tmp_path / "scores.csv"
    rows = [f"c{i},{value},{int(coin)}" for i, (value, coin) in enumerate(zip(values, included, strict=True))]
    path.write_text("id,score,included\n" + "\n".join(rows) + "\n")
    return path


def test_estimate_prints_bounds_with_their_claim(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(scores)]) == 0
    shown = capsys.readouterr().out
    for part in (
        "400 canaries",
        "certified",
        "steinke",
        "randomisation test: p = 0.0001",
        "no evidence of privacy",
    ):
        assert part in " ".join(shown.split())


def test_estimate_in_json_is_the_library(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--guesses",
        "[[40, 40]]",
        "--delta",
        "[0.0]",
        "--significance",
        "0.01",
        "--json-output",
        "true",
    ]
    assert main(["estimate", str(scores), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    (bound,) = found["bounds"]
    assert (bound["k_plus"], bound["k_minus"], bound["significance"]) == (40, 40, 0.01)
    assert bound["value"] == pytest.approx(steinke_epsilon(400, 80, bound["correct"], 0.0, 0.01))
    assert found["n_in"] + found["n_out"] == found["m"] == 400
    assert 0.5 < found["attack"]["low"] < found["attack"]["auc"] < found["attack"]["high"]


def test_estimate_calls_the_model_based_method_so(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(scores), "--method", "xiang"]) == 0
    shown = capsys.readouterr().out
    assert "model-based" in shown and "independent" in shown


def test_names_of_columns_and_words_for_coins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.csv"
    path.write_text("included, score ,note\r\nTrue,0.5,a\r\nno,-inf,b\r\nIN,1e3,c\r\n")
    assert main(["estimate", str(path), "--json-output", "true"]) == 0
    assert json.loads(capsys.readouterr().out)["n_in"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score\n1\n", "lacks included"),
        ("", "lacks score, included"),
        ("score,included\nx,1\n", "line 2: score 'x' is no number"),
        ("score,included\n1,2\n", "line 2: included '2'"),
        ("score,included\n1\n", "line 2: included ''"),
        ("score,included\nnan,1\n", "NaN"),
        ("score,included\n", "at least 1"),
        ("id,score,included\na,1,1\na,2,0\n", "an id occurs twice"),
    ],
)
def test_files_that_cannot_be_used_end_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "s.csv"
    path.write_text(text)
    assert main(["estimate", str(path)]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1
    assert main(["estimate", str(tmp_path / "absent.csv")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_power_says_what_could_be_detected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "--canaries", "1000", "--alpha", "0.05", "--epsilon", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    found = audit_power(1000)
    assert found.detectable_epsilon is not None
    assert f"{found.critical_correct} of 1000" in shown
    assert f"{found.detectable_epsilon:.4f}" in shown and f"{found.ceiling:.4f}" in shown
    assert "canaries to detect epsilon 1" in shown


def test_power_in_json_and_for_too_few(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["power", "--canaries", "4", "--json-output", "true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["audit"]["detectable_epsilon"] is None and found["wanted"] is None
    assert found["operating_point"]["resolvable"] is False
    assert main(["power", "--canaries", "4"]) == 0
    assert "more than all 4" in " ".join(capsys.readouterr().out.split())
    assert main(["power", "--canaries", "0"]) == 2
    assert main(["power", "--alpha", "1.5"]) == 2
