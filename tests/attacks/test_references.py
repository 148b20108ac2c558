"""Several reference models in one run: each is named in the results, scored once, and none is picked as the best."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from memaudit import attack
from memaudit.attacks import canary_scores, make
from memaudit.cli import main
from memaudit.errors import CheckpointError, ConfigurationError
from memaudit.posthoc.membership.config import read_config
from tests.attacks.cases import golden
from tests.attacks.plain import Plain
from tests.attacks.test_run import Counted
from tests.attacks.vllm_standin import install
from tests.conftest import shared_path
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

TEXTS = sample_text(6, seed=1)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer(add_bos=True)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {
        name: tiny_llama(512, positions=512, seed=seed).eval()
        for name, seed in (("target", 0), ("small", 7), ("smaller", 8))
    }


def fast_mia(tmp_path: Path, references: dict[str, str], *more: dict[str, Any]) -> Path:
    """A Fast-MIA file whose methods name their reference models as that format does."""
    case = golden()["end_to_end"]
    data = tmp_path / "texts.csv"
    with data.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["input", "label"])
        writer.writerows(zip(case["texts"], case["labels"], strict=True))
    methods: list[dict[str, Any]] = [{"type": "loss", "params": {}}, *more]
    methods += [
        {"type": name, "params": {"reference_model": {"model_id": path, "gpu_memory_utilization": 0.2}}}
        for name, path in references.items()
    ]
    tiny = shared_path("golden/mia_tiny")
    content = {
        "model": {"model_id": str(tiny / "model"), "tokenizer": str(tiny / "tokenizer_bos")},
        "data": {"data_path": str(data), "text_column": "input", "text_length": 1000},
        "methods": methods,
        "output_dir": str(tmp_path / "results"),
    }
    file = tmp_path / "two.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def two_references(tmp_path: Path) -> tuple[Path, str, str]:
    """The golden reference, and another model of the same vocabulary: ref against both, wbc against one."""
    first = str(shared_path("golden/mia_tiny/ref"))
    second = str(tmp_path / "other")
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(first)
    other.get_input_embeddings().weight.data.mul_(1.5)
    other.save_pretrained(second)
    against_second = {"type": "ref", "params": {"reference_model": {"model_id": second}}}
    return fast_mia(tmp_path, {"ref": first, "wbc": first}, against_second), first, second


def test_a_fast_mia_file_with_two_references_reports_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, first, second = two_references(tmp_path)
    assert main(["attack", "--config", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    n = len(golden()["end_to_end"]["texts"])
    # loss, ref, ref and wbc ask for seven answers a text; target and references give one each.
    assert f"{7 * n} probes asked for, {3 * n} forwarded" in shown and "2 references, each reported" in shown
    (run,) = (tmp_path / "results").iterdir()
    rows = list(csv.DictReader((run / "scores.csv").open()))
    columns = [f"ref(reference={first!r})", f"ref(reference={second!r})", f"wbc(reference={first!r})"]
    assert set(columns) < set(rows[0]) and "ref" not in rows[0]
    expected = golden()["end_to_end"]["bos"]["scores"]["ref"]["scores"]
    assert [float(row[columns[0]]) for row in rows] == pytest.approx(expected, abs=1e-4)
    texts = golden()["end_to_end"]["texts"]
    tokenizer = str(shared_path("golden/mia_tiny/tokenizer_bos"))
    model = str(shared_path("golden/mia_tiny/model"))
    alone = attack(model, texts, attacks="ref", tokenizer=tokenizer, reference=second)
    by_second = [float(row[columns[1]]) for row in rows]
    assert by_second == pytest.approx(list(alone.scores["ref"].values()), abs=1e-5)
    assert np.abs(np.subtract(by_second, expected)).max() > 0.01
    metadata = json.loads((run / "metadata.json").read_text())
    assert set(metadata["settings"]["references"]) == {first, second}
    assert metadata["settings"]["attacks"][columns[1]]["reference"] == second
    assert set(metadata["cost"]["forwards"]) == {"target", f"reference {first}", f"reference {second}"}


def test_a_reference_given_beside_the_file_takes_the_place_of_both(tmp_path: Path) -> None:
    file, first, _ = two_references(tmp_path)
    assert main(["attack", "--config", str(file), "--reference", first]) == 0
    (run,) = (tmp_path / "results").iterdir()
    rows = list(csv.DictReader((run / "scores.csv").open()))
    assert {"loss", "ref", "wbc"} < set(rows[0])
    expected = golden()["end_to_end"]["bos"]["scores"]["ref"]["scores"]
    assert [float(row["ref"]) for row in rows] == pytest.approx(expected, abs=1e-4)


def test_one_reference_named_twice_is_the_runs_only_one(tmp_path: Path) -> None:
    run = read_config(fast_mia(tmp_path, {"ref": "org/small", "wbc": "org/small"}))
    assert run.reference == "org/small" and [one.label for one in run.attacks] == ["loss", "ref", "wbc"]
    several = read_config(fast_mia(tmp_path, {"ref": "org/small", "wbc": "org/other"}))
    assert several.reference is None
    assert [one.label for one in several.attacks] == [
        "loss",
        "ref(reference='org/small')",
        "wbc(reference='org/other')",
    ]


def test_references_by_name_are_each_forwarded_once(
    models: dict[str, Any], tokenizer: Any, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "attacks": "loss,ref,ratio,wbc(reference='small')",
        "tokenizer": tokenizer,
        "reference": {"small": models["small"], "smaller": models["smaller"]},
        "store": tmp_path / "store",
    }
    with Counted(models["small"]) as small, Counted(models["smaller"]) as smaller:
        result = attack(models["target"], TEXTS, **options)
    assert (small.rows, smaller.rows) == (len(TEXTS), len(TEXTS))
    assert list(result.scores) == [
        "loss",
        "ref(reference='small')",
        "ref(reference='smaller')",
        "ratio(reference='small')",
        "ratio(reference='smaller')",
        "wbc(reference='small')",
    ]
    for name in ("small", "smaller"):
        plain = Plain(models["target"], tokenizer, models[name])
        for method in ("ref", "ratio"):
            found = list(result.scores[f"{method}(reference={name!r})"].values())
            assert found == pytest.approx([plain.methods()[method](text) for text in TEXTS], abs=1e-4)
    with Counted(models["target"]) as target, Counted(models["small"]) as small:
        again = attack(models["target"], TEXTS, **options)
    assert (target.calls, small.calls, again.scores) == (0, 0, result.scores)


def test_without_names_of_attacks_each_reference_gets_the_usual_ones(
    models: dict[str, Any], tokenizer: Any
) -> None:
    result = attack(models["target"], TEXTS, tokenizer=tokenizer, reference={"small": models["small"]})
    usual = attack(models["target"], TEXTS, tokenizer=tokenizer, reference=models["small"])
    assert len(result.scores) == len(usual.scores)
    assert result.scores["ref_minkpp(reference='small')"] == usual.scores["ref_minkpp"]


def test_populations_and_gradients_are_of_the_reference_that_is_named(
    models: dict[str, Any], tokenizer: Any
) -> None:
    options: dict[str, Any] = {"tokenizer": tokenizer, "nonmembers": sample_text(5, seed=5)}
    both = {"small": models["small"], "smaller": models["smaller"]}
    result = attack(models["target"], TEXTS, attacks="rmia,gradnorm", reference=both, **options)
    for name, one in both.items():
        alone = attack(models["target"], TEXTS, attacks="rmia,gradnorm", reference=one, **options)
        for method in ("rmia", "gradnorm"):
            found = result.scores[f"{method}(reference={name!r})"]
            assert found == pytest.approx(alone.scores[method], abs=1e-5)
    differ = [result.scores[f"gradnorm(reference={name!r})"]["0"] for name in both]
    assert abs(differ[0] - differ[1]) > 1e-4


def test_what_cannot_be_chosen_is_said_before_anything_is_forwarded(
    models: dict[str, Any], tokenizer: Any
) -> None:
    from dataclasses import dataclass

    from memaudit.attacks import Attack, Needs, View

    @dataclass(frozen=True, kw_only=True)
    class Own(Attack):
        name = "own_of_a_third_party"
        needs = Needs(reference=True)

        def score(self, view: View) -> float:
            return float(view.signals.logprob.max())

    reference = {"small": models["small"]}
    with Counted(models["target"]) as target:
        with pytest.raises(ConfigurationError, match=r"no reference is named 'smal' \(did you mean 'small'"):
            attack(
                models["target"],
                TEXTS,
                attacks="ref(reference='smal')",
                tokenizer=tokenizer,
                reference=reference,
            )
        with pytest.raises(ConfigurationError, match="cannot choose among 1 references"):
            attack(models["target"], TEXTS, attacks=[Own()], tokenizer=tokenizer, reference=reference)
        with pytest.raises(CheckpointError, match="no/such"):
            attack(models["target"], TEXTS, attacks="ref(reference='./no/such')", tokenizer=tokenizer)
    assert target.calls == 0
    with pytest.raises(ConfigurationError, match="has no parameter 'reference'"):
        make("loss(reference='small')")
    with pytest.raises(ConfigurationError, match="there is one at most"):
        canary_scores(["ref(reference='small')"], {}, {})


def test_vllm_starts_one_engine_a_reference(
    models: dict[str, Any], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, {name: (model, tokenizer) for name, model in models.items()})
    attacks = "ref(reference='small'),ref(reference='smaller'),ratio(reference='small')"
    served = attack("target", TEXTS, attacks=attacks, backend="vllm")
    assert served.settings["references"] == {"small": "an engine", "smaller": "an engine"}
    assert served.cost.forwarded == 3 * len(TEXTS)
    for name in ("small", "smaller"):
        plain = Plain(models["target"], tokenizer, models[name])
        found = list(served.scores[f"ref(reference={name!r})"].values())
        assert found == pytest.approx([plain.methods()["ref"](text) for text in TEXTS], abs=1e-4)
