"""Cache: one interval of recent batches without gaps, bounded by bytes."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import frames
from tests.cases import case
from walstore.core.append.budgets import CacheBudget
from walstore.core.append.cache import MOST_BATCHES, Cache
from walstore.core.batches.cost import FRAME_COST_BYTES
from walstore.core.batches.framer import Framed


def batch(start: int, count: int, size: int = 10) -> Framed:
    data = bytearray(frames.build(frames.values_only(*[b"x" * size] * count, start=start)))
    return Framed(data, 0, start, start + count, data)


def cost_of(framed: Framed) -> int:
    return len(framed.plain) + FRAME_COST_BYTES


def covered(found) -> list[tuple[int, int]]:
    return [(part.start, part.limit) for part in found]


def filled(capacity_bytes: int = 1 << 20) -> Cache:
    cache = Cache(capacity_bytes)
    for start in (1, 11, 21):
        cache.insert(batch(start, 10))
    return cache


def test_it_returns_the_batches_from_exactly_a_position() -> None:
    cache = filled()
    assert covered(cache.read(1, 31, 1 << 20)) == [(1, 11), (11, 21), (21, 31)]
    assert covered(cache.read(11, 31, 1 << 20)) == [(11, 21), (21, 31)]
    assert covered(cache.read(15, 31, 1 << 20)) == [(15, 21), (21, 31)]
    assert covered(cache.read(15, 17, 1 << 20)) == [(15, 17)]
    assert covered(cache.read(5, 21, 1 << 20)) == [(5, 11), (11, 21)]
    assert cache.hits == 5


def test_it_returns_at_least_one_batch_and_about_as_much_as_asked() -> None:
    cache = filled()
    size = len(batch(1, 10).plain)
    assert covered(cache.read(1, 31, 1)) == [(1, 11)]
    assert covered(cache.read(1, 31, 2 * size)) == [(1, 11), (11, 21)]
    assert covered(cache.read(1, 31, 3 * size - 1)) == [(1, 11), (11, 21)]


def test_what_it_does_not_hold_it_does_not_return() -> None:
    cache = Cache(1 << 20)
    assert cache.read(1, 10, 100) == []
    assert cache.start is None
    cache.insert(batch(11, 10))
    assert cache.read(10, 21, 100) == []
    assert cache.read(21, 30, 100) == []
    assert cache.hits == 0


def test_the_oldest_go_first_and_the_size_stays_within_the_capacity() -> None:
    size = cost_of(batch(1, 10))
    cache = filled(2 * size)
    assert cache.start == 11
    assert cache.size_bytes == 2 * size
    assert cache.evictions == 1
    assert cache.read(1, 31, 1000) == []
    assert covered(cache.read(11, 31, 1 << 20)) == [(11, 21), (21, 31)]


def test_a_batch_larger_than_the_capacity_empties_it_since_a_gap_would_be_worse() -> None:
    cache = filled(10_000)
    cache.insert(batch(31, 10, size=1000))
    assert (cache.start, cache.size_bytes) == (None, 0)
    cache.insert(batch(41, 10))
    assert covered(cache.read(41, 51, 1000)) == [(41, 51)]
    assert cache.read(31, 51, 1000) == []


def test_it_returns_only_so_many_batches_at_once() -> None:
    cache = Cache(1 << 30)
    for start in range(1, MOST_BATCHES + 3):
        cache.insert(batch(start, 1))
    assert covered(cache.read(1, 1 << 40, 1 << 30))[-1] == (MOST_BATCHES, MOST_BATCHES + 1)
    assert covered(cache.read(3, 1 << 40, 1 << 30))[-1] == (MOST_BATCHES + 2, MOST_BATCHES + 3)


def test_what_readers_decode_does_not_stay_in_the_cache() -> None:
    """It would not be counted, and takes more than the frame itself."""
    cache = filled()
    for _ in range(2):
        for part in cache.read(1, 31, 1 << 20):
            assert not part.has_decoded_values
            assert part.values is part.values, "a reader decodes once"
            assert part.slice(part.start, part.limit - 1).has_decoded_values


def test_no_capacity_keeps_nothing() -> None:
    cache = filled(0)
    assert cache.start is None
    assert cache.evictions == 0


@pytest.mark.parametrize("capacity", [0, 400, 3000, 20_000])
@given(sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 300)), max_size=20))
def test_it_is_always_one_interval_that_ends_at_the_newest(capacity, sizes) -> None:
    cache = Cache(capacity)
    start = 1
    for count, size in sizes:
        cache.insert(batch(start, count, size))
        start += count
        assert cache.size_bytes <= capacity
        if cache.start is not None:
            found = cache.read(cache.start, start, 1 << 30)
            assert found[-1].limit == start
            assert all(a.limit == b.start for a, b in pairwise(found))


def test_a_shared_budget_evicts_from_the_log_used_longest_ago() -> None:
    size = cost_of(batch(1, 10))
    budget = CacheBudget(4 * size)
    first, second, third = (Cache(3 * size, budget) for _ in range(3))
    for start in (1, 11, 21, 31):  # the last of them evicts by its own capacity
        first.insert(batch(start, 10))
    second.insert(batch(1, 10))
    assert (first.start, second.start, budget.size_bytes) == (11, 1, 4 * size)
    assert first.read(11, 21, 1)
    third.insert(batch(1, 10))
    assert (first.start, second.start, third.start) == (11, None, 1)
    third.insert(batch(11, 10))
    assert (first.start, first.evictions, third.start) == (21, 2, 1)
    first.clear()
    assert (first.size_bytes, budget.size_bytes) == (0, 2 * size)
    second.insert(batch(11, 10))
    assert covered(second.read(11, 21, 1)) == [(11, 21)]


def test_what_it_holds_is_not_visited_by_the_garbage_collector() -> None:
    """A full collection stops all threads for as long as it visits objects."""
    cache = Cache(1 << 30)
    gc.collect()
    before = len(gc.get_objects())
    for start in range(1, 1001):
        cache.insert(batch(start, 1, size=20))
    assert len(gc.get_objects()) - before < 10


def test_short_records_that_were_committed_alone_take_less_than_three_times_their_frames() -> None:
    cache = Cache(1 << 30)
    gc.collect()
    tracemalloc.start()
    for start in range(1, 3001):
        cache.insert(batch(start, 1, size=20))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held <= 3 * 3000 * len(batch(1, 1, size=20).plain)


def test_what_it_counts_is_what_its_frames_take_in_memory() -> None:
    for rows, size in ((1, 20), (100, 20), (10, 3000)):
        cache = Cache(1 << 30)
        gc.collect()
        tracemalloc.start()
        for at in range(300):
            cache.insert(batch(1 + at * rows, rows, size=size))
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        with case(rows, size):
            assert 0.5 < cache.size_bytes / held < 2
