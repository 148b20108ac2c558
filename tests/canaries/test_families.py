"""Families: secrets keep their ids, lie where they say, and are what they were asked to be."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from memaudit import generate_canaries
from memaudit.canaries import LEAD, Draw, families, register_family, unregister_family
from memaudit.canaries.structured import ALPHABETS, TEMPLATE
from memaudit.errors import ConfigurationError, PreflightError
from tests.helpers import sample_text, tiny_tokenizer, tiny_tokenizers

CORPUS = sample_text(300, seed=1)


@pytest.mark.parametrize("family", ["random", "unigram", "bigram", "near_duplicate"])
@pytest.mark.parametrize("name", list(tiny_tokenizers()))
def test_secrets_keep_their_ids_and_length(name: str, family: str) -> None:
    tokenizer = tiny_tokenizers()[name]
    made = generate_canaries(tokenizer, n=6, n_controls=6, family=family, corpus=CORPUS, secret_len=26)
    lead = tokenizer(LEAD, add_special_tokens=False)["input_ids"]
    for canary in made:
        assert len(canary.secret_ids) == 26
        whole = tokenizer(LEAD + canary.secret, add_special_tokens=False)["input_ids"]
        assert whole == lead + list(canary.secret_ids)
        assert tokenizer.decode(list(canary.secret_ids)).strip() == canary.secret.strip()
        assert canary.secret.isprintable()
    assert len({canary.secret for canary in made}) == 12


def test_random_draws_are_uniform_over_the_usable_vocabulary() -> None:
    from memaudit.canaries.tokens import usable_ids

    tokenizer = tiny_tokenizer("wordpiece")  # whole words do not merge, so the draws can be counted
    made = generate_canaries(tokenizer, n=200, n_controls=200, family="random", secret_len=64)
    drawn = [token for canary in made for token in canary.secret_ids]
    words = [
        token
        for token in usable_ids(tokenizer)
        if len(text := tokenizer.convert_ids_to_tokens(token)) > 4 and text.isalpha()
    ]
    counts = [drawn.count(token) for token in words]
    mean = sum(counts) / len(counts)
    # Each count is binomial, so about Poisson: its variance is its mean.
    chi2 = sum((count - mean) ** 2 for count in counts) / mean
    degrees = len(counts) - 1
    assert abs(chi2 - degrees) < 5 * math.sqrt(2 * degrees)
    assert mean > 20


def test_unigram_takes_the_corpus_rarest_tokens() -> None:
    tokenizer = tiny_tokenizer("wordpiece")
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha() and len(word) > 3)
    common, rare = words[::2], words[1::2]
    corpus = [" ".join(common)] * 20
    made = generate_canaries(tokenizer, n=20, n_controls=20, family="unigram", corpus=corpus)
    assert {canary.generator for canary in made} == {"corpus_unigram"}
    drawn = tokenizer.convert_ids_to_tokens([token for canary in made for token in canary.secret_ids])
    assert sum(token in rare for token in drawn) > 50
    assert sum(token in common for token in drawn) <= 2  # pieces that merge may make one by chance


def test_bigram_chains_are_pairs_of_the_corpus() -> None:
    tokenizer = tiny_tokenizer("wordpiece")
    made = generate_canaries(tokenizer, n=8, n_controls=8, family="bigram", corpus=CORPUS)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in CORPUS]
    pairs = {pair for one in ids for pair in itertools.pairwise(one)}
    seen = [(a, b) in pairs for canary in made for a, b in itertools.pairwise(canary.secret_ids)]
    assert sum(seen) / len(seen) > 0.8
    triples = {triple for one in ids for triple in zip(one, one[1:], one[2:], strict=False)}
    runs = [
        triple in triples
        for canary in made
        for triple in zip(canary.secret_ids, canary.secret_ids[1:], canary.secret_ids[2:], strict=False)
    ]
    assert sum(runs) / len(runs) < 0.05  # no quotation of the corpus
    assert {canary.generator for canary in made} == {"corpus_bigram"}


@pytest.mark.parametrize("family", ["unigram", "bigram", "high_ppl"])
def test_a_family_without_its_source_says_what_drew_instead(family: str) -> None:
    made = generate_canaries(tiny_tokenizer(), n=4, n_controls=100, family=family)
    assert {canary.generator for canary in made} == {"uniform_vocab"}
    assert {canary.family for canary in made} == {family}
    assert any("uniform draws" in note for note in made.notes)


def test_high_ppl_with_a_corpus_and_no_model_is_unigram() -> None:
    made = generate_canaries(tiny_tokenizer(), n=4, n_controls=100, family="high_ppl", corpus=CORPUS)
    assert {canary.generator for canary in made} == {"corpus_unigram"}


def test_structured_fill_space_is_known_and_filled_uniformly() -> None:
    tokenizer = tiny_tokenizer("bytelevel")
    made = generate_canaries(tokenizer, n=100, n_controls=200, family="structured")
    template = made.canaries[0].metadata["template"]
    assert template.startswith(TEMPLATE)
    pattern = re.escape(" " + template).replace(r"\#", "#").replace("#", "[0-9]").replace("@", "[A-Z]")
    assert all(re.fullmatch(pattern, canary.secret) for canary in made)
    places = template.count("#"), template.count("@")
    expected = places[0] * math.log2(10) + places[1] * math.log2(26)
    assert made.canaries[0].metadata["space_log2"] == pytest.approx(expected, abs=1e-9)
    assert all(canary.metadata["rejected"] == 0 for canary in made)
    assert all(25 <= len(canary.secret_ids) <= 64 for canary in made)
    digits = "".join(
        c for canary in made for c, mark in zip(canary.secret[1:], template, strict=True) if mark == "#"
    )
    counts = [digits.count(digit) for digit in ALPHABETS["#"]]
    mean = len(digits) / 10
    chi2 = sum((count - mean) ** 2 for count in counts) / mean
    assert chi2 < 27.9  # the 99.9% point of chi-squared with 9 degrees of freedom


def test_structured_takes_a_template_of_ones_own() -> None:
    made = generate_canaries(
        tiny_tokenizer(),
        n=4,
        n_controls=100,
        family="structured",
        options={"template": "PIN ####", "blocks": 4},
    )
    assert made.canaries[0].metadata["space_log2"] == pytest.approx(16 * math.log2(10))
    with pytest.raises(ConfigurationError, match="no place to fill"):
        generate_canaries(tiny_tokenizer(), family="structured", options={"template": "PIN"})


def test_structured_works_for_a_tokenizer_that_changes_case_and_spacing() -> None:
    made = generate_canaries(
        tiny_tokenizer("wordpiece"),
        n=4,
        n_controls=100,
        family="structured",
        options={"template": "code ######"},
    )
    assert all(25 <= len(canary.secret_ids) <= 64 for canary in made)


@pytest.mark.parametrize("changed", [1, 3, 8])
def test_near_duplicates_differ_in_exactly_k_tokens(changed: int) -> None:
    tokenizer = tiny_tokenizer("bytelevel")
    made = generate_canaries(
        tokenizer,
        n=12,
        n_controls=4,
        family="near_duplicate",
        repetitions=(1, 4),
        options={"changed": changed},
    )
    lead = tokenizer(LEAD, add_special_tokens=False)["input_ids"]
    for canary in made:
        assert len(canary.variants) == (canary.repetitions - 1 if canary.role == "candidate" else 0)
        for variant in canary.variants:
            ids = tokenizer(LEAD + variant, add_special_tokens=False)["input_ids"][len(lead) :]
            assert len(ids) == len(canary.secret_ids)
            assert sum(a != b for a, b in zip(ids, canary.secret_ids, strict=True)) == changed


def test_new_token_is_refused_with_the_reason() -> None:
    tokenizer = tiny_tokenizer()
    before = len(tokenizer)
    with pytest.raises(PreflightError, match="frozen embeddings never trains"):
        generate_canaries(tokenizer, family="new_token")
    assert len(tokenizer) == before


def test_third_parties_add_families() -> None:
    @register_family("numbers")
    def numbers(request):  # type: ignore[no-untyped-def]
        from memaudit.canaries import settle

        drawn = []
        for index in range(request.count):
            settled = settle(
                request.tokenizer, " ".join(str(1000 + index * 7 + place) for place in range(20))
            )
            assert settled is not None
            drawn.append(Draw(settled.secret, settled.ids, "counting"))
        return drawn

    try:
        assert "numbers" in families()
        made = generate_canaries(tiny_tokenizer(), n=3, n_controls=100, family="numbers")
        assert {canary.generator for canary in made} == {"counting"}
        with pytest.raises(ConfigurationError, match="exists already"):
            register_family("numbers")(numbers)
        with pytest.raises(ConfigurationError, match="exists already"):
            register_family("random")(numbers)
    finally:
        unregister_family("numbers")
    with pytest.raises(ConfigurationError, match="choose one of bigram, high_ppl"):
        generate_canaries(tiny_tokenizer(), family="numbers")
