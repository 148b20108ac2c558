"""The plan of forwards: fixed before the first, equal over ranks, complete."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memaudit.errors import ConfigurationError
from memaudit.probes import Probe, plan


@st.composite
def probe_lists(draw: st.DrawFn) -> list[Probe]:
    probes = []
    for index in range(draw(st.integers(0, 25))):
        length = draw(st.integers(2, 12))
        ids = tuple(draw(st.lists(st.integers(0, 3), min_size=length, max_size=length)))
        prefix = draw(st.sampled_from([(), (1, 2), (3,)]))
        start = draw(st.integers(0 if prefix else 1, length - 1))
        stop = draw(st.integers(start + 1, length))
        probes.append(Probe(f"p{index}", ids, (start, stop), prefix))
    return probes


@settings(max_examples=200, deadline=None)
@given(probe_lists(), st.integers(1, 5), st.booleans(), st.integers(1, 8), st.integers(4, 40))
def test_every_distinct_probe_is_planned_once_within_the_limits(
    probes: list[Probe], ranks: int, lockstep: bool, size: int, tokens: int
) -> None:
    result = plan(probes, ranks=ranks, lockstep=lockstep, max_batch_size=size, max_batch_tokens=tokens)
    planned = [p.key for rank in result.batches for batch in rank for p in batch.probes]
    assert sorted(planned) == sorted({p.key for p in probes})
    assert result.requested == len(probes)
    for rank in result.batches:
        for batch in rank:
            assert len(batch.probes) <= size
            assert batch.tokens <= tokens or len(batch.probes) == 1
            assert len({p.prefix_ids for p in batch.probes}) <= 1
    if lockstep:
        assert len(set(result.forwards)) == 1
    assert not any(batch.is_dummy for rank in result.batches for batch in rank) or lockstep


@settings(max_examples=50, deadline=None)
@given(probe_lists(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_the_plan_does_not_depend_on_the_order_of_the_probes(
    probes: list[Probe], random: object, ranks: int
) -> None:
    shuffled = list(probes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    keys = [
        [[p.key for p in batch.probes] for rank in plan(order, ranks=ranks).batches for batch in rank]
        for order in (probes, shuffled)
    ]
    assert keys[0] == keys[1]


def test_rows_predict_the_targets() -> None:
    plain = Probe("a", (10, 11, 12, 13), (2, 4))
    assert [plain.input_ids[row + 1] for row in plain.rows] == [12, 13]
    prefixed = Probe("b", (10, 11), (0, 2), prefix_ids=(7, 8, 9))
    assert prefixed.input_ids == (9, 10, 11)
    assert [prefixed.input_ids[row + 1] for row in prefixed.rows] == [10, 11]


@pytest.mark.parametrize("span", [(0, 1), (1, 1), (2, 5), (3, 2)])
def test_a_span_that_nothing_predicts_or_that_lies_outside_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ConfigurationError, match="span"):
        Probe("a", (1, 2, 3), span)


def test_one_id_with_two_contents_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        plan([Probe("a", (1, 2), (1, 2)), Probe("a", (1, 3), (1, 2))])


def test_loads_are_balanced_by_tokens() -> None:
    probes = [Probe(str(i), tuple(range(2 + i % 60)), (1, 2)) for i in range(400)]
    loads = plan(probes, ranks=4, max_batch_size=8).tokens
    assert max(loads) <= 1.15 * min(loads)


def test_a_rank_forwards_each_prefix_once_however_many_batches_share_it() -> None:
    shared, other = tuple(range(50)), tuple(range(60, 80))
    probes = [Probe(f"a{i}", (i, 1, 2), (0, 3), shared) for i in range(10)]
    probes += [Probe(f"b{i}", (i, 1, 2), (0, 3), other) for i in range(3)]
    probes += [Probe(f"c{i}", (i, 1, 2), (1, 3)) for i in range(2)]
    result = plan(probes, max_batch_size=2)
    assert result.forwards == (5 + 2 + 1 + 2,)  # batches of each kind, and two prefixes
    assert result.prefix_tokens_saved == 49 * 9 + 19 * 2
    two = plan(probes, ranks=2, lockstep=True, max_batch_size=2)
    assert len(set(two.forwards)) == 1
    for rank in two.batches:
        kept = [batch.cached_prefix for batch in rank if batch.cached_prefix]
        assert kept == sorted(kept)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 2]), st.integers(0, 3), st.integers(1, 6), st.integers(2, 15)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 4),
    st.integers(1, 60),
)
def test_what_texts_begin_with_alike_is_forwarded_once_and_the_rows_lack_it(
    drawn: list[tuple[int, int, int, int]], ranks: int, share_from: int
) -> None:
    header = tuple(range(100, 112))
    probes = []
    for index, (template, variant, tail, start) in enumerate(drawn):
        own = (500 + variant, *range(tail))
        ids = (*header[: 12 - 2 * template], *own) if template else own
        if len(ids) > 1:
            begin = min(start, len(ids) - 1)
            probes.append(Probe(f"p{index}", ids, (begin, len(ids))))
    result = plan(probes, ranks=ranks, lockstep=True, max_batch_size=3, share_from=share_from)
    assert len(set(result.forwards)) == 1
    for rank in result.batches:
        for batch in rank:
            assert batch.skip == len(batch.cached_prefix)
            for probe in batch.probes:
                assert batch.cached_prefix + batch.ids_of(probe) == probe.token_ids
                ids = batch.ids_of(probe)
                predicted = [ids[row + 1] for row in batch.rows_of(probe)]
                assert predicted == list(probe.token_ids[probe.span[0] : probe.span[1]])
                assert batch.rows_of(probe).start >= 0
    planned = [p.key for rank in result.batches for batch in rank for p in batch.probes]
    assert sorted(planned) == sorted({p.key for p in probes})


def test_a_common_beginning_is_shared_where_it_pays_and_never_in_fixed_batches() -> None:
    header = tuple(range(20))
    probes = [Probe(f"a{i}", (*header, 50 + i, 1, 2), (21, 23)) for i in range(10)]
    probes.append(Probe("late", (*header, 90, 1, 2), (12, 23)))  # eleven tokens before its first target's row
    assert plan(probes, share_from=110).prefix_tokens_saved == 11 * 10
    assert plan(probes, share_from=111).prefix_tokens_saved == 0
    assert plan(probes, share_from=1, fixed_batches=True).prefix_tokens_saved == 0
    assert plan(probes).prefix_tokens_saved == 0
    early = Probe("early", (*header, 91), (3, 21))  # is left out, and costs the others nothing
    assert plan([*probes[:10], early], share_from=1).prefix_tokens_saved == 20 * 9
