"""(n, p)-discoverable extraction: golden values, mpmath-free exact fractions, and real sampling."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from memaudit.errors import ConfigurationError, SignalStoreError
from memaudit.extraction.probabilistic import (
    extraction_curve,
    log1mexp,
    probability_within,
    scheme_logprobs,
    suffix_logprob,
    tries_needed,
)
from memaudit.signals import Decoding, TokenSignals
from memaudit.token_statistics import token_statistics
from tests.conftest import shared_path
from tests.extraction.conftest import CONTEXT, SCHEMES, Regurgitator


def make(logprob: list[float], **decodings: list[float]) -> TokenSignals:
    """Return signals of which only log-probabilities matter."""
    n = len(logprob)
    return TokenSignals.from_lists(
        token_ids=range(n),
        top1_id=range(n),
        rank=[0] * n,
        logprob=logprob,
        mean=[-1.0] * n,
        std=[1.0] * n,
        top1_logprob=logprob,
        decodings=decodings,
    )


def test_golden_tries_and_probabilities() -> None:
    golden = json.loads(shared_path("golden", "np_extraction.json").read_text())
    checked = 0
    for case in golden["cases"] + golden["edge"]:
        log_probability = float(case["seq_logprob"])
        for p, wanted in case["n_for_p"].items():
            tries = tries_needed(log_probability, float(p))
            if wanted == "inf":  # the file's floats overflow; the right logarithm is known in closed form
                assert tries.n is None
                right = math.log10(-math.log1p(-float(p))) - log_probability / math.log(10)
                assert tries.log10_n == (None if right == math.inf else pytest.approx(right, rel=1e-12))
            elif wanted < 1e15:
                assert tries.n == wanted
            else:
                assert tries.n == pytest.approx(wanted, rel=1e-12)
            checked += 1
        for n, wanted in case["p_for_n"].items():
            assert float(probability_within(log_probability, float(n))) == pytest.approx(wanted, rel=1e-9)
            checked += 1
    assert checked > 250


def test_golden_schemes_from_logits() -> None:
    """The recipe of each case, reduced by the product's own forward arithmetic, gives the file's log-probability."""
    golden = json.loads(shared_path("golden", "np_extraction.json").read_text())
    for case in golden["cases"]:
        spec, scheme = case["spec"], case["scheme"]
        rng = np.random.default_rng(spec["seed"])
        logits = rng.standard_normal((spec["L"], spec["V"]))
        target = rng.integers(0, spec["V"], spec["L"])
        logits[np.arange(spec["L"]), target] += spec["boost"]
        decoding = Decoding(scheme.get("T", 1.0), scheme.get("top_k", 0), scheme.get("top_p", 1.0))
        rows = token_statistics(torch.tensor(logits), torch.tensor(target), decodings=[decoding])
        columns = {name: rows[name].numpy() for name in rows if not name.startswith("decoding:")}
        signals = TokenSignals.from_lists(
            **columns, decodings={decoding.name: rows[f"decoding:{decoding.name}"].numpy()}
        )
        wanted = float(case["seq_logprob"])
        assert suffix_logprob(signals, decoding) == pytest.approx(wanted, abs=2e-5 * spec["L"])
        assert bool(signals.greedy_hit.all()) is case["greedy_extractable"]


@pytest.mark.parametrize("p", [Fraction(1, 10), Fraction(1, 2), Fraction(9, 10)])
@pytest.mark.parametrize("probability", [Fraction(1, 3), Fraction(1, 7), Fraction(3, 4), Fraction(1, 1000)])
def test_the_number_of_tries_is_the_least(probability: Fraction, p: Fraction) -> None:
    """In exact fractions: n tries reach p, and n - 1 do not."""
    n = tries_needed(math.log(probability), float(p)).n
    assert n is not None
    assert 1 - (1 - probability) ** n >= p
    assert n == 1 or 1 - (1 - probability) ** (n - 1) < p


def test_one_try_where_the_probability_is_p_itself() -> None:
    for p in (0.1, 0.25, 0.3, 0.5, 0.7, 0.9, 0.99):
        assert tries_needed(math.log(p), p).n == 1


def test_logarithms_hold_where_floats_end() -> None:
    assert float(log1mexp(-1e-300)) == pytest.approx(math.log(1e-300))
    assert float(probability_within(-40.0, 1)) == pytest.approx(math.exp(-40.0), rel=1e-12)
    assert 1 - (1 - math.exp(-40.0)) ** 1 == 0.0  # what a plain float answers
    tries = tries_needed(-5000.0, 0.5)
    assert tries.n is None and tries.log10_n == pytest.approx(math.log10(math.log(2)) + 5000 / math.log(10))
    either_side = [tries_needed(x, 0.5).log10_n for x in (-699.999, -700.001)]
    assert either_side[1] - either_side[0] == pytest.approx(0.002 / math.log(10), abs=1e-9)


def test_impossible_and_certain_suffixes() -> None:
    assert tries_needed(-math.inf, 0.5) == tries_needed(-math.inf, 0.5).__class__(0.5, None, None)
    assert tries_needed(0.0, 0.999).n == 1
    assert float(probability_within(-math.inf, 1e9)) == 0.0
    assert float(probability_within(0.0, 0)) == 0.0 and float(probability_within(0.0, 1)) == 1.0


def test_a_truncated_token_makes_the_suffix_impossible() -> None:
    signals = make([-1.0, -2.0, -0.5], **{"t1-k5-p1": [-0.5, -math.inf, -0.1]})
    top5 = Decoding(top_k=5)
    assert suffix_logprob(signals, top5) == -math.inf
    assert suffix_logprob(signals, top5, start=2) == pytest.approx(-0.1)
    assert suffix_logprob(signals, Decoding()) == pytest.approx(-3.5)
    assert scheme_logprobs(signals, Decoding()) is signals.logprob


def test_what_cannot_be_answered_is_refused() -> None:
    signals = make([-1.0])
    with pytest.raises(SignalStoreError, match=r"t0\.5-k0-p1.*score again"):
        suffix_logprob(signals, Decoding(temperature=0.5))
    with pytest.raises(ConfigurationError, match="blank suffix"):
        suffix_logprob(signals, Decoding(), start=1)
    for p in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigurationError):
            tries_needed(-1.0, p)
    with pytest.raises(ConfigurationError):
        tries_needed(math.nan, 0.5)
    with pytest.raises(ConfigurationError):
        extraction_curve([])
    with pytest.raises(ConfigurationError):
        probability_within(-1.0, -1)


def test_curves_agree_with_the_tries_of_each_record() -> None:
    logs = [-0.01, -1.0, -3.0, -10.0, -60.0, -1000.0, -math.inf]
    n, p = [1, 2, 10, 1e3, 1e6, 1e30], [0.1, 0.5, 0.9]
    curve = extraction_curve(logs, n=n, p=p)
    for row, level in enumerate(p):
        for column, samples in enumerate(n):
            needed = [tries_needed(x, level).log10_n for x in logs]
            share = sum(x is not None and x <= math.log10(samples) + 1e-12 for x in needed) / len(logs)
            assert curve.share[row, column] == pytest.approx(share)
    assert (np.diff(curve.share, axis=1) >= 0).all() and (np.diff(curve.expected) >= 0).all()
    assert curve.expected[0] == pytest.approx(np.exp(logs).mean())
    assert json.loads(json.dumps(curve.to_dict(), allow_nan=False))["n_records"] == 7


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_probability_equals_the_frequency_over_20000_samples(
    regurgitator: Regurgitator, scheme: Decoding
) -> None:
    """transformers' own sampling emits the suffix as often as the signals say, and in n tries as (n, p) says."""
    length, samples, tries = 3, 20_000, 8
    name, start = _middling(regurgitator, scheme, length)
    record = regurgitator.records[name]
    prompt = record.ids[: CONTEXT + start]
    wanted = torch.tensor(record.ids[CONTEXT + start : CONTEXT + start + length])
    log_probability = suffix_logprob(regurgitator.signals[name].slice(start, start + length), scheme)
    hits = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(20_000)
        for _ in range(samples // 2000):
            output = regurgitator.model.generate(
                torch.tensor([prompt] * 2000),
                do_sample=True,
                temperature=scheme.temperature,
                top_k=scheme.top_k,
                top_p=scheme.top_p,
                max_new_tokens=length,
                min_new_tokens=length,
                pad_token_id=0,
            )
            hits.append((output[:, len(prompt) :] == wanted).all(1))
    hit = torch.cat(hits).numpy()
    once = binomtest(int(hit.sum()), samples).proportion_ci(0.999)
    assert once.low <= math.exp(log_probability) <= once.high
    groups = hit.reshape(-1, tries).any(1)
    within = binomtest(int(groups.sum()), len(groups)).proportion_ci(0.999)
    assert within.low <= float(probability_within(log_probability, tries)) <= within.high


def _middling(regurgitator: Regurgitator, scheme: Decoding, length: int) -> tuple[str, int]:
    """Return the record and position whose suffix comes nearest to one chance in ten under the scheme."""
    best = min(
        (
            (abs(suffix_logprob(signals.slice(start, start + length), scheme) - math.log(0.1)), name, start)
            for name, signals in regurgitator.signals.items()
            for start in range(len(signals) - length)
        )
    )
    assert best[0] < 1.0  # between 1 in 27 and 1 in 4: a frequency that 20,000 samples can tell apart
    return best[1], best[2]
