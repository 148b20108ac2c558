"""Texts of every kind: languages, code, one token, none, longer than the context, all alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memaudit import attack
from memaudit.attacks import UnscorableError
from memaudit.attacks.tools import Tools, beginning, context_length
from memaudit.errors import ConfigurationError, InputTypeError
from tests.attacks.plain import Plain
from tests.helpers import KINDS, sample_text, tiny_gpt2, tiny_llama, tiny_tokenizer

WORLD = {
    "chinese": "今天天气很好，我们去公园散步吧。图书馆在河的另一边。",
    "japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "arabic": "ذهب الولد إلى المدرسة في الصباح الباكر، ثم عاد إلى البيت.",
    "code": "def f(x):\n    return {'a': [x ** 2 for _ in range(3)]}  # TODO\n",
    "emoji": "family 👩‍👩‍👧‍👦 flags 🇫🇷🇯🇵 and a zero\u200bwidth space",
    "mixed": "ID\t42\r\n—naïve café— Ⅷ ﬁ",
}
ATTACKS = "loss,zlib,mink,minkpp,lower,gapk,surp,pac"


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(512, positions=256).eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spaced", [True, False])
def test_languages_and_code_score_as_a_plain_computation(model: Any, kind: str, spaced: bool) -> None:
    tokenizer = tiny_tokenizer(kind, add_bos=True)
    result = attack(model, WORLD, attacks=ATTACKS, tokenizer=tokenizer, spaced=spaced)
    plain = Plain(model, tokenizer)
    for name in ("loss", "zlib", "mink", "minkpp", "lower", "gapk", "surp"):
        for id, text in WORLD.items():
            assert result.scores[name][id] == pytest.approx(getattr(plain, name)(text), abs=1e-4), (name, id)
    # Without spaces a word is a character: then Chinese can be swapped, with spaces it is one or two words.
    assert ("chinese" in result.scores["pac"]) is (not spaced)
    reason = result.unscorable["pac"].get("chinese")
    assert reason == ("the text has fewer than two words to swap" if spaced else None)


def test_the_text_is_scored_with_its_spaces_whatever_the_language_policy(model: Any) -> None:
    tokenizer = tiny_tokenizer(add_bos=True)
    texts = {"a": "字 与 字 之 间 有 空 格"}
    both = [
        attack(model, texts, attacks="loss,zlib", tokenizer=tokenizer, spaced=one).scores
        for one in (True, False)
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize("bos", [True, False])
def test_empty_and_one_token_texts_are_kept_and_counted(model: Any, bos: bool) -> None:
    tokenizer = tiny_tokenizer(add_bos=bos)
    texts = {"empty": "", "one": "a", "blank": " ", "m1": "the river report", "m2": "the old river"}
    texts |= {"n1": "a b c", "n2": "q w e"}
    labels = {"empty": 1, "one": 0, "blank": 0, "m1": 1, "m2": 1, "n1": 0, "n2": 0}
    assert len(tokenizer("a", add_special_tokens=False)["input_ids"]) == 1
    result = attack(model, texts, labels, attacks="loss,mink,minkpp,gapk,surp", tokenizer=tokenizer)
    assert result.unscorable["loss"]["empty"] == "the text has no tokens"
    if bos:
        assert result.scores["loss"]["one"] == pytest.approx(Plain(model, tokenizer).loss("a"), abs=1e-5)
        expected = {"empty"}
    else:
        assert "adds no beginning" in result.unscorable["loss"]["one"]
        expected = {"empty", "one", "blank"}
    assert set(result.unscorable["loss"]) == expected
    found = result.metrics["loss"]
    assert found.n_unscorable == len(expected)
    assert found.n_members + found.n_nonmembers + found.n_unscorable == len(texts)
    assert any("unscorable" in note for note in result.notes)
    beginning_said = result.settings["beginning"]
    assert ("first token is scored" in beginning_said) is bos


def test_texts_that_are_all_alike_score_alike_and_say_nothing(model: Any) -> None:
    tokenizer = tiny_tokenizer(add_bos=True)
    result = attack(model, ["the same text again"] * 40, [1, 0] * 20, attacks=ATTACKS, tokenizer=tokenizer)
    for name, column in result.scores.items():
        assert len(set(column.values())) == 1, name
        assert result.metrics[name].auc == 0.5
        assert result.metrics[name].auc_low < 0.5 < result.metrics[name].auc_high
        assert result.metrics[name].tpr_at_5 == 0.0
    assert result.cost.forwarded <= 2 + 5


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2])
def test_long_texts_are_scored_in_windows_that_each_begin_as_a_text_does(make: Any, bos: bool) -> None:
    tokenizer = tiny_tokenizer(add_bos=bos)
    model = make(512, positions=32).eval()
    text = " ".join(sample_text(8, seed=4))
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > 90
    result = attack(model, {"long": text, "short": "the river"}, attacks="loss", tokenizer=tokenizer)
    head = tokenizer(text)["input_ids"][: len(tokenizer(text)["input_ids"]) - len(ids)]
    if head:
        pieces = [[*head, *ids[i : i + 31]] for i in range(0, len(ids), 31)]
    else:
        rest = [ids[1 + i : 32 + i] for i in range(0, len(ids) - 1, 31)]
        pieces = [
            [before, *piece] for before, piece in zip([ids[0], *(p[-1] for p in rest)], rest, strict=False)
        ]
    total, count = 0.0, 0
    for piece in pieces:
        with torch.no_grad():
            rows = torch.log_softmax(model(input_ids=torch.tensor([piece])).logits[0].double(), -1)
        total += float(rows[torch.arange(len(piece) - 1), torch.tensor(piece[1:])].sum())
        count += len(piece) - 1
    assert result.scores["loss"]["long"] == pytest.approx(total / count, abs=1e-4)
    assert result.tokens["long"] == count == len(ids) - (not bos)
    assert result.settings["long_texts"] == "window" and result.settings["texts_longer_than_context"] == 1
    assert any("scored in windows" in note for note in result.notes)

    both = {"long": text, "short": "the river"}
    refused = attack(model, both, attacks="loss", tokenizer=tokenizer, long_texts="refuse")
    assert "32" in refused.unscorable["loss"]["long"] or "31" in refused.unscorable["loss"]["long"]
    assert refused.scores["loss"].keys() == {"short"}
    cut = attack(model, {"long": text}, attacks="loss", tokenizer=tokenizer, long_texts="truncate")
    assert cut.tokens["long"] == 31


def test_a_beginning_written_out_in_the_text_is_not_added_twice(model: Any) -> None:
    tokenizer = tiny_tokenizer(add_bos=True)
    plain = attack(model, {"a": "the river"}, attacks="loss", tokenizer=tokenizer)
    written = attack(model, {"a": "<s>the river"}, attacks="loss", tokenizer=tokenizer)
    assert plain.scores == written.scores


def test_a_tokenizer_that_ends_texts_and_one_without_a_pad_token(model: Any) -> None:
    ends = tiny_tokenizer(add_bos=True, add_eos=True)
    assert beginning(ends) == (ends.bos_token_id,)
    assert beginning(tiny_tokenizer(add_eos=True)) == ()
    bare = tiny_tokenizer(pad=False, add_bos=True)
    texts = ["the river", "the long report about the old kitchen window of silence"]
    batched = attack(model, texts, attacks="loss", tokenizer=bare)
    assert bare.pad_token is None
    alone = attack(model, texts, attacks="loss", tokenizer=bare, max_batch_size=1)
    assert list(batched.scores["loss"].values()) == pytest.approx(
        list(alone.scores["loss"].values()), abs=1e-5
    )
    assert attack(model, texts, attacks="loss", tokenizer=ends).scores == batched.scores


def test_scores_are_joined_by_id_not_by_order(model: Any) -> None:
    tokenizer = tiny_tokenizer(add_bos=True)
    texts = {f"r{i}": text for i, text in enumerate(sample_text(9, seed=2))}
    backwards = dict(reversed(list(texts.items())))
    one, two = (
        attack(model, t, attacks="loss,pac", tokenizer=tokenizer, max_batch_size=4)
        for t in (texts, backwards)
    )
    assert list(two.scores["loss"]) == list(backwards)
    for name in ("loss", "pac"):
        assert two.scores[name] == pytest.approx(one.scores[name], abs=1e-5)


def test_inputs_that_cannot_be_used_are_said(model: Any) -> None:
    tokenizer = tiny_tokenizer(add_bos=True)
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        ("one string", None, InputTypeError, "list of texts"),
        ([], None, ConfigurationError, "no texts"),
        (["a", None], None, InputTypeError, "NoneType"),
        (["a b", "c d"], [1], ConfigurationError, "1 labels were given for 2 texts"),
        (["a b", "c d"], [1, 2], ConfigurationError, "give 1 .member. or 0"),
        ({"a": "x y"}, {"b": 1}, ConfigurationError, "have no text"),
    ]
    for texts, labels, error, message in cases:
        with pytest.raises(error, match=message):
            attack(model, texts, labels, attacks="loss", tokenizer=tokenizer)
    with pytest.raises(ConfigurationError, match="long_texts"):
        attack(model, ["a b"], attacks="loss", tokenizer=tokenizer, long_texts="ignore")


def test_context_length_takes_positions_and_ignores_the_sentinel() -> None:
    tokenizer = tiny_tokenizer()
    assert context_length(tiny_gpt2(512, positions=77).config, tokenizer) == 77
    tokenizer.model_max_length = 50
    assert context_length(tiny_llama(512, positions=64).config, tokenizer) == 50
    with pytest.raises(ConfigurationError, match="scores nothing"):
        Tools(tokenizer=tokenizer, max_length=1)
    with pytest.raises(UnscorableError, match="no token fits"):
        Tools(tokenizer=tokenizer, max_length=8).variant("the river report", tuple(range(8)))
