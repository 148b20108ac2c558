"""The design: profiles, tiers, fair coins that no content sways, the same seed for the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from memaudit import generate_canaries
from memaudit.canaries import check_tokenizer, coin, tokenizer_identity
from memaudit.errors import ConfigurationError, ManifestError
from memaudit.manifest import CanarySet
from tests.helpers import tiny_tokenizer


@pytest.mark.parametrize(
    ("profile", "n", "controls", "tiers", "length"),
    [("smoke", 8, 16, (1,), 25), ("routine", 32, 100, (1, 4, 16), 32), ("powered", 100, 200, (1, 4, 16), 32)],
)
def test_profiles(profile: str, n: int, controls: int, tiers: tuple[int, ...], length: int) -> None:
    made = generate_canaries(tiny_tokenizer(), family="random", profile=profile)
    candidates = [canary for canary in made if canary.role == "candidate"]
    assert (len(candidates), len(made) - len(candidates)) == (n, controls)
    assert made.repetitions == tiers and made.profile == profile
    assert {len(canary.secret_ids) for canary in made} == {length}
    dealt = [canary.repetitions for canary in candidates]
    assert max(dealt.count(tier) for tier in tiers) - min(dealt.count(tier) for tier in tiers) <= 1


def test_defaults_are_routine_and_changes_make_it_custom() -> None:
    assert generate_canaries(tiny_tokenizer(), family="random").profile == "routine"
    changed = generate_canaries(tiny_tokenizer(), n=33, family="random")
    assert changed.profile == "custom" and len(changed) == 133


def test_controls_are_never_included_and_twins_are_named() -> None:
    made = generate_canaries(tiny_tokenizer(), family="random", n=10, n_controls=30)
    controls = [canary for canary in made if canary.role == "control"]
    assert not any(canary.included for canary in controls)
    twins = [canary.metadata["twin_of"] for canary in controls if "twin_of" in canary.metadata]
    assert twins == [canary.id for canary in made if canary.role == "candidate"]


def test_few_controls_are_noted_but_not_for_smoke() -> None:
    assert any(
        "refused" in note
        for note in generate_canaries(tiny_tokenizer(), n_controls=50, family="random").notes
    )
    assert not generate_canaries(tiny_tokenizer(), profile="smoke", family="random").notes


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = []
    for run in range(2):
        made = generate_canaries(tiny_tokenizer(), family="random", seed=11)
        paths.append(made.save(tmp_path / f"{run}.json"))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    other = generate_canaries(tiny_tokenizer(), family="random", seed=12)
    assert {canary.secret for canary in other}.isdisjoint({c.secret for c in CanarySet.load(paths[0])})
    assert paths[0].stat().st_mode & 0o777 == 0o600


@given(st.integers(min_value=-(2**40), max_value=2**40))
@settings(max_examples=25, deadline=None)
def test_coins_are_fair(seed: int) -> None:
    flips = sum(coin(seed, f"c-random-{index:04d}") for index in range(400))
    # Exact two-sided binomial test; at 1e-9 no fair coin fails in a lifetime of test runs.
    assert stats.binomtest(flips, 400, 0.5).pvalue > 1e-9


def test_coins_do_not_depend_on_content() -> None:
    drawn = [
        generate_canaries(tiny_tokenizer(kind), n=40, family=family, seed=5, n_controls=100)
        for kind, family in (("bytelevel", "random"), ("metaspace", "random"), ("wordpiece", "random"))
    ]
    coins = [[canary.included for canary in made] for made in drawn]
    assert coins[0] == coins[1] == coins[2]
    assert len({made.canaries[0].secret for made in drawn}) == 3


def test_coins_are_independent_of_each_other_and_of_the_seed() -> None:
    pairs = [(coin(seed, "c-a-0000"), coin(seed, "c-a-0001")) for seed in range(2000)]
    table = [[sum(pair == (a, b) for pair in pairs) for b in (False, True)] for a in (False, True)]
    assert stats.chi2_contingency(table).pvalue > 1e-6


def test_inclusion_probabilities_at_the_ends() -> None:
    assert all(
        c.included
        for c in generate_canaries(tiny_tokenizer(), family="random", include_prob=1.0)
        if c.role == "candidate"
    )
    assert not any(c.included for c in generate_canaries(tiny_tokenizer(), family="random", include_prob=0.0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0},
        {"n_controls": -1},
        {"repetitions": ()},
        {"repetitions": (0,)},
        {"include_prob": 1.5},
        {"secret_len": 24},
        {"secret_len": 65},
        {"ppl_band": (500, 40)},
        {"sample_temperature": 0.0},
        {"profile": "huge"},
        {"family": "nothing"},
        {"model": "gpt2"},
    ],
)
def test_wrong_values_are_named(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        generate_canaries(tiny_tokenizer(), **{"family": "random", **wrong})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_no_tokenizer_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="tokenizer"):
        generate_canaries(None, family="random")  # type: ignore[arg-type]


def test_identity_tells_tokenizers_apart() -> None:
    plain, bos = tiny_tokenizer(), tiny_tokenizer(add_bos=True)
    assert plain.get_vocab() == bos.get_vocab()
    assert tokenizer_identity(plain).fingerprint != tokenizer_identity(bos).fingerprint
    made = generate_canaries(plain, family="random")
    check_tokenizer(made, tiny_tokenizer(pad=False, chat="plain"))  # neither padding nor template matters
    with pytest.raises(ManifestError, match="their ids differ"):
        check_tokenizer(made, bos)


def test_identity_does_not_change_when_a_trainer_sets_the_pad_token() -> None:
    tokenizer = tiny_tokenizer(pad=False)
    before = tokenizer_identity(tokenizer).fingerprint
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    assert tokenizer_identity(tokenizer).fingerprint == before


def test_no_secret_shows_in_reprs_or_notes() -> None:
    made = generate_canaries(tiny_tokenizer(), family="near_duplicate", n=6, n_controls=100)
    shown = repr(made.canaries) + " ".join(made.notes) + json.dumps([c.metadata for c in made])
    for canary in made:
        assert canary.secret.strip() not in shown
        assert all(variant.strip() not in shown for variant in canary.variants)
