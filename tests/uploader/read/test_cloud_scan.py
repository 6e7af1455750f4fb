"""Scanning a log by whole fragments, with limits. The cases of wal3's reader are among these."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cloud import cloud_log
from tests.local import turns
from tests.uploader.documents import snapshot_of
from uploader.format import layout
from uploader.format.entries import Fragment
from uploader.format.manifest import Manifest
from uploader.format.setsum import Setsum
from uploader.read.scan_limits import within_limits
from uploader.root.tree import overlapping
from uploader.stores import MemoryStore
from uploader.testing import FaultyStore
from uploader.testing.faults import fail, hang, timeout
from walstore.errors import (
    InvalidSettingsError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    StorageUnavailableError,
    WalClosedError,
)
from walstore.testing import ManualClock


def entries(*bounds: int, sizes: Sequence[int] = ()) -> tuple[Fragment, ...]:
    """Return the entries of fragments between these offsets, of 1000 bytes unless told."""
    return tuple(
        Fragment.numbered(
            at,
            start=start,
            limit=limit,
            num_bytes=sizes[at - 1] if sizes else 1000,
            setsum=Setsum.of_items([b"%d" % at]),
        )
        for at, (start, limit) in enumerate(pairwise(bounds), 1)
    )


async def log_of(*fragments: Fragment, snapshots: int = 0) -> FaultyStore:
    """Store the manifest that names them, the first ones in snapshots of two; and no fragment."""
    store = MemoryStore()
    total = Setsum.total(each.setsum for each in fragments)
    first = fragments[0].start if fragments else None
    made = [snapshot_of(fragments[2 * at : 2 * at + 2]) for at in range(snapshots)]
    for snapshot in made:
        await store.put_if_absent(snapshot.path, snapshot.serialise())
    manifest = dataclasses.replace(
        Manifest.initial("w"),
        setsum=total,
        acc_bytes=sum(each.num_bytes for each in fragments),
        snapshots=tuple(snapshot.pointer() for snapshot in made),
        fragments=fragments[2 * snapshots :],
        initial_offset=None if first in {None, 1} else first,
    )
    manifest.scrub()
    await store.put_if_absent(layout.MANIFEST, manifest.serialise())
    return FaultyStore(store)


async def scan(store: FaultyStore, start: int, **limits: float) -> list[int]:
    """Return the numbers of the fragments that a scan yields."""
    async with cloud_log(store) as log:
        return [fragment.seq_no async for fragment in log.scan(start, **limits)]


# -- as wal3 does it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_records", "numbers"), [(100, [1, 2, 3]), (76, [1, 2, 3]), (75, [1, 2]), (74, [1, 2])]
)
async def test_records_are_counted_from_the_start_of_the_scan(max_records, numbers) -> None:
    """Not from the start of the first fragment: 25 of its records come before."""
    store = await log_of(*entries(100, 150, 200, 250))
    assert await scan(store, 125, max_records=max_records) == numbers


@pytest.mark.parametrize(("max_records", "numbers"), [(75, [1, 2]), (52, [1, 2]), (50, [1])])
async def test_records_based_pruning(max_records, numbers) -> None:
    """75 records at offset 50 need both fragments: the first one has only 51 of them."""
    store = await log_of(*entries(1, 101, 201))
    assert await scan(store, 50, max_records=max_records) == numbers


@pytest.mark.parametrize(
    ("start", "limits", "numbers"),
    [
        (100, {"max_records": 100}, [1, 2]),
        (100, {"max_records": 101}, [1, 2]),
        (100, {"max_records": 102}, [1, 2]),
        (100, {"max_records": 1}, [1]),
        (200, {"max_records": 1}, [2]),
        (201, {"max_records": 1}, []),
        (50, {}, [1, 2]),
        (1, {"max_records": (1 << 64) - 1}, [1, 2]),
    ],
)
async def test_at_the_bounds_of_a_manifest(start, limits, numbers) -> None:
    """wal3 reads another manifest or more of it where these touch its end; here the answer is exact."""
    store = await log_of(*entries(1, 101, 201))
    assert await scan(store, start, **limits) == numbers


async def test_off_by_one_in_the_manifest() -> None:
    """Eleven fragments of a hundred: a scan that begins at a boundary leaves out the one before it."""
    store = await log_of(*entries(*range(1, 1202, 100)))
    for at in range(11):
        assert (await scan(store, 100 * at + 1, max_records=100)) == [at + 1]
        assert (await scan(store, 100 * at + 100, max_records=100)) == [at + 1, at + 2]
        assert (await scan(store, 100 * at + 1, max_records=101)) == [at + 1, at + 2]
    assert await scan(store, 1101, max_records=100) == [12]


@pytest.mark.parametrize(
    ("start", "limit", "is_inside"),
    [
        *((12, 18, True), (1, 30, True), (15, 25, True), (5, 11, True), (10, 20, True)),
        *((25, 35, False), (21, 30, False), (20, 30, False), (1, 10, False), (19, 20, True)),
    ],
)
def test_ranges_overlap(start, limit, is_inside) -> None:
    """Half-open ones: those that only touch do not."""
    assert bool(overlapping(entries(10, 20), start, limit)) is is_inside


async def test_a_start_near_the_end_of_numbers() -> None:
    store = await log_of(*entries(1, 101, 201))
    with pytest.raises(OffsetNotWrittenError):
        await scan(store, (1 << 64) - 11, max_records=20)


# -- limits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "numbers"),
    [
        ({"max_fragments": 1}, [1]),
        ({"max_fragments": 2}, [1, 2]),
        ({"max_fragments": 99}, [1, 2, 3, 4]),
        ({"max_bytes": 1}, [1]),
        ({"max_bytes": 1999}, [1]),
        ({"max_bytes": 2000}, [1, 2]),
        ({"max_bytes": 3999}, [1, 2, 3]),
        ({"max_bytes": 4000}, [1, 2, 3, 4]),
        ({"max_records": 10}, [1]),
        ({"max_records": 11}, [1, 2]),
        ({"max_fragments": 3, "max_bytes": 2500, "max_records": 1000}, [1, 2]),
        ({"max_fragments": 3, "max_bytes": 25000, "max_records": 1}, [1]),
    ],
)
async def test_limits(limits, numbers) -> None:
    store = await log_of(*entries(1, 11, 21, 31, 41))
    assert await scan(store, 1, **limits) == numbers


async def test_there_is_always_one() -> None:
    """However large: a reader that is stuck at it would never go on."""
    store = await log_of(*entries(1, 1001, 2001, sizes=[10**9, 10**9]))
    assert await scan(store, 1000, max_bytes=1, max_records=1, max_fragments=1) == [1]
    assert await scan(store, 1001, max_bytes=1) == [2]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=12),
    st.data(),
    st.integers(1, 200),
    st.integers(1, 12),
)
async def test_a_scan_that_is_continued_leaves_nothing_out(lengths, data, records, count) -> None:
    bounds = [1]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    whole = entries(*bounds)
    position = start = data.draw(st.integers(1, bounds[-1] - 1))
    seen: list[Fragment] = []
    while position < bounds[-1]:

        async def fragments(at=position):
            for each in overlapping(whole, at, bounds[-1]):
                yield each

        found = [
            each
            async for each in within_limits(
                fragments(), position, max_records=records, max_fragments=count
            )
        ]
        assert found[0].start <= position < found[0].limit
        assert len(found) <= count
        # Enough, unless another limit stopped it; and without the last one it would not have been.
        if len(found) < count and found[-1].limit < bounds[-1]:
            assert found[-1].limit - position >= records
        assert found[-1].start - position < records
        seen += found
        position = found[-1].limit
    assert tuple(seen) == tuple(overlapping(whole, start, bounds[-1]))


# -- for so long -----------------------------------------------------------------------------


@pytest.mark.parametrize("caller_seconds", [0.0, 4.0])
async def test_it_ends_in_time(clock: ManualClock, caller_seconds) -> None:
    """Though the store does not answer, or its caller takes the time; what came before is not lost."""
    store = await log_of(*entries(*range(1, 12)), snapshots=3)
    never, asked = asyncio.Event(), asyncio.Event()
    store.on("get", hang(never, asked), key_prefix="snapshot/", nth=2)
    found: list[int] = []
    async with cloud_log(store, clock) as log:

        async def scanning() -> None:
            async for fragment in log.scan(1, max_wait_seconds=5.0):
                found.append(fragment.seq_no)
                clock.advance(caller_seconds)

        task = asyncio.create_task(scanning())
        if caller_seconds == 0:
            await asked.wait()
            await clock.wait_for_sleepers()
            clock.advance(4.9)
            await turns()
            assert not task.done()
            clock.advance(0.2)
        await task
        assert found == [1, 2]
        never.set()
        rest = [fragment.seq_no async for fragment in log.scan(3)]  # from a log that is as before
        assert rest == list(range(3, 11))
    assert clock.sleepers == 0


async def test_a_scan_that_is_continued_comes_to_the_end(clock: ManualClock) -> None:
    """However little time there is, as long as something comes in it."""
    store = await log_of(*entries(*range(1, 12)), snapshots=3)
    position, found = 1, []
    async with cloud_log(store, clock) as log:
        while position < log.tail:
            async for fragment in log.scan(position, max_wait_seconds=1.0):
                found.append(fragment.seq_no)
                position = fragment.limit
                clock.advance(1.0)
    assert found == list(range(1, 11))


async def test_no_time_at_all() -> None:
    """The first one needs none if the manifest has it; nobody waits for a snapshot."""
    store = await log_of(*entries(*range(1, 8)), snapshots=1)
    store.on("get", hang(asyncio.Event()), key_prefix="snapshot/")
    assert await scan(store, 1, max_wait_seconds=0) == []
    assert await scan(store, 3, max_wait_seconds=0) == [3]
    assert await scan(store, 7, max_wait_seconds=0) == []


async def test_errors_within_the_time_are_raised(clock: ManualClock) -> None:
    store = await log_of(*entries(*range(1, 8)), snapshots=1)
    store.on("get", fail(timeout()), key_prefix="snapshot/")
    async with cloud_log(store, clock) as log:
        with pytest.raises(StorageUnavailableError):
            [fragment async for fragment in log.scan(1, max_wait_seconds=1.0)]
    assert clock.sleepers == 0


@pytest.mark.parametrize(
    ("max_wait_seconds", "error"),
    [(-1, InvalidSettingsError), (float("nan"), InvalidSettingsError), ("1", TypeError)],
)
async def test_a_time_that_is_none(max_wait_seconds, error) -> None:
    store = await log_of(*entries(1, 2))
    with pytest.raises(error, match="max_wait_seconds"):
        await scan(store, 1, max_wait_seconds=max_wait_seconds)


@pytest.mark.parametrize("name", ["max_fragments", "max_bytes", "max_records"])
async def test_a_limit_below_one(name) -> None:
    store = await log_of(*entries(1, 2))
    with pytest.raises(InvalidSettingsError, match=name):
        await scan(store, 1, **{name: 0})


# -- where ------------------------------------------------------------------------------------


async def test_older_than_the_log() -> None:
    """wal3 starts later without a word."""
    store = await log_of(*entries(101, 201))
    assert await scan(store, 101) == [1]
    with pytest.raises(OffsetTrimmedError) as told:
        await scan(store, 100)
    assert (told.value.requested, told.value.head, told.value.tail) == (100, 101, 201)


async def test_at_and_beyond_the_tail() -> None:
    store = await log_of(*entries(1, 101))
    assert await scan(store, 101) == []
    with pytest.raises(OffsetNotWrittenError) as told:
        await scan(store, 102)
    assert (told.value.requested, told.value.head, told.value.tail) == (102, 1, 101)


async def test_a_log_without_records() -> None:
    store = await log_of()
    assert await scan(store, 1) == []


async def test_snapshots_are_read_as_far_as_needed() -> None:
    store = await log_of(*entries(*range(1, 92, 10)), snapshots=4)
    assert await scan(store, 1, max_fragments=2) == [1, 2]
    assert store.count("get").requests == 2  # the manifest, one snapshot
    assert await scan(store, 35, max_records=20) == [4, 5, 6]
    assert await scan(store, 1) == list(range(1, 10))


async def test_a_closed_log() -> None:
    store = await log_of(*entries(1, 2))
    log = await cloud_log(store)
    await log.aclose()
    with pytest.raises(WalClosedError):
        await anext(log.scan(1))
