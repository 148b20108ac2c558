"""What sequences begin with alike, against the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from memaudit.beginnings import carriers, common_length

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=5).map(tuple), min_size=1, max_size=12)


@given(SEQUENCES)
def test_each_is_carried_by_one_that_begins_with_it_and_no_carrier_begins_another(
    sequences: list[tuple[int, ...]],
) -> None:
    kept, position = carriers(sequences)
    assert all(kept[at][: len(ids)] == ids for ids, at in zip(sequences, position, strict=True))
    assert set(kept) <= set(sequences) and len(position) == len(sequences)
    for one in kept:
        assert sum(other[: len(one)] == one for other in kept) == 1


@given(SEQUENCES)
def test_the_common_length_is_the_largest_at_which_all_are_equal(sequences: list[tuple[int, ...]]) -> None:
    found = common_length(sequences)
    equal = [n for n in range(6) if len({ids[:n] for ids in sequences if len(ids) >= n}) == 1]
    assert found == max(n for n in equal if all(len(ids) >= n for ids in sequences))
