"""Whatever subset of the fragments under way survives a crash: the next start fills exactly the rest."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cloud import (
    RecordingStore,
    cloud_values,
    fragment_keys,
    put_fragment,
    tier,
    unreferenced,
    values,
)
from tests.uploader.documents import fragment
from uploader.root.orphan_recovery import Orphan, plan
from uploader.stores.memory import MemoryStore
from walstore import Wal


@given(
    sizes=st.lists(st.integers(1, 50), max_size=12),
    seq_no=st.integers(1, 10_000),
    start=st.integers(1, 10_000),
    data=st.data(),
)
def test_the_plan_covers_all_up_to_the_last_survivor(
    sizes: list[int], seq_no: int, start: int, data: st.DataObject
) -> None:
    """Without gap or overlap, in numbers and offsets, each survivor where it lies."""
    bounds = pairwise(accumulate(sizes, initial=start))
    cut = [Orphan(fragment(seq_no + at, *span), at) for at, span in enumerate(bounds)]
    survivors = [orphan for orphan in cut if data.draw(st.booleans())]
    slots = plan(seq_no, start, survivors)
    assert [slot.orphan for slot in slots if slot.orphan] == survivors
    expected = seq_no, start
    for slot in slots:
        assert (slot.seq_no, slot.start) == expected
        assert slot.limit > slot.start
        expected = slot.seq_no + 1, slot.limit
    last = survivors[-1].entry if survivors else None
    assert expected == ((last.seq_no + 1, last.limit) if last else (seq_no, start))


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 200), st.integers(1, 60)), max_size=10)
)
def test_any_orphans_at_all_give_a_plan_that_fits(found: list[tuple[int, int, int]]) -> None:
    """Also such as late puts and other writers leave: what is kept fits, the rest is left out."""
    unique = {number: (start, size) for number, start, size in found}
    orphans = [
        Orphan(fragment(number, start, start + size), 0)
        for number, (start, size) in sorted(unique.items())
    ]
    slots = plan(1, 1, orphans)
    expected = 1, 1
    for slot in slots:
        assert (slot.seq_no, slot.start) == expected
        assert slot.limit > slot.start
        assert slot.orphan is None or slot.orphan in orphans
        expected = slot.seq_no + 1, slot.limit
    assert not slots or slots[-1].orphan is not None


@pytest.mark.slow
@settings(max_examples=25)
@given(
    published=st.integers(0, 10),
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    data=st.data(),
)
def test_any_subset_of_the_fragments_under_way_may_survive(
    published: int, sizes: list[int], data: st.DataObject
) -> None:
    """A real log finds them, proves them, publishes them, and puts none of them again."""
    kept = [data.draw(st.booleans()) for _ in sizes]
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_crash_and_restart(Path(directory), published, sizes, kept))


async def _crash_and_restart(
    directory: Path, published: int, sizes: list[int], kept: list[bool]
) -> None:
    inner = MemoryStore()
    total = values(published + sum(sizes) + 3, 40)
    async with Wal.open(directory / "log", tier=tier(inner)) as wal:
        if published:
            await wal.append_many(total[:published], durability="cloud")
        seq_no = 2 if published else 1
    async with Wal.open(directory / "log") as wal:
        await wal.append_many(total[published:])
    position = published + 1
    for at, size in enumerate(sizes):
        if kept[at]:
            content = total[position - 1 : position - 1 + size]
            await put_fragment(inner, seq_no + at, position, content)
        position += size
    before = {key: (await inner.get(key)).data for key in await fragment_keys(inner)}
    store = RecordingStore(inner)
    async with Wal.open(directory / "log", tier=tier(store)) as wal:
        await wal.wait_durable(len(total), "cloud")
        assert wal.statistics().tier_failure is None
    assert await cloud_values(inner) == total
    assert await unreferenced(inner) == []
    assert not before.keys() & store.attempts.keys()
    assert {key: (await inner.get(key)).data for key in before} == before
