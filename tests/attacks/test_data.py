"""Reading labelled texts, and Fast-MIA's configurations."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from memaudit.errors import ConfigurationError
from memaudit.posthoc.membership.config import read_config
from memaudit.posthoc.membership.data import first_words, read_label, read_lines, read_texts

ROWS = [
    {"text": 'one, "two"\nthree', "label": 1, "src": "a"},
    {"text": "四 五", "label": 0, "src": "b"},
    {"text": "", "label": 1, "src": "a"},
    {"text": "six", "label": None, "src": None},
]


def write(folder: Path, kind: str) -> str:
    path = folder / f"data.{kind}"
    if kind == "csv":
        import csv

        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, ["text", "label", "src"])
            writer.writeheader()
            writer.writerows(ROWS)
    elif kind == "json":
        path.write_text(json.dumps(ROWS))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl", "parquet"])
def test_every_format_gives_the_same_records(tmp_path: Path, kind: str) -> None:
    found = read_texts(write(tmp_path, kind), group_column="src")
    assert list(found.texts.values()) == ['one, "two"\nthree', "四 五", "", "six"]
    assert found.labels == {"0": 1, "1": 0, "2": 1}
    assert found.groups == {"0": "a", "1": "b", "2": "a"}


def test_json_columns_as_pandas_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"text": {"0": "a b", "1": "c d"}, "label": {"0": 1, "1": 0}}))
    found = read_texts(str(path))
    assert found.texts == {"0": "a b", "1": "c d"} and found.labels == {"0": 1, "1": 0}


def test_words_are_cut_with_their_spaces_and_it_is_said(tmp_path: Path) -> None:
    assert first_words("a  b\tc d", 3) == "a  b\tc"
    assert first_words("今日 は晴", 3, spaced=False) == "今日 は"
    found = read_texts(write(tmp_path, "json"), text_length=2)
    assert list(found.texts.values()) == ['one, "two"', "四 五", "", "six"]
    assert found.notes == ("1 of 4 texts were cut to their first 2 words",)


def test_spaces_that_were_put_between_words_are_counted_and_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    path.write_text(json.dumps({"text": "吾輩 は 猫 で ある", "label": 1}))
    found = read_texts(str(path), text_length=3, spaced=False, unspace=True)
    assert found.texts == {"0": "吾輩は猫"}
    assert found.notes[-1] == "the spaces between words were taken out of the texts"


def test_ids_limits_and_pools(tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl")
    assert list(read_texts(path, id_column="text", label_column=None, limit=2).texts) == [
        'one, "two"\nthree',
        "四 五",
    ]
    assert read_lines(path) == ['one, "two"\nthree', "四 五", "", "six"]
    (tmp_path / "pool.txt").write_text("first\n\nsecond\n")
    assert read_lines(str(tmp_path / "pool.txt")) == ["first", "second"]


@pytest.mark.parametrize(
    ("content", "name", "options", "message"),
    [
        ("text,label\na,1\n", "x.csv", {"text_column": "body"}, "has no column 'body'; it has label, text"),
        ("text,label\na,maybe\n", "x.csv", {}, "row 1: label 'maybe' is neither"),
        ("", "x.jsonl", {}, "holds no rows"),
        ("{bad\n", "x.jsonl", {}, "line 1, is not JSON"),
        ("[1, 2]", "x.json", {}, "one JSON object a record"),
        ("text\na\n", "x.xyz", {}, "cannot tell the format"),
        ("text\na\n", "x.csv", {"format": "xml"}, "give one of csv"),
        ('{"text": "a", "k": 1}\n' * 2, "x.jsonl", {"id_column": "k", "label_column": None}, "twice"),
        ("nonsense", "x.parquet", {}, "no Parquet file"),
    ],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, content: str, name: str, options: Any, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_texts(str(path), **options)


def test_missing_files_and_labels_of_every_writing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no file"):
        read_texts(str(tmp_path / "absent.csv"))
    (tmp_path / "latin.csv").write_bytes("text\ncaf\xe9\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        read_texts(str(tmp_path / "latin.csv"))
    assert [read_label(one) for one in (1, "0", True, "Member", " non-member ", 1.0, None, float("nan"))] == [
        1, 0, 1, 1, 0, 1, None, None,
    ]  # fmt: skip
    with pytest.raises(ConfigurationError):
        read_label(2)


SAMPLE = """
model:
  model_id: "some/model"
  trust_remote_code: true
  max_seq_len_to_capture: 100
  max_num_seqs: 4
  enable_lora: true
  dtype: "half"
lora:
  lora_name: "adapter_name"
  lora_int_id: 1
  lora_path: "adapter_path"
sampling_parameters:
  max_tokens: 1
  prompt_logprobs: 0
  temperature: 0.0
  top_p: 0.9
data:
  data_path: "./data/sample_data.csv"
  format: "csv"
  text_column: "input"
  label_column: "label"
  text_length: 64
  space_delimited_language: false
methods:
  - {type: "loss", params: {}}
  - {type: "mink", params: {ratio: 0.1}}
  - {type: "mink", params: {}}
  - {type: "mink", params: {k_percent: 10}}
  - {type: "recall", params: {num_shots: 3, pass_window: false}}
  - {type: "conrecall", params: {num_shots: 3, pass_window: true, gamma: 0.7}}
  - {type: "pac", params: {alpha: 0.4, N: 3}}
  - {type: "samia", params: {num_samples: 2, prefix_ratio: 0.3, zlib: false}}
  - {type: "dcpdd", params: {file_num: 15, max_token_length: 1024, alpha: 0.02}}
  - {type: "ref", params: {reference_model: {model_id: "small/model", gpu_memory_utilization: 0.2}}}
  - {type: "aeca", params: {}}
output_dir: "./out"
seeds: 3
"""


def test_fast_mia_configurations_are_read_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "sample.yaml"
    path.write_text(SAMPLE)
    with caplog.at_level(logging.WARNING):
        run = read_config(path, corpus=True)
    assert (run.model, run.adapter) == ("some/model", "adapter_path")
    assert (run.reference, run.dtype) == ("small/model", "float16")
    assert (run.max_batch_size, run.output_dir) == (4, "./out")
    assert run.data == {
        "path": "./data/sample_data.csv", "format": "csv", "text_column": "input", "label_column": "label",
        "text_length": 64, "spaced": False, "unspace": True,
    }  # fmt: skip
    assert [one.label for one in run.attacks] == [
        "loss",
        "mink(ratio=0.1)",
        "mink(ratio=0.5)",  # Fast-MIA's default
        "recall(n_shots=3)",
        "conrecall(n_shots=3, gamma=0.7)",
        "pac(n=3, alpha=0.4)",
        "samia(n=2, prefix=0.3, zlib=False)",
        "dcpdd(alpha=0.02)",
        "ref",
    ]
    named = [
        "model.trust_remote_code", "model.max_seq_len_to_capture", "sampling_parameters.top_p",
        "methods[3].params.k_percent", "methods[3] repeats mink(ratio=0.5)", "methods[5].params.pass_window",
        "methods[8].params.file_num", "methods[8].params.max_token_length",
        "methods[9].params.reference_model.gpu_memory_utilization", "'aeca' is no attack here", "seeds",
    ]  # fmt: skip
    assert len(run.warnings) == len(named)
    for key in named:
        assert sum(key in one for one in run.warnings) == 1, key
        assert key in caplog.text
    without = read_config(path)
    assert without.skipped == ["dcpdd", "aeca"] and any("--corpus" in one for one in without.warnings)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model: {model_id: m", "is not YAML"),
        ("[]", "holds no keys"),
        ("model: {model_id: m}\ndata: {}\nmethods: []", "lacks data.data_path"),
        ("model: {model_id: m}\ndata: {data_path: d}", "lacks methods"),
        (
            "model: {model_id: m}\ndata: {data_path: d}\nmethods: [{type: aeca}]",
            "names no method that can run",
        ),
        ("model: {model_id: m}\ndata: {data_path: d}\nmethods: [{params: {}}]", "has no type"),
        (
            "model: {model_id: m}\ndata: {data_path: d}\nmethods: [{type: mink, params: {ratio: 2}}]",
            "ratio must be",
        ),
    ],
)
def test_configurations_that_cannot_run_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_config(path)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_config(tmp_path / "absent.yaml")


def test_hub_datasets_are_named_as_fast_mia_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for datasets.load_dataset: nothing is downloaded, the request is looked at."""
    import datasets

    asked: list[tuple[str, dict[str, Any]]] = []

    def load(path: str, **options: Any) -> Any:
        asked.append((path, options))
        if path == "iamgroot42/mimir":
            return datasets.Dataset.from_list([{"member": "in it", "nonmember": "not in it"}])
        if path == "no/such":
            raise FileNotFoundError("Dataset 'no/such' doesn't exist")
        return datasets.Dataset.from_list([{"input": "a b", "label": 1}, {"input": "c d", "label": 0}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    found = read_texts("swj0419/WikiMIA", format="huggingface", text_column="input", text_length=64)
    assert found.labels == {"0": 1, "1": 0}
    mimir = read_texts("iamgroot42/mimir_pile_cc_ngram_7_0.2", format="huggingface", text_column="input")
    assert (mimir.texts, mimir.labels) == ({"0": "in it", "1": "not in it"}, {"0": 1, "1": 0})
    read_texts("owner/name", text_column="input", split="test")
    assert asked == [
        ("swj0419/WikiMIA", {"split": "WikiMIA_length64"}),
        ("iamgroot42/mimir", {"split": "ngram_7_0.2", "name": "pile_cc"}),
        ("owner/name", {"split": "test"}),
    ]
    with pytest.raises(ConfigurationError, match="hub dataset no/such cannot be loaded"):
        read_texts("no/such")
