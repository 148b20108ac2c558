"""Fast-MIA's errors, each with the right value beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memaudit import attack
from memaudit.attacks import make
from memaudit.attacks.dcpdd import calibrated_mean, count_tokens
from memaudit.attacks.tools import Tools
from memaudit.errors import ConfigurationError
from tests.attacks.cases import golden
from tests.conftest import shared_path
from tests.helpers import sample_text, tiny_llama, tiny_tokenizer

TEXTS = sample_text(20, seed=3)
LABELS = [1, 0] * 10


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(512, positions=256).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer(add_bos=True)


def test_dcpdd_weighs_rare_tokens_more_and_counts_by_tokenizer(tokenizer: Any) -> None:
    counts = np.zeros(512, dtype=np.int64)
    counts[5] = 1000
    common = calibrated_mean(np.array([5]), np.log([0.5]), counts, 1e9)
    rare = calibrated_mean(np.array([6]), np.log([0.5]), counts, 1e9)
    assert rare > common
    case = golden()["arrays"][8]["scores"]
    assert case["fastmia.dcpdd(raw counts, alpha .01)"] != pytest.approx(
        case["dcpdd_correct_higher_is_member(=+mean)"]
    )
    other = tiny_tokenizer("wordpiece")
    assert not np.array_equal(count_tokens(TEXTS, tokenizer, 512), count_tokens(TEXTS, other, 512))
    assert count_tokens(TEXTS, tokenizer, 512).sum() == sum(
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS
    )


@pytest.mark.parametrize("index", range(12))
def test_dcpdd_equals_the_golden_arrays(index: int) -> None:
    case = golden()["arrays"][index]
    score = calibrated_mean(
        np.array(case["token_ids"]), np.array(case["token_logprobs"]), np.array(case["freq_counts"]), 0.01
    )
    assert score == pytest.approx(case["scores"]["dcpdd_correct_higher_is_member(=+mean)"], rel=1e-12)


def test_shots_are_not_judged_and_not_drawn_from_the_judged_unless_marked(model: Any, tokenizer: Any) -> None:
    apart = attack(
        model, TEXTS, LABELS, attacks="recall(n_shots=3),conrecall(n_shots=3)", tokenizer=tokenizer
    )
    judged = set(apart.tokens)
    assert len(judged) == 20 - 6
    assert all(set(column) == judged for column in apart.scores.values())
    assert sum(LABELS[int(i)] for i in judged) == 7
    assert set(apart.labels) == judged
    marked = attack(model, TEXTS, LABELS, attacks="recall(n_shots=3,shots='judged')", tokenizer=tokenizer)
    assert len(marked.tokens) == 20
    assert any("among the judged texts" in note for note in marked.notes)


def test_shots_that_do_not_fit_are_dropped_and_none_that_fits_is_an_error(tokenizer: Any) -> None:
    pool = [" ".join(sample_text(2, seed=i)) for i in range(5)]
    sizes = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in pool]
    tools = Tools(tokenizer=tokenizer, max_length=2 * (max(sizes) * 2 + 5), nonmembers=pool)
    prefix = tools.prefix("nonmembers", 5, "recall", judged=False)
    assert 1 < tools.shots_used["recall/nonmembers"] < 5
    assert len(prefix) <= tools.max_length // 2
    small = Tools(tokenizer=tokenizer, max_length=10, nonmembers=pool)
    with pytest.raises(ConfigurationError, match="not one of the 5 shots fits"):
        small.prefix("nonmembers", 5, "recall", judged=False)


def test_the_seam_between_prefix_and_text_is_where_the_ids_join() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    fault = golden()["fastmia_faults"]["seam_merge"]
    tiny = AutoTokenizer.from_pretrained(shared_path("golden/mia_tiny/tokenizer_nobos"))
    model = AutoModelForCausalLM.from_pretrained(shared_path("golden/mia_tiny/model")).eval()
    assert len(tiny(fault["prefix"] + fault["text"])["input_ids"]) < fault["len_prefix"] + fault["len_text"]
    result = attack(
        model,
        {"a": fault["text"]},
        attacks="loss,recall(n_shots=1)",
        tokenizer=tiny,
        nonmembers=[fault["prefix"]],
    )
    conditional = -result.scores["recall(n_shots=1)"]["a"] * result.scores["loss"]["a"]
    # The stored value scores the ids behind the prefix; the faulty one has lost the tokens at the seam.
    assert conditional == pytest.approx(fault["id_concat_cond_loss"], abs=1e-4)
    assert conditional != pytest.approx(fault["fastmia_cond_loss"], abs=1e-2)


def test_a_score_does_not_depend_on_what_else_ran(model: Any, tokenizer: Any) -> None:
    """Each attack and text has its own seed; Fast-MIA has one random stream for all."""
    options: dict[str, Any] = {"tokenizer": tokenizer, "nonmembers": TEXTS[:3], "members": TEXTS[3:6]}
    samia = "samia(n=2,max_new_tokens=16,top_k=0)"
    alone = attack(model, TEXTS[6:9], attacks=f"pac,{samia}", **options)
    others = attack(
        model, TEXTS[6:14], attacks=f"loss,conrecall(n_shots=2),{samia},recall(n_shots=2),pac", **options
    )
    for column in ("pac", next(one for one in alone.scores if one.startswith("samia"))):
        for i in range(3):
            assert others.scores[column][str(i)] == pytest.approx(alone.scores[column][str(i)], abs=1e-4)
    other_seed = attack(model, TEXTS[6:9], attacks="pac", seed=1, **options)
    assert other_seed.scores["pac"] != alone.scores["pac"]


def test_the_store_tells_parameters_apart(model: Any, tokenizer: Any, tmp_path: Any) -> None:
    """Fast-MIA's cache key lacks n, seed and more, and covers a whole list of texts."""
    options: dict[str, Any] = {"tokenizer": tokenizer, "store": tmp_path}
    pac5 = attack(model, TEXTS, attacks="pac", **options)
    pac2 = attack(model, TEXTS, attacks="pac(n=2)", **options)
    assert pac2.cost.forwarded == 0  # its swapped texts are the first two of the five
    assert pac2.scores["pac(n=2)"] != pac5.scores["pac"]
    changed = attack(model, [*TEXTS[:-1], "another last text"], attacks="loss", **options)
    assert changed.cost.forwarded == 1
    sampled = [
        attack(model, TEXTS[:4], attacks=f"samia(n={n},max_new_tokens=8,top_k={k})", seed=seed, **options)
        for n, k, seed in ((2, 0, 0), (3, 0, 0), (2, 5, 0), (2, 0, 1))
    ]
    columns = [tuple(next(iter(one.scores.values())).values()) for one in sampled]
    assert all(len(one) == 4 for one in columns)


def test_samia_without_a_nominal_text_length_and_with_short_texts(model: Any, tokenizer: Any) -> None:
    texts = {"long": TEXTS[0], "two": "river report", "one": "river", "none": ""}
    result = attack(model, texts, attacks="samia(n=2,max_new_tokens=4)", tokenizer=tokenizer)
    label = "samia(n=2, max_new_tokens=4)"
    assert set(result.scores[label]) == {"long", "two"}
    assert "too few words" in result.unscorable[label]["one"]


def test_parameters_of_two_attacks_of_one_type_do_not_overwrite_each_other(
    model: Any, tokenizer: Any
) -> None:
    result = attack(
        model, TEXTS, LABELS, attacks=[make("mink", ratio=r) for r in (0.1, 0.5, 1.0)], tokenizer=tokenizer
    )
    loss = attack(model, TEXTS, LABELS, attacks="loss", tokenizer=tokenizer).scores["loss"]
    assert result.scores["mink(ratio=1.0)"] == pytest.approx(loss, abs=1e-6)
    assert len({tuple(result.scores[f"mink(ratio={r})"].values()) for r in (0.1, 0.5, 1.0)}) == 3
