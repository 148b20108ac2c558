"""memaudit attack from the command line: flags, Fast-MIA's file, results on disk."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

from memaudit import attack
from memaudit.cli import main
from tests.attacks.cases import golden
from tests.conftest import shared_path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "texts.csv"
    case = golden()["end_to_end"]
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["input", "label", "src"])
        writer.writerows(zip(case["texts"], case["labels"], ["a", "b"] * 12, strict=True))
    return path


def tiny(name: str) -> str:
    return str(shared_path("golden/mia_tiny", name))


def scores_in(folder: Path) -> list[dict[str, str]]:
    (run,) = folder.iterdir()
    return list(csv.DictReader((run / "scores.csv").open()))


def test_flags(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["attack", "--model", tiny("model"), "--data", str(data), "--text-column", "input"]
    command += ["--attacks", "loss,mink(ratio=0.1),ref", "--reference", tiny("ref")]
    command += ["--tokenizer", tiny("tokenizer_bos")]
    command += ["--group-column", "src", "-o", str(tmp_path / "out"), "--store", str(tmp_path / "store")]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "AUC" in shown and "96 probes asked for, 48 forwarded; saved 48 by sharing" in " ".join(
        shown.split()
    )
    rows = scores_in(tmp_path / "out")
    expected = golden()["end_to_end"]["bos"]["scores"]
    for column, name in (("loss", "loss"), ("mink(ratio=0.1)", "mink_0.1"), ("ref", "ref")):
        assert [float(row[column]) for row in rows] == pytest.approx(expected[name]["scores"], abs=1e-4)
    assert {row["source"] for row in rows} == {"a", "b"}
    command[command.index("-o") + 1] = str(tmp_path / "again")
    assert main(command) == 0
    assert " 0 forwarded" in " ".join(capsys.readouterr().out.split())
    assert scores_in(tmp_path / "again") == rows


def test_a_fast_mia_file_runs_as_it_is(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fast-MIA's sample configuration with another model and other data, and as many methods as it has."""
    methods = [{"type": name, "params": {}} for name in ("loss", "lower", "zlib")]
    methods += [{"type": "mink", "params": {"ratio": ratio}} for ratio in (0.1, 0.2, 0.3, 0.5, 0.8, 1.0)]
    methods += [
        {"type": "recall", "params": {"num_shots": 3, "pass_window": False}},
        {"type": "conrecall", "params": {"num_shots": 3, "pass_window": False, "gamma": 0.5}},
        {"type": "pac", "params": {"alpha": 0.3, "N": 5}},
        {"type": "samia", "params": {"num_samples": 2, "prefix_ratio": 0.5, "zlib": True}},
        {"type": "dcpdd", "params": {"file_num": 15, "max_token_length": 1024, "alpha": 0.01}},
    ]
    content = {
        "model": {
            "model_id": tiny("model"),
            "tokenizer": tiny("tokenizer_bos"),
            "trust_remote_code": True,
            "max_seq_len_to_capture": 100,
            "max_num_seqs": 8,
            "enable_lora": False,
        },
        "sampling_parameters": {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.0, "top_p": 1.0},
        "data": {
            "data_path": str(data),
            "format": "csv",
            "text_column": "input",
            "label_column": "label",
            "text_length": 32,
            "space_delimited_language": True,
        },
        "methods": methods,
        "output_dir": str(tmp_path / "results"),
    }
    file = tmp_path / "sample.yaml"
    file.write_text(yaml.safe_dump(content))
    assert main(["attack", "--config", str(file)]) == 0
    captured = capsys.readouterr()
    (run,) = (tmp_path / "results").iterdir()
    metrics = json.loads((run / "metrics.json").read_text())["metrics"]
    assert len(metrics) == 13 and "dcpdd" not in metrics
    assert metrics["loss"]["n_members"] == metrics["loss"]["n_nonmembers"] == 9
    assert "held apart" in captured.out
    rows = scores_in(tmp_path / "results")
    case = golden()["end_to_end"]
    cut = {str(i): " ".join(text.split()[:32]) for i, text in enumerate(case["texts"])}
    plain = attack(tiny("model"), cut, attacks="loss,pac", tokenizer=tiny("tokenizer_bos"))
    for row in rows:
        assert float(row["loss"]) == pytest.approx(plain.scores["loss"][row["id"]], abs=1e-5)
        assert float(row["pac"]) == pytest.approx(plain.scores["pac"][row["id"]], abs=1e-4)


def test_all_runs_what_can_run(data: Path, tmp_path: Path) -> None:
    command = [
        "attack",
        "--model",
        tiny("model"),
        "--data",
        str(data),
        "--text-column",
        "input",
        "--attacks",
        "all",
    ]
    command += ["--tokenizer", tiny("tokenizer_bos"), "-o", str(tmp_path / "out"), "--limit", "12"]
    command += ["--corpus", str(data)]
    assert main(command) == 0
    (run,) = (tmp_path / "out").iterdir()
    scored = set(json.loads((run / "metrics.json").read_text())["metrics"])
    assert scored == {
        "loss", "zlib", "mink", "minkpp", "dcpdd", "lower", "pac",
        "recall", "conrecall", "samia", "gapk", "surp", "gradnorm",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "needs --model and --data"),
        (["--model", "x/y", "--data", "/no/such.csv"], "no file /no/such.csv"),
        (["--config", "/no/such.yaml"], "cannot be read"),
        (["--no-such-option", "1"], "no-such-option"),
    ],
)
def test_what_cannot_run_ends_with_2_and_one_line(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", *options]) == 2
    assert message in capsys.readouterr().err
