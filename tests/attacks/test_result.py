"""Metrics, groups, files, plots, and attacks on signals."""

from __future__ import annotations

import csv
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from memaudit import attack
from memaudit.errors import ConfigurationError
from memaudit.posthoc.attack import attack_signals
from memaudit.posthoc.membership.metrics import length_groups, metrics_of
from memaudit.posthoc.membership.output import cost_line, table
from memaudit.signals import TokenSignals
from tests.attacks.cases import golden, signals_of
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

Signals = dict[str, TokenSignals]


def spread(n: int, shift: float, seed: int = 0) -> tuple[Signals, Signals, dict[str, int]]:
    """Signals whose members are likelier under the target by ``shift``."""
    rng = np.random.default_rng(seed)
    target, reference, labels = {}, {}, {}
    for i in range(n):
        labels[f"r{i}"] = i % 2
        base = -rng.exponential(size=20 + i % 7)
        gain = shift * (i % 2) * rng.random(len(base))
        for store, values in ((target, np.minimum(base + gain, -1e-3)), (reference, base)):
            k = len(values)
            store[f"r{i}"] = TokenSignals(
                token_ids=np.arange(k), logprob=values, mean=np.full(k, -1.0), std=np.ones(k),
                top1_logprob=np.full(k, -1e-3), top1_id=np.where(values > -0.1, np.arange(k), -1),
                rank=np.zeros(k, int),
            )  # fmt: skip
    return target, reference, labels


def test_metrics_are_those_of_the_statistics_and_of_scikit_learn() -> None:
    target, reference, labels = spread(400, 0.2)
    result = attack_signals(target, reference, labels=labels, stack=True)
    alone, both = {"loss", "mink", "minkpp", "gapk", "surp"}, {"ref", "ratio", "ref_minkpp", "wbc", "ez"}
    assert set(result.scores) == alone | both | {"stack"}
    y = [labels[id] for id in result.scores["ref"]]
    for name in ("loss", "ref", "minkpp"):
        found = result.metrics[name]
        assert found.auc == pytest.approx(roc_auc_score(y, list(result.scores[name].values())))
        assert found.auc_low <= found.auc <= found.auc_high
        assert found.tpr_at_1_resolved and found.tpr_at_1_low <= found.tpr_at_1 <= found.tpr_at_1_high
    assert result.metrics["ref"].auc > result.metrics["loss"].auc > 0.5
    shuffled = dict(
        zip(labels, np.random.default_rng(1).permutation(list(labels.values())).tolist(), strict=True)
    )
    chance = attack_signals(target, reference, labels=shuffled)
    inside = [one.auc_low <= 0.5 <= one.auc_high for one in chance.metrics.values()]
    assert sum(inside) >= 8


def test_an_inverted_attack_is_said() -> None:
    target, _, labels = spread(200, 0.8)
    turned = {id: 1 - label for id, label in labels.items()}
    result = attack_signals(target, labels=turned, attacks="loss")
    assert result.metrics["loss"].inverted and any("leaks as well" in note for note in result.notes)


def test_groups_by_source_and_by_length() -> None:
    target, reference, labels = spread(120, 0.5)
    groups = {id: "even" if int(id[1:]) % 4 < 2 else "odd" for id in labels}
    result = attack_signals(target, reference, labels=labels, groups=groups, attacks="ref")
    found = result.by_group["ref"]
    assert {name for name in found if name.startswith("source")} == {"source even", "source odd"}
    lengths = [one for name, one in found.items() if name.startswith("tokens")]
    assert sum(one.n_members + one.n_nonmembers for one in lengths) == 120
    assert length_groups({"a": 4, "b": 4}) == {"tokens 4-4": ["a", "b"]} and length_groups({}) == {}


def test_too_few_records_make_no_metric_and_few_non_members_resolve_no_rate() -> None:
    assert metrics_of({"a": 1.0, "b": 0.0}, {"a": 1, "b": 0}) is None
    found = metrics_of({str(i): float(i) for i in range(40)}, {str(i): int(i >= 20) for i in range(40)})
    assert found is not None
    assert (found.tpr_at_1_resolved, found.tpr_at_5_resolved) == (False, True)
    assert found.tpr_at_5 == 1.0 and found.auc == 1.0 and found.auc_low < 1.0 and found.fpr_at_95 == 0.0


def test_signals_that_lack_what_an_attack_needs_are_said() -> None:
    target, _, labels = spread(4, 0.5)
    with pytest.raises(ConfigurationError, match="needs a reference"):
        attack_signals(target, labels=labels, attacks="ref")
    with pytest.raises(ConfigurationError, match="texts"):
        attack_signals(target, labels=labels, attacks="zlib")
    case = golden()["arrays"][9]
    one = attack_signals({"a": signals_of(case)}, attacks="dcpdd", token_counts=case["freq_counts"])
    assert one.scores["dcpdd"]["a"] == pytest.approx(case["scores"]["dcpdd_correct_higher_is_member(=+mean)"])
    assert one.metrics == {}
    broken = dict(target)
    broken["r0"] = TokenSignals.from_lists(
        token_ids=[1], logprob=[float("nan")], mean=[-1], std=[1], top1_logprob=[-1], top1_id=[1], rank=[0]
    )
    found = attack_signals(broken, labels=labels, attacks="loss")
    assert "not finite" in found.unscorable["loss"]["r0"] and len(found.scores["loss"]) == 3


@pytest.fixture(scope="module")
def result() -> Any:
    texts = sample_text(60, seed=1)
    labels: list[Any] = [1, 0] * 29 + [None, 1]
    return attack(
        tiny_llama(512).eval(),
        [*texts[:-1], ""],
        labels,
        attacks="loss,zlib,minkpp,pac",
        tokenizer=tiny_tokenizer(add_bos=True),
        reference=tiny_llama(512, seed=5).eval(),
        groups=["a", "b", "b"] * 20,
    )


def test_the_folder_of_results(result: Any, tmp_path: Path) -> None:
    folder = result.save(tmp_path)
    names = {"metrics.json", "metrics.csv", "by_group.csv", "scores.csv", "metadata.json"}
    names |= {f"{one}.{ending}" for one in ("roc", "distributions") for ending in ("svg", "png")}
    assert {one.name for one in folder.iterdir()} == names
    assert result.save(tmp_path) != folder
    rows = list(csv.DictReader((folder / "scores.csv").open()))
    assert len(rows) == 60
    assert float(rows[3]["loss"]) == result.scores["loss"]["3"] and rows[3]["label"] == "0"
    assert rows[59]["loss"] == "" and rows[58]["label"] == ""
    assert stat.S_IMODE((folder / "scores.csv").stat().st_mode) == 0o600
    metrics = json.loads((folder / "metrics.json").read_text())["metrics"]
    assert metrics["loss"]["auc"] == result.metrics["loss"].auc and metrics["loss"]["n_unscorable"] == 1
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["cost"]["forwarded"] == result.cost.forwarded
    assert metadata["settings"]["attacks"]["pac"]["n"] == 5
    assert metadata["unscorable"]["loss"] == {"59": "the text has no tokens"}
    assert metadata["stack"]["seed"] == result.stacked.seed
    assert (folder / "roc.png").read_bytes()[:4] == b"\x89PNG"
    everything = "".join(one.read_text(errors="ignore") for one in folder.iterdir() if one.suffix != ".png")
    assert not any(text in everything for text in sample_text(60, seed=1)[:-1])


def test_frames_plots_and_dictionaries(result: Any, tmp_path: Path) -> None:
    frame = result.to_pandas()
    assert frame.shape == (60, 3 + 5) and frame.loc["3", "pac"] == result.scores["pac"]["3"]
    json.dumps(result.to_dict(), allow_nan=False)
    figure = result.plot(tmp_path / "r.svg")
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert len(axes.get_legend().get_texts()) == len(result.metrics) == 5
    with pytest.raises(ConfigurationError, match="end the name in one of"):
        result.plot(tmp_path / "r.txt")
    none = attack_signals({"a": signals_of(golden()["arrays"][3])}, attacks="loss")
    with pytest.raises(ConfigurationError, match="nothing to plot"):
        none.plot()


def test_the_table_and_the_cost_in_one_line(result: Any) -> None:
    from rich.console import Console

    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(table(result))
    text = captured.get()
    assert all(name in text for name in ("loss", "stack", "AUC", "unscored", "too few non-members"))
    assert str(result.cost.forwarded) in cost_line(result)


def test_a_long_name_cuts_no_figure_off_on_a_narrow_screen(result: Any) -> None:
    from rich.console import Console

    name = f"ref(reference='{'/a/long/path' * 8}')"
    found = result.metrics["loss"]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table(replace(result, metrics={name: found, "loss": found})))
    text = captured.get()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80
    assert (
        text.count(f"{found.auc:.3f}") == 2 and text.count(f"[{found.auc_low:.2f}-{found.auc_high:.2f}]") == 2
    )


def test_the_dataset_level_test_comes_with_a_blind_baseline() -> None:
    tokenizer, model = tiny_tokenizer(add_bos=True), tiny_llama(512).eval()
    alike = attack(model, sample_text(80, seed=1), [1, 0] * 40, attacks="loss,zlib,mink", tokenizer=tokenizer)
    assert alike.dataset is not None and alike.dataset["shift"] is False
    shifted = [f"{text} 2024 2024" if i % 2 == 0 else text for i, text in enumerate(sample_text(80, seed=1))]
    other = attack(model, shifted, [1, 0] * 40, attacks="loss,zlib,mink", tokenizer=tokenizer)
    assert other.dataset is not None and other.dataset["shift"] is True
    assert "membership is not what tells them apart" in other.dataset["says"]
