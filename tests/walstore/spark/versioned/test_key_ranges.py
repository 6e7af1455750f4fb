"""Key ranges divide all keys."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.effort import first_seed
from uploader.versioned.batch_groups import Key, RowGroup
from walstore.spark.versioned.reading import cut, join


def group_of(low: Key, high: Key, rows: int = 10) -> RowGroup:
    return RowGroup(number=0, rows=rows, start=0, limit=1, low=low, high=high, times=None)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_all_keys_and_about_equal(seed: int) -> None:
    chance = random.Random(seed + first_seed("ranges of keys"))
    lows = [(chance.randrange(50),) for _ in range(chance.randrange(1, 40))]
    groups = [group_of(low, (low[0] + chance.randrange(9),)) for low in lows]
    ranges = cut(groups, 30)
    assert (ranges[0].low, ranges[-1].high) == ((), None)
    assert all(one.high == other.low for one, other in pairwise(ranges))
    assert all(one.low < other.low for one, other in pairwise(ranges))
    for one in groups:
        assert any(range_.may_have(one) for range_ in ranges)
    pieces = list(join(ranges, chance.randrange(1, 9)))
    assert [range_ for piece in pieces for range_ in piece] == ranges
    assert all(pieces)


def test_what_cannot_be_divided() -> None:
    assert len(cut([group_of((), ())] * 9, 1)) == 1
    assert len(cut([group_of((7,), (7,))] * 9, 1)) == 2, "before it there may be others"
    assert len(cut([], 1)) == 1
