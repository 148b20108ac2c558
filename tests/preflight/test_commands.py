"""The commands canaries, inject and preflight: files in, files out, errors in one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memaudit.cli import main
from memaudit.manifest import CanarySet, Manifest
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

TEXTS = sample_text(60, seed=6)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    tokenizer = tiny_tokenizer(chat="generation")
    tokenizer.save_pretrained(folder / "tokenizer")
    tokenizer.save_pretrained(folder / "model")
    tiny_llama(len(tokenizer), layers=1, hidden=16).save_pretrained(folder / "model")
    rows = [{"prompt": text + "\n", "completion": text} for text in TEXTS]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_from_tokenizer_to_pre_flight(home: Path, tmp_path: Path, capsys: Any) -> None:
    made, out, manifest = tmp_path / "c.json", tmp_path / "out.jsonl", tmp_path / "m.json"
    code, text, _ = run(
        capsys, "canaries", "--tokenizer", home / "tokenizer", "-o", made, "--family", "random", "--seed", 2
    )
    assert code == 0 and "132 canaries (random, drawn by uniform_vocab)" in text
    assert len(CanarySet.load(made)) == 132 and made.stat().st_mode & 0o777 == 0o600

    command = ["inject", home / "data.jsonl", "-o", out, "--manifest", manifest, "--canaries", made]
    code, text, warnings = run(capsys, *command, "--tokenizer", home / "tokenizer")
    planted = Manifest.load(manifest)
    assert code == 0 and "format prompt_completion" in text and "of the tokens" in warnings
    assert len(out.read_text().splitlines()) == 60 + planted.n_inserted_rows
    assert out.stat().st_mode & 0o777 == manifest.stat().st_mode & 0o777 == 0o600
    assert not any(canary.secret.strip() in text + warnings for canary in planted.canaries)

    check = ["preflight", out, "--manifest", manifest, "--tokenizer", home / "tokenizer"]
    code, text, _ = run(capsys, *check)
    members = len(planted.members)
    assert code == 0 and f"{members} included canaries in" in text and f"{members} found, 0 masked" in text
    code, _, errors = run(capsys, *check, "--max-length", 20)
    assert code == 1 and "over-max-length" in errors
    code, text, _ = run(capsys, *check, "--json-lines", "true", "-o", tmp_path / "found.json")
    assert json.loads(text) == json.loads((tmp_path / "found.json").read_text())
    assert json.loads(text)["scan"]["found"] == members

    wrong = ["preflight", home / "data.jsonl", "--manifest", manifest, "--tokenizer", home / "tokenizer"]
    code, text, errors = run(capsys, *wrong)
    assert code == 1 and f"{members} missing" in text and "secret-missing" in errors


def test_assistant_only_loss_follows_the_generation_markers(home: Path, tmp_path: Path, capsys: Any) -> None:
    turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": text}] for text in TEXTS]
    data = tmp_path / "chat.jsonl"
    data.write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in turns))
    out, manifest = tmp_path / "out.jsonl", tmp_path / "m.json"
    command = ["inject", data, "-o", out, "--manifest", manifest, "--tokenizer", home / "tokenizer"]
    assert run(capsys, *command, "--family", "random")[0] == 0
    check = ["preflight", out, "--manifest", manifest, "--tokenizer", home / "tokenizer"]
    assert run(capsys, *check, "--assistant_only_loss", "true")[0] == 0
    rows = [json.loads(line)["messages"] for line in out.read_text().splitlines()]
    swapped = [
        [{"role": "user", "content": b["content"]}, {"role": "assistant", "content": a["content"]}]
        for a, b in rows
    ]
    out.write_text("".join(json.dumps({"messages": turn}) + "\n" for turn in swapped))
    code, text, errors = run(capsys, *check, "--assistant_only_loss", "true")
    assert code == 1 and "secret-masked" in errors and " 0 found" in text


def test_canaries_sampled_from_a_model(home: Path, tmp_path: Path, capsys: Any) -> None:
    made = tmp_path / "c.json"
    code, text, _ = run(capsys, "canaries", "--model", home / "model", "-o", made, "--profile", "smoke")
    assert code == 0 and "model_scored_high_ppl" in text
    assert CanarySet.load(made).profile == "smoke"


def test_a_corpus_for_unigram(home: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(TEXTS))
    command = [
        "canaries",
        "--tokenizer",
        home / "tokenizer",
        "-o",
        tmp_path / "c.json",
        "--family",
        "unigram",
    ]
    assert run(capsys, *command, "--corpus", tmp_path / "corpus.txt")[0] == 0
    assert {c.generator for c in CanarySet.load(tmp_path / "c.json")} == {"corpus_unigram"}
    code, _, error = run(capsys, *command, "--corpus", tmp_path / "missing.txt")
    assert code == 2 and "cannot read the corpus" in error


@pytest.mark.parametrize(
    ("content", "options", "what"),
    [
        ('{"colour": "red"}\n', [], "no record format fits the columns colour"),
        ('{"text": "a"\n', [], "not a JSON object"),
        ("", [], "holds no rows"),
        ('{"text": "a"}\n', ["--fmt", "messages"], "needs the columns messages"),
        ('{"text": "a"}\n', ["--fmt", "prose"], "no record format 'prose'"),
        ('{"text": "a"}\n', ["--columns", '{"text": "body"}'], "no column 'body'"),
    ],
)
def test_wrong_data_is_one_line_and_exit_code_2(
    home: Path, tmp_path: Path, capsys: Any, content: str, options: list[str], what: str
) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(content)
    command = ["inject", data, "-o", tmp_path / "o.jsonl", "--manifest", tmp_path / "m.json"]
    code, _, error = run(capsys, *command, "--tokenizer", home / "tokenizer", "--family", "random", *options)
    lines = [line for line in error.splitlines() if line.startswith("memaudit")]
    assert code == 2 and what in error and len(lines) == 1 and "Traceback" not in error
    assert not (tmp_path / "o.jsonl").exists() and not (tmp_path / "m.json").exists()


def test_a_canary_that_stands_in_the_data_already(home: Path, tmp_path: Path, capsys: Any) -> None:
    made = tmp_path / "c.json"
    run(capsys, "canaries", "--tokenizer", home / "tokenizer", "-o", made, "--family", "random")
    command = ["--canaries", made, "--manifest", tmp_path / "m.json"]
    assert run(capsys, "inject", home / "data.jsonl", "-o", tmp_path / "1.jsonl", *command)[0] == 0
    code, _, error = run(capsys, "inject", tmp_path / "1.jsonl", "-o", tmp_path / "2.jsonl", *command)
    assert code == 2 and "stands in the data already" in error
    assert not (tmp_path / "2.jsonl").exists()


def test_wrong_arguments(home: Path, tmp_path: Path, capsys: Any) -> None:
    data = home / "data.jsonl"
    tokenizer = home / "tokenizer"
    cases: list[tuple[list[object], str]] = [
        (["canaries", "-o", tmp_path / "c.json"], "neither tokenizer nor model"),
        (["canaries", "--tokenizer", tmp_path], "no tokenizer can be loaded"),
        (["canaries", "--tokenizer", tokenizer, "--family", "new_token"], "never trains"),
        (["canaries", "--tokenizer", tokenizer, "--secret_len", "5"], "expected 25 to 64"),
        (["canaries", "--tokenizer", tokenizer, "--ppl_band", "[1]"], "lowest and the highest"),
        (
            ["inject", data, "-o", tmp_path / "o.jsonl", "--manifest", tmp_path / "m.json"],
            "neither canaries nor",
        ),
        (
            ["inject", data, "-o", tmp_path / "o.jsonl", "--manifest", data, "--tokenizer", tokenizer],
            "is the data",
        ),
        (
            ["preflight", data, "--manifest", tmp_path / "none.json", "--tokenizer", tokenizer],
            "no manifest at",
        ),
    ]
    for arguments, what in cases:
        code, _, error = run(capsys, *arguments)
        assert code == 2 and what in error, (arguments, error)


def test_a_damaged_canary_file(home: Path, tmp_path: Path, capsys: Any) -> None:
    made = tmp_path / "c.json"
    run(capsys, "canaries", "--tokenizer", home / "tokenizer", "-o", made, "--family", "random")
    made.write_text(made.read_text()[:-100])
    command = ["inject", home / "data.jsonl", "-o", tmp_path / "o.jsonl", "--manifest", tmp_path / "m.json"]
    code, _, error = run(capsys, *command, "--canaries", made)
    assert code == 2 and "not a whole canary set" in error
