"""extract_all on a regurgitating model, against transformers' own generation run to its end for every pair."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from memaudit.errors import AuditError, ConfigurationError
from memaudit.extraction import extract_all, prefix_tokens, tries_needed
from memaudit.extraction.decide import SLACK, compare
from memaudit.extraction.generated import Task, plan_rounds
from memaudit.extraction.probabilistic import suffix_logprob
from memaudit.strategies.replicated import SingleStrategy
from tests.extraction.conftest import (
    CONTEXT,
    SCHEMES,
    SECRET,
    Record,
    Regurgitator,
    greedy,
    make_records,
    overfit,
    score,
)

FRACTIONS = (0.25, 0.3, 0.5, 0.8)


def names_of(ids: Sequence[int]) -> str:
    """Return a text for token ids: each a short word, so that words and characters exist."""
    return "".join(f" {chr(97 + i % 26)}{chr(97 + i // 26)}{i}" for i in ids)


class Counting(SingleStrategy):
    """A strategy that notes what is asked of generate."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.asked: list[tuple[int, int]] = []

    def generate(self, input_ids: Sequence[Sequence[int]], **kwargs: Any) -> list[list[int]]:
        self.asked.append((len(input_ids), kwargs["max_new_tokens"]))
        return super().generate(input_ids, **kwargs)


@pytest.mark.parametrize("decode", [None, names_of], ids=["ids", "text"])
def test_every_verdict_equals_real_generation(regurgitator: Regurgitator, decode: Any) -> None:
    found = extract_all(
        regurgitator.records,
        regurgitator.signals,
        strategy=regurgitator.strategy,
        fractions=FRACTIONS,
        decode=decode,
        max_batch_size=5,
    )
    seen = set()
    for name, record in regurgitator.records.items():
        for fraction, result in zip(FRACTIONS, found.by_id[name].by_prefix, strict=True):
            cut = CONTEXT + prefix_tokens(SECRET, fraction)
            suffix = list(record.ids[cut:])
            output = greedy(regurgitator.model, record.ids[:cut], len(suffix) + SLACK)
            real = compare(suffix, output, decode=decode)
            assert result.verbatim is (output[: len(suffix)] == suffix)
            assert result.near_verbatim is real.near, (name, fraction)
            if result.bleu is not None:
                assert (result.bleu, result.edit_distance) == pytest.approx((real.bleu, real.edit_distance))
            seen.add((result.source, result.verbatim, result.near_verbatim))
    assert {("generated", False, False), ("teacher_forced", True, True)} <= seen
    assert any(near and not verbatim for _, verbatim, near in seen)
    counts = found.counts
    assert counts.verbatim + counts.decided + counts.generated + counts.not_run == counts.pairs == 24 * 4
    assert counts.not_run == 0 and found.unscorable == ()


def test_prefixes_that_share_their_continuation_share_a_generation(regurgitator: Regurgitator) -> None:
    strategy = Counting(regurgitator.model, regurgitator.model)
    found = extract_all(
        regurgitator.records, regurgitator.signals, strategy=strategy, fractions=(0.25, 0.26, 0.27, 0.3)
    )
    open_pairs = found.counts.generated
    assert open_pairs == 4 * found.counts.prompts  # all four fractions are four tokens
    assert sum(n for n, _ in strategy.asked) >= found.counts.prompts
    assert len(strategy.asked) == found.counts.calls


def test_what_cannot_match_any_more_is_given_up(regurgitator: Regurgitator) -> None:
    """Records the model never saw are not decoded to their end."""
    strategy = Counting(regurgitator.model, regurgitator.model)
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    hook = regurgitator.model.register_forward_hook(count)
    never = {name: regurgitator.records[name] for name in sorted(regurgitator.records)[16:]}
    found = extract_all(
        never, {name: regurgitator.signals[name] for name in never}, strategy=strategy, fractions=(0.25,)
    )
    assert found.counts.generated == found.counts.prompts == found.counts.given_up == 8
    assert len(strategy.asked) == 1 and steps < 12 + SLACK - 1
    hook.remove()
    assert not any(record.regurgitated for record in found.by_id.values())


def test_without_generation_open_verdicts_are_said_to_be_open(regurgitator: Regurgitator) -> None:
    found = extract_all(regurgitator.records, regurgitator.signals, strategy=None)
    switched_off = extract_all(
        regurgitator.records, regurgitator.signals, strategy=regurgitator.strategy, generate_open=False
    )
    assert found.to_dict() == switched_off.to_dict()
    open_results = [r for c in found.by_id.values() for r in c.by_prefix if r.source == "not_run"]
    assert len(open_results) == found.counts.not_run > 0
    assert all(r.near_verbatim is None and r.regurgitated is None for r in open_results)
    assert found.counts.calls == found.counts.prompts == 0


def test_the_checkpoints_own_generation_settings_change_nothing(regurgitator: Regurgitator) -> None:
    """A repetition penalty or banned tokens in generation_config are not the model's distribution."""
    plain = extract_all(regurgitator.records, regurgitator.signals, strategy=regurgitator.strategy)
    model = overfit(make_records())
    model.generation_config = GenerationConfig(
        repetition_penalty=5.0,
        no_repeat_ngram_size=1,
        do_sample=True,
        temperature=9.0,
        suppress_tokens=[5, 6, 7],
    )
    assert greedy(model, regurgitator.records["c-00"].ids[:8], 12) != list(
        regurgitator.records["c-00"].ids[8:]
    )
    again = extract_all(regurgitator.records, regurgitator.signals, strategy=SingleStrategy(model, model))
    assert again.to_dict() == plain.to_dict()


def test_generation_stops_where_the_text_ends(regurgitator: Regurgitator) -> None:
    """The model's own end token is obeyed: the output is cut there, as real decoding would."""
    model = overfit(make_records())
    record = regurgitator.records["c-20"]
    end = greedy(model, record.ids[:8], 3)[2]
    model.generation_config.eos_token_id = end
    strategy = SingleStrategy(model, model)
    found = extract_all({"c-20": record}, {"c-20": regurgitator.signals["c-20"]}, strategy=strategy)
    real = compare(record.ids[8:], greedy(model, record.ids[:8], 16)[:-1])
    first = found.by_id["c-20"].by_prefix[0]
    assert first.near_verbatim is real.near is False


def test_probabilities_are_those_of_each_prefix(regurgitator: Regurgitator) -> None:
    found = extract_all(
        regurgitator.records, regurgitator.signals, decodings=SCHEMES, ps=(0.5, 0.9), fractions=(0.25, 0.5)
    )
    for name, record in found.by_id.items():
        signals = regurgitator.signals[name]
        for scheme in SCHEMES:
            assert record.log_probability[scheme.name] == suffix_logprob(signals, scheme)
            for result, start in zip(record.by_prefix, (4, 8), strict=True):
                wanted = suffix_logprob(signals, scheme, start)
                assert result.log_probability[scheme.name] == wanted
                assert result.n_for_p[scheme.name] == (tries_needed(wanted, 0.5), tries_needed(wanted, 0.9))
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    truncated = [record for record in document["records"] if record["log_probability"]["t1-k5-p1"] is None]
    assert truncated and all(n["log10_n"] is None for n in truncated[0]["n_for_p"]["t1-k5-p1"])


def test_real_records_whose_span_opens_the_text() -> None:
    """A real record is all target: its first token has no signal, and prefixes count from the record's start."""
    records = make_records()
    model = overfit(records)
    strategy = SingleStrategy(model, model)
    whole = {name: Record(record.ids, (0, len(record.ids))) for name, record in records.items()}
    signals = score(strategy, {name: Record(r.ids, (1, len(r.ids))) for name, r in records.items()})
    found = extract_all(whole, signals, strategy=strategy, fractions=(0.25, 0.5))
    verbatim = 0
    for name, record in records.items():
        for given, result in zip((5, 10), found.by_id[name].by_prefix, strict=True):
            output = greedy(model, record.ids[:given], 20 - given)
            assert result.n_prefix_tokens == given
            assert result.verbatim is (output == list(record.ids[given:]))
            verbatim += result.verbatim
    assert 0 < verbatim < 48


def test_records_without_numbers_are_named(regurgitator: Regurgitator) -> None:
    signals = dict(regurgitator.signals)
    broken = signals["c-03"].logprob.copy()
    broken[2] = np.nan
    signals["c-03"] = replace(signals["c-03"], logprob=broken)
    found = extract_all(regurgitator.records, signals)
    assert found.unscorable == ("c-03",) and "c-03" not in found.by_id
    assert found.counts.pairs == 23 * 2


def test_what_does_not_belong_together_is_refused(regurgitator: Regurgitator) -> None:
    signals = dict(regurgitator.signals)
    with pytest.raises(ConfigurationError, match=r"1 ids have .* first c-05"):
        extract_all(regurgitator.records, {k: v for k, v in signals.items() if k != "c-05"})
    signals["c-05"] = signals["c-06"]
    with pytest.raises(ConfigurationError, match=r"c-05.*other tokens"):
        extract_all(regurgitator.records, signals)
    with pytest.raises(ConfigurationError, match="slack"):
        extract_all(regurgitator.records, regurgitator.signals, slack=0)


def test_no_secret_is_in_what_is_returned(regurgitator: Regurgitator) -> None:
    found = extract_all(
        regurgitator.records, regurgitator.signals, strategy=regurgitator.strategy, decode=names_of
    )
    text = repr(found) + json.dumps(found.to_dict())
    for record in regurgitator.records.values():
        secret = record.ids[CONTEXT:]
        assert str(list(secret))[1:-1] not in text and names_of(secret) not in text
        for start in range(len(secret) - 3):
            assert names_of(secret[start : start + 3]) not in text


def test_a_failing_generation_names_its_rank(regurgitator: Regurgitator) -> None:
    model = overfit(make_records(), steps=1)
    strategy = SingleStrategy(model, model)

    def broken(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("device lost")

    model.forward = broken
    with pytest.raises(AuditError, match=r"rank 0 \(RuntimeError: device lost\)"):
        extract_all(regurgitator.records, regurgitator.signals, strategy=strategy)


def test_a_record_that_fills_the_position_table_is_not_decoded_beyond_it() -> None:
    records = make_records()
    model = overfit(records)
    model.config.max_position_embeddings = CONTEXT + SECRET
    strategy = Counting(model, model)
    found = extract_all(records, score(SingleStrategy(model, model), records), strategy=strategy)
    assert found.counts.generated > 0
    rounds = plan_rounds(
        [Task("a", (1,) * 10, 9), Task("b", (1,) * 4, 9), Task("c", (1,) * 12, 3)], ranks=1, max_positions=12
    )
    for one in rounds:
        for task in one.by_rank[0]:
            assert len(task.prompt) + one.max_new_tokens <= 12


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_rounds_deal_everything_once_and_alike(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    tasks = [Task(str(i), tuple(range(rng.integers(1, 9))), int(rng.integers(1, 20))) for i in range(23)]
    rounds = plan_rounds(tasks, ranks=ranks, max_batch_size=4)
    again = plan_rounds(tasks[::-1], ranks=ranks, max_batch_size=4)
    assert rounds == again
    dealt = [task for one in rounds for share in one.by_rank for task in share]
    assert sorted(task.key for task in dealt) == sorted(task.key for task in tasks)
    assert all(len(one.by_rank) == ranks for one in rounds)
    assert all(len(share) <= 4 for one in rounds for share in one.by_rank)
    short = plan_rounds(tasks, ranks=ranks, max_batch_tokens=60)
    for one in short:
        for share in one.by_rank:
            padded = len(share) * (max((len(t.prompt) for t in share), default=0) + one.max_new_tokens)
            assert len(share) <= 1 or padded <= 60
    assert sum(len(share) for one in short for share in one.by_rank) == len(tasks)
    assert all(task.max_new_tokens <= one.max_new_tokens for one in rounds for s in one.by_rank for task in s)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_prompts_of_one_record_go_to_one_rank_in_one_round(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    tasks = []
    for index in range(17):
        ids = tuple(map(int, rng.integers(0, 50, size=24)))
        for miss in (6, 12, 13):  # a wrong token after so many true ones
            tasks.append(Task(f"{index}@{miss}", (*ids[:miss], 99), 12))
    rounds = plan_rounds(tasks, ranks=ranks, max_batch_size=10)
    for share in (share for one in rounds for share in one.by_rank):
        names = [task.key.split("@")[0] for task in share]
        assert all(names.count(name) == 3 for name in names)
    assert len(rounds) == -(-17 // (3 * ranks))  # three records a rank and round
