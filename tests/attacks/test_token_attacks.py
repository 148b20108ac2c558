"""Attacks that are arithmetic on one text's signals, against the peers' own arithmetic."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
import pytest

from memaudit.attacks import View, make
from memaudit.attacks.ez import EZ
from memaudit.signals import TokenSignals
from tests.attacks.cases import view_of

RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0)


def test_loss_and_zlib(case: dict[str, Any]) -> None:
    view = view_of(case)
    assert make("loss").score(view) == pytest.approx(case["scores"]["fastmia.loss"], rel=1e-12, abs=1e-12)
    assert make("zlib").score(view) == pytest.approx(case["scores"]["fastmia.zlib"], rel=1e-12, abs=1e-12)
    assert len(zlib.compress(case["text"].encode())) == case["scores"]["zlib_len"]


@pytest.mark.parametrize("ratio", RATIOS)
def test_mink_with_the_floor_of_one_token(case: dict[str, Any], ratio: float) -> None:
    score = make("mink", ratio=ratio).score(view_of(case))
    assert score == pytest.approx(case["scores"][f"fastmia.mink_{ratio}"], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("ratio", RATIOS)
def test_minkpp_equals_the_papers_code_wherever_that_is_defined(case: dict[str, Any], ratio: float) -> None:
    score = make("minkpp", ratio=ratio).score(view_of(case))
    paper = case["scores"]["zjysteven"][f"mink++_{ratio}"]
    if paper is not None:
        assert score == pytest.approx(paper, rel=1e-9, abs=1e-9)
    if (clamped := case["scores"].get(f"openunlearning.mink++_{ratio}(sign:-,var>=1e-6)")) is not None:
        assert score == pytest.approx(-clamped, rel=1e-5, abs=1e-5)


def test_ref_and_ratio(case: dict[str, Any]) -> None:
    view = view_of(case)
    assert make("ref").score(view) == pytest.approx(case["scores"]["ref_diff"], rel=1e-12, abs=1e-12)
    # The peer's ratio is -L/(Lref + 1e-12) on log-probabilities: target over reference. Ours is its inverse.
    peer = case["scores"]["ref_ratio(-L/(Lref+1e-12))"]
    if peer != 0:
        assert make("ratio").score(view) == pytest.approx(-1 / peer, rel=1e-9)


def test_ref_minkpp_chooses_positions_in_each_model(case: dict[str, Any]) -> None:
    view = view_of(case)
    own, other = view.target["text"], view.reference["text"]
    k = max(1, int(0.2 * len(own)))
    z = np.sort(np.where(own.std > 0, (own.logprob - own.mean) / np.where(own.std > 0, own.std, 1), 0))
    z_ref = np.sort(other.logprob + 2.0)
    assert make("ref_minkpp").score(view) == pytest.approx(z[:k].mean() - z_ref[:k].mean(), rel=1e-9)


def test_wbc(case: dict[str, Any]) -> None:
    view = view_of(case)
    paper = case["scores"]["wbc.paper[2,3,4,6,9,13,18,25,32,40]"]
    branch = case["scores"]["wbc.branch[1,5,10,20]"]
    assert make("wbc").score(view) == pytest.approx(paper, rel=1e-12)
    assert make("wbc", windows=[1, 5, 10, 20]).score(view) == pytest.approx(branch, rel=1e-12)


def test_gapk(case: dict[str, Any]) -> None:
    score = make("gapk").score(view_of(case))
    assert score == pytest.approx(case["scores"]["gapk_0.2_w3"], rel=1e-9, abs=1e-9)


def test_ez_is_the_log_of_the_published_ratio_where_that_exists(case: dict[str, Any]) -> None:
    published = case["scores"]["ez(no bos mask)"]
    if published > 0:
        assert EZ().score(view_of(case)) == pytest.approx(math.log(published), abs=1e-4)


def two(target: list[float], reference: list[float], hits: list[bool]) -> View:
    n = len(target)

    def signals(values: list[float]) -> TokenSignals:
        return TokenSignals.from_lists(
            token_ids=list(range(n)),
            logprob=values,
            mean=[-1.0] * n,
            std=[1.0] * n,
            top1_logprob=[-0.1] * n,
            top1_id=[i if hit else n + 1 for i, hit in enumerate(hits)],
            rank=[0] * n,
        )

    return View(id="x", target={"text": signals(target)}, reference={"text": signals(reference)})


def test_ez_ranks_the_most_memorised_texts_highest() -> None:
    unmoved = EZ().score(two([-3.0, -3.1, -2.0], [-2.5, -3.6, -2.0], [False] * 3))
    no_loss = EZ().score(two([-1.0, -1.5, -0.1], [-2.5, -3.6, -2.0], [False, False, True]))
    no_error = EZ().score(two([-0.01, -0.01, -0.01], [-2.5, -3.6, -2.0], [True] * 3))
    assert unmoved == pytest.approx(0.0, abs=1e-5)
    assert no_loss > 10 and no_error > 10


def test_surp_by_hand() -> None:
    logprob = [-0.1, -6.0, -5.0, -0.2, -0.3, -4.0, -0.4, -0.5, -0.6, -0.7]
    entropy = [0.5, 1.0, 3.0, 0.5, 0.5, 0.2, 0.5, 0.5, 0.5, 0.5]
    n = len(logprob)
    one = TokenSignals.from_lists(
        token_ids=[0] * n, logprob=logprob, mean=[-e for e in entropy], std=[1.0] * n,
        top1_logprob=[-0.1] * n, top1_id=[1] * n, rank=[1] * n,
    )  # fmt: skip
    view = View(id="x", target={"text": one})
    # The lowest 20% are -6 and -5; only the first has entropy below 2.
    assert make("surp").score(view) == pytest.approx(-6.0)
    # The lowest 30% are -6, -5 and -4; below 2 nats: -6 and -4.
    assert make("surp", percent=30).score(view) == pytest.approx(-5.0)
    # Nothing is certain enough: the surest of the improbable tokens stands for them.
    assert make("surp", percent=30, max_entropy=0.1).score(view) == pytest.approx(-4.0)


def test_no_spread_gives_zero_not_nan() -> None:
    one = TokenSignals.from_lists(
        token_ids=[0, 0], logprob=[-2.0, -2.0], mean=[-2.0, -2.0], std=[0.0, 0.0],
        top1_logprob=[-2.0, -2.0], top1_id=[0, 0], rank=[0, 0],
    )  # fmt: skip
    view = View(id="x", target={"text": one}, reference={"text": one})
    for name in ("minkpp", "ref_minkpp", "gapk", "ref", "ez"):
        assert make(name).score(view) == 0.0
    assert make("ratio").score(view) == 1.0
    assert make("wbc").score(view) == 0.0
