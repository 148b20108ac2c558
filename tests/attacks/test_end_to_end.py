"""Every method end to end on the golden tiny model, with and without a beginning-of-text token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from memaudit import attack
from memaudit.attacks import Record, Variant, make
from memaudit.attacks.conrecall import ConReCaLL
from memaudit.attacks.masked_lm import MaskedLM
from memaudit.attacks.neighbour import Neighbour
from memaudit.attacks.pac import PAC
from memaudit.attacks.samia import overlap
from memaudit.attacks.tools import Tools
from memaudit.posthoc.attack import AttackResult
from memaudit.seeds import generator
from tests.attacks.cases import golden
from tests.conftest import shared_path

TINY = "golden/mia_tiny"
MODES = ("bos", "nobos")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    load = AutoModelForCausalLM.from_pretrained
    return {name: load(shared_path(TINY, name)).eval() for name in ("model", "ref")}


def tokenizer(mode: str) -> Any:
    return AutoTokenizer.from_pretrained(shared_path(TINY, f"tokenizer_{mode}"))


def run(models: dict[str, Any], mode: str, attacks: Any, **options: Any) -> AttackResult:
    case = golden()["end_to_end"]
    options.setdefault("texts", case["texts"])
    options.setdefault("labels", case["labels"])
    return attack(
        models["model"], attacks=attacks, tokenizer=tokenizer(mode), reference=models["ref"], **options
    )


def scores(mode: str, method: str) -> list[float]:
    found: list[float] = golden()["end_to_end"][mode]["scores"][method]["scores"]
    return found


def column(result: AttackResult, label: str) -> list[float]:
    return list(result.scores[label].values())


@pytest.mark.parametrize("mode", MODES)
def test_methods_of_one_text(models: dict[str, Any], mode: str) -> None:
    minks = [f"mink(ratio={ratio})" for ratio in (0.1, 0.5, 1.0)]
    result = run(
        models, mode, ["loss", "zlib", "mink", "minkpp", "minkpp(ratio=0.5)", "lower", "ref", *minks]
    )
    expected = {
        "loss": ("loss", 1e-5),
        "zlib": ("zlib", 1e-5),
        "mink": ("mink_0.2", 1e-4),
        "mink(ratio=0.1)": ("mink_0.1", 1e-4),
        "mink(ratio=0.5)": ("mink_0.5", 1e-4),
        "mink(ratio=1.0)": ("mink_1.0", 1e-4),
        "minkpp": ("mink++_0.2(zjysteven, int floor)", 1e-4),
        "minkpp(ratio=0.5)": ("mink++_0.5(zjysteven, int floor)", 1e-4),
        "lower": ("lower", 1e-3),
        "ref": ("ref", 1e-4),
    }
    for label, (name, tolerance) in expected.items():
        assert column(result, label) == pytest.approx(scores(mode, name), abs=tolerance), label
    auroc = golden()["end_to_end"][mode]["scores"]["loss"]["metrics_auroc_fpr95_tpr05"][0]
    assert result.metrics["loss"].auc == pytest.approx(auroc)


@pytest.mark.parametrize("mode", MODES)
def test_token_ids_and_log_probabilities_are_the_golden_ones(mode: str) -> None:
    case = golden()["end_to_end"]
    tools = Tools(tokenizer=tokenizer(mode))
    for text, ids, logprobs in zip(
        case["texts"], case[mode]["input_ids"], case[mode]["token_logprobs"], strict=True
    ):
        (probe,) = tools.variant(text).probes
        assert list(probe.token_ids) == ids and probe.n_targets == len(logprobs)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("alpha", [0.1, 1.0, 1e9])
def test_dcpdd_with_laplace_frequencies(models: dict[str, Any], mode: str, alpha: float) -> None:
    counts = golden()["end_to_end"][mode]["freq_counts"]
    result = run(models, mode, [make("dcpdd", alpha=alpha)], corpus=counts)
    name = f"dcpdd_laplace_mean_alpha{alpha if alpha < 1e9 else '1000000000.0'}"
    assert list(next(iter(result.scores.values())).values()) == pytest.approx(scores(mode, name), abs=1e-4)


@dataclass(frozen=True, kw_only=True)
class GoldenPAC(PAC):
    """PAC on the swapped texts that are stored, which a peer's random stream drew."""

    mode: str = "bos"

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        made = golden()["end_to_end"][self.mode]["pac_augmentations_seed42"][int(record.id)]
        return {
            "text": record.variant,
            **{f"swapped/{i}": tools.variant(text) for i, text in enumerate(made)},
        }


@pytest.mark.parametrize("mode", MODES)
def test_pac(models: dict[str, Any], mode: str) -> None:
    result = run(models, mode, [GoldenPAC(mode=mode)])
    assert list(next(iter(result.scores.values())).values()) == pytest.approx(scores(mode, "pac"), abs=1e-4)


def seed_that_keeps_order(attack: str, kind: str, n: int) -> int:
    """The golden shots have an order of their own; find a seed that draws the pool in the order given."""
    return next(
        s for s in range(10_000) if generator(s, attack, kind).permutation(n).tolist() == list(range(n))
    )


@pytest.mark.parametrize("mode", MODES)
def test_recall_joins_ids_and_shares_the_prefix(models: dict[str, Any], mode: str) -> None:
    shots = golden()["end_to_end"][mode]["recall_prefix_shots_seed42"]
    texts = dict(enumerate(golden()["end_to_end"]["texts"]))
    judged = {str(i): text for i, text in texts.items() if text not in shots}
    seed = seed_that_keeps_order("recall", "nonmembers", 3)
    result = run(
        models, mode, [make("recall", n_shots=3)], texts=judged, labels=None, nonmembers=shots, seed=seed
    )
    expected = scores(mode, "recall_reference_id_concat")
    for id, score in result.scores["recall(n_shots=3)"].items():
        assert score == pytest.approx(expected[int(id)], rel=1e-4), id
    assert len(result.scores["recall(n_shots=3)"]) == len(judged) == 21
    prefix = golden()["end_to_end"][mode]["recall_prefix_token_len_fastmia"]
    assert result.cost.prefix_tokens_saved == (prefix - 1) * (len(judged) - 1)
    assert result.cost.forwarded == 2 * len(judged)


@pytest.mark.parametrize("mode", MODES)
def test_conrecall(models: dict[str, Any], mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = golden()["end_to_end"][mode]
    without, within = case["conrecall_nonmember_shots_seed42"], case["conrecall_member_shots_seed42"]
    texts = golden()["end_to_end"]["texts"]
    judged = {str(i): text for i, text in enumerate(texts) if text not in (*without, *within)}
    seed = next(
        s
        for s in range(100_000)
        if generator(s, "recall", "nonmembers").permutation(3).tolist() == [0, 1, 2]
        and generator(s, "conrecall", "members").permutation(3).tolist() == [0, 1, 2]
    )
    result = run(
        models,
        mode,
        [ConReCaLL(n_shots=3)],
        texts=judged,
        labels=None,
        nonmembers=without,
        members=within,
        seed=seed,
    )
    expected = scores(mode, "conrecall_reference_id_concat_g.5")
    for id, score in result.scores["conrecall(n_shots=3)"].items():
        assert score == pytest.approx(expected[int(id)], rel=1e-4), id


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("weigh", [False, True])
def test_samia_scores_the_continuation_once_cut(mode: str, weigh: bool) -> None:
    """The original pipeline cuts prompt and continuation at 12 words, half of the texts' nominal length."""
    case = golden()["end_to_end"]
    expected = scores(mode, f"samia_reference_{'' if weigh else 'no'}zlib")
    for i, text in enumerate(case["texts"]):
        prompt = case[mode]["samia_prefix"][i]
        candidates = [(prompt + more).split()[12:] for more in case[mode]["samia_continuations"][i]]
        score = overlap(text.split()[12:], candidates, weigh=weigh)
        assert score == pytest.approx(expected[i], rel=1e-12)


@pytest.fixture(scope="module")
def masked() -> MaskedLM:
    return MaskedLM.load(str(shared_path(TINY, "mlm")), str(shared_path(TINY, "tokenizer_bos")))


def test_neighbours_are_those_of_the_published_generator_without_dropout(masked: MaskedLM) -> None:
    """All of the eight agree in 22 of the 24 texts; in two the eighth is another, scored within 1% of it."""
    case = golden()["end_to_end"]
    different = []
    for i, text in enumerate(case["texts"]):
        original, *others = masked.rewrite(text, 8, 4, 0.0, 0)
        assert original == case["bos"]["neighbour_orig_decoded"][i]
        different.append(len(set(others) - set(case["bos"]["neighbours_dropout0_top4_keep8"][i])))
    assert sum(different) <= 2 and max(different) <= 1


@dataclass(frozen=True, kw_only=True)
class GoldenNeighbour(Neighbour):
    """neighbour on the neighbours that are stored."""

    def variants(self, record: Record, tools: Tools) -> Mapping[str, Variant]:
        made = golden()["end_to_end"]["bos"]["neighbours_dropout0_top4_keep8"][int(record.id)]
        others = {f"neighbour/{i}": tools.variant(text) for i, text in enumerate(made)}
        return {"text": record.variant, "original": record.variant, **others}


def test_neighbour_scores(models: dict[str, Any], masked: MaskedLM) -> None:
    result = run(models, "bos", [GoldenNeighbour(), Neighbour(n=8, top_k=4, dropout=0.0)], masked_lm=masked)
    expected = scores("bos", "neighbour_dropout0_top4_keep8")
    assert column(result, "neighbour") == pytest.approx(expected, abs=1e-4)
    generated = np.array(column(result, "neighbour(n=8, top_k=4, dropout=0.0)"))
    assert (np.abs(generated - expected) < 1e-4).sum() >= 22


def test_dropout_hides_the_replaced_token_by_a_seed_of_its_own(masked: MaskedLM) -> None:
    text = golden()["end_to_end"]["texts"][0]
    once, again, other = (masked.rewrite(text, 20, 10, 0.7, seed) for seed in (1, 1, 2))
    assert once == again and once != other
    assert once[0] == text and len(set(once)) == 21


@pytest.mark.parametrize("mode", MODES)
def test_ratio_wbc_ez_gapk_surp_from_the_golden_log_probabilities(models: dict[str, Any], mode: str) -> None:
    """No peer scored these end to end: an independent path from the stored token log-probabilities."""
    case = golden()["end_to_end"][mode]
    result = run(models, mode, ["ratio", "wbc", "gapk", "ez"])
    for i in range(24):
        own, other = np.array(case["token_logprobs"][i]), np.array(case["ref_token_logprobs"][i])
        assert result.scores["ratio"][str(i)] == pytest.approx(other.mean() / own.mean(), rel=1e-4)
        shares = []
        for width in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40):
            w = min(width, len(own))
            wins = [sum(own[k : k + w]) > sum(other[k : k + w]) for k in range(len(own) - w + 1)]
            shares.append(sum(wins) / len(wins))
        assert result.scores["wbc"][str(i)] == pytest.approx(np.mean(shares), abs=0.02)
        top, std = np.array(case["top1_logprob"][i]), np.sqrt(np.array(case["var_fullvocab512"][i]))
        gaps = np.convolve((own - top) / std, np.ones(3) / 3, mode="valid")
        lowest = np.sort(gaps)[: max(1, int(0.2 * len(gaps)))]
        assert result.scores["gapk"][str(i)] == pytest.approx(lowest.mean(), abs=1e-3)
        wrong = own < top - 1e-6
        # A text without an error is judged by all its tokens.
        difference = (own - other)[wrong] if wrong.any() else own - other
        ez = np.log((difference[difference > 0].sum() + 1e-6) / (-difference[difference < 0].sum() + 1e-6))
        assert result.scores["ez"][str(i)] == pytest.approx(ez, abs=1e-3)
