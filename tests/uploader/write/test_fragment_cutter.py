"""Several fragments under way at once, published in order, within bounds."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cloud import LOG_ID, MemorySource, cloud_values, put_fragment, unreferenced, values
from tests.frames import batch_of, build, values_only
from tests.local import turns
from tests.waiting import until
from uploader.format import layout
from uploader.fragments.fragment_builder import (
    EncodedFragment,
    FragmentBuilder,
    encode_fragment,
)
from uploader.layouts.swapped_root import SwappedRoot
from uploader.root.ownership import Claim
from uploader.stores import MemoryStore, RetryPolicy
from uploader.testing import FaultyStore, faults
from uploader.testing.faults import fail, timeout
from uploader.write.fragment_cutter import FragmentCutter
from uploader.write.fragment_puts import FragmentPuts, FragmentWriter, LateFragmentError
from uploader.write.publish_pipeline import CutSchedule
from uploader.write.stall_guard import StallGuard, WriteContext
from walstore.core.batches.batch import Batch
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.threads import Worker
from walstore.errors import (
    ContentionError,
    CorruptionError,
    FencedError,
    OffsetTrimmedError,
    StorageUnavailableError,
)

WRITER = f"walstore {LOG_ID}"
CONTENT = values(120, 50)
BATCH = 10


@dataclass
class Bench:
    """A cutter over a store in memory and a source of 120 records in batches of ten."""

    store: FaultyStore
    source: MemorySource
    manifests: SwappedRoot
    fragments: FragmentWriter
    cutter: FragmentCutter
    worker: Worker

    async def ship(self, limit: int | None = None) -> None:
        async with self.cutter.shipping(self.source, WRITER) as shipment:
            await shipment.ship(limit or self.source.durable_limit)

    def spans(self) -> list[tuple[int, int]]:
        return [(entry.start, entry.limit) for entry in self.manifests.manifest.fragments]


@pytest.fixture
async def bench(impatient: RetryPolicy) -> AsyncIterator[Bench]:
    store, worker = FaultyStore(MemoryStore()), Worker("test")
    source = MemorySource()
    for start in range(0, len(CONTENT), BATCH):
        source.append(CONTENT[start : start + BATCH])
    stall_guard = StallGuard(
        url=store.url, retry=impatient, clock=impatient.clock, silent_seconds=10
    )
    manifests = SwappedRoot(store, impatient, worker)
    await manifests.load_or_create(WRITER)
    context = WriteContext(
        store=store,
        root=manifests,
        stall_guard=stall_guard,
        retry=impatient,
        clock=SystemClock(),
        worker=worker,
    )
    puts = FragmentPuts(context, max_in_flight=3, is_parallel=True)
    fragments = FragmentWriter(context, puts)
    cutter = FragmentCutter(
        context=context,
        fragments=fragments,
        fragment_bytes=600,
        max_in_flight=3,
        schedule=CutSchedule(interval_seconds=0, max_publishing=1),
    )
    yield Bench(store, source, manifests, fragments, cutter, worker)
    worker.close()


@pytest.fixture
def roomy(bench: Bench) -> Bench:
    """The same with fragments of three batches."""
    cutter = FragmentCutter(
        context=bench.cutter.context,
        fragments=bench.fragments,
        fragment_bytes=1500,
        max_in_flight=3,
        schedule=CutSchedule(interval_seconds=0, max_publishing=1),
    )
    return dataclasses.replace(bench, cutter=cutter)


@pytest.fixture
def in_turn(bench: Bench) -> Bench:
    """The same with one fragment put at a time, as where wal3's programs may write."""
    context = bench.cutter.context
    fragments = FragmentWriter(context, FragmentPuts(context, max_in_flight=3))
    cutter = dataclasses.replace(bench.cutter, fragments=fragments)
    return dataclasses.replace(bench, fragments=fragments, cutter=cutter)


async def test_all_of_it_in_order(bench: Bench) -> None:
    """Fragments are cut at a size, whole batches each; the rest makes the last one."""
    await bench.ship(116)
    assert bench.spans() == [*((at, at + 10) for at in range(1, 110, 10)), (111, 116)]
    assert bench.source.uploaded_limit == 116
    assert await cloud_values(bench.store.inner) == CONTENT[:115]
    await bench.ship()
    assert bench.spans()[-1] == (116, 121)
    assert await cloud_values(bench.store.inner) == CONTENT
    assert bench.fragments.puts.put_fragments == 13


async def test_a_batch_may_be_larger_than_a_fragment(bench: Bench) -> None:
    bench.source.append([b"x" * 5000] * 3)
    await bench.ship()
    assert bench.spans()[-1] == (121, 124)


async def test_no_more_than_allowed_are_under_way(bench: Bench) -> None:
    """Neither read, built nor put: that bounds the memory. The manifest names none before its time."""
    release = asyncio.Event()
    bench.store.on("put_if_absent", faults.hang(release), times=3, key_prefix="log/")
    async with asyncio.TaskGroup() as group:
        group.create_task(bench.ship())
        await until(lambda: bench.store.count("put_if_absent").requests == 4)
        await turns(50)
        assert bench.store.count("put_if_absent").requests == 1 + 3
        assert bench.store.count("put_if_match").requests == 0
        release.set()
    assert await cloud_values(bench.store.inner) == CONTENT


def note_reads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the first offset of each read of the local log."""
    reads: list[int] = []
    read_local = bench.source.read_local

    async def noted(position: int, limit: int, max_bytes: int) -> list[Batch]:
        reads.append(position)
        return await read_local(position, limit, max_bytes)

    monkeypatch.setattr(bench.source, "read_local", noted)
    return reads


async def test_the_next_ones_are_built_while_one_is_put(
    in_turn: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is built and one more is read; none is put before the one before is there."""
    built: list[int] = []
    finish = FragmentBuilder.finish

    def noted(self: FragmentBuilder, batches: Sequence[Batch] = ()) -> EncodedFragment:
        built.extend(batch.start for batch in batches)
        return finish(self, batches)

    monkeypatch.setattr(FragmentBuilder, "finish", noted)
    reads, release = note_reads(in_turn, monkeypatch), asyncio.Event()
    in_turn.store.on("put_if_absent", faults.hang(release), times=1, key_prefix="log/")
    async with asyncio.TaskGroup() as group:
        group.create_task(in_turn.ship())
        await until(lambda: built == [1, 11, 21])
        await turns(50)
        assert built == reads == [1, 11, 21]
        assert in_turn.store.count("put_if_absent").requests == 1 + 1
        release.set()
    assert in_turn.spans() == [(at, at + 10) for at in range(1, 120, 10)]
    assert await cloud_values(in_turn.store.inner) == CONTENT
    assert built == reads == list(range(1, 120, 10))


async def test_a_rest_is_read_once(in_turn: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not built before its turn."""
    reads = note_reads(in_turn, monkeypatch)
    await in_turn.ship(116)
    assert in_turn.spans()[-2:] == [(101, 111), (111, 116)]
    assert reads == list(range(1, 120, 10))


async def test_what_is_read_ahead_may_be_damaged(
    in_turn: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is reported at its turn, when what is before it is there."""
    error = CorruptionError("damaged", path="1.wal")
    finish = FragmentBuilder.finish

    def refuse(self: FragmentBuilder, batches: Sequence[Batch] = ()) -> EncodedFragment:
        if any(batch.start == 31 for batch in batches):
            raise error
        return finish(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(FragmentBuilder, "finish", refuse)
        with pytest.raises(ExceptionGroup) as told:
            await in_turn.ship()
    assert set(told.value.exceptions) == {error}
    assert in_turn.store.count("put_if_absent").requests == 1 + 3
    await in_turn.cutter.plan()
    await in_turn.ship()
    assert await cloud_values(in_turn.store.inner) == CONTENT
    assert await unreferenced(in_turn.store.inner) == []


async def test_what_cannot_be_read_ahead(in_turn: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read again at its turn, when what is before it is there."""
    error = CorruptionError("damaged", path="1.wal")
    reads = note_reads(in_turn, monkeypatch)
    read_local = in_turn.source.read_local

    async def refuse(position: int, limit: int, max_bytes: int) -> list[Batch]:
        found = await read_local(position, limit, max_bytes)
        if position == 31:
            raise error
        return found

    with monkeypatch.context() as patch:
        patch.setattr(in_turn.source, "read_local", refuse)
        with pytest.raises(ExceptionGroup) as told:
            await in_turn.ship()
    assert told.value.exceptions == (error,)
    assert in_turn.store.count("put_if_absent").requests == 1 + 3
    assert reads[:4] == [1, 11, 21, 31]
    await in_turn.cutter.plan()
    await in_turn.ship()
    assert await cloud_values(in_turn.store.inner) == CONTENT


async def test_one_in_flight_is_one_in_memory(
    in_turn: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cutter = dataclasses.replace(in_turn.cutter, max_in_flight=1, max_building=8)
    one = dataclasses.replace(in_turn, cutter=cutter)
    reads, release = note_reads(one, monkeypatch), asyncio.Event()
    one.store.on("put_if_absent", faults.hang(release), times=1, key_prefix="log/")
    async with asyncio.TaskGroup() as group:
        group.create_task(one.ship())
        await until(lambda: one.store.count("put_if_absent").requests == 2)
        await turns(50)
        assert reads == [1]
        release.set()
    assert await cloud_values(one.store.inner) == CONTENT


async def test_cancelled_while_others_wait_to_be_built(in_turn: Bench) -> None:
    in_turn.store.on("put_if_absent", faults.hang(asyncio.Event()), times=1, key_prefix="log/")
    shipping = asyncio.create_task(in_turn.ship())
    await until(lambda: in_turn.store.count("put_if_absent").requests == 2)
    shipping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await shipping
    await in_turn.ship()
    assert await cloud_values(in_turn.store.inner) == CONTENT


async def test_fragments_behind_a_slow_one_wait_to_be_published(bench: Bench) -> None:
    """And then one swap names the whole run."""
    release = asyncio.Event()
    bench.store.on("put_if_absent", faults.hang(release), key_prefix=layout.fragment_path(1))
    async with asyncio.TaskGroup() as group:
        group.create_task(bench.ship(31))
        await until(lambda: bench.fragments.puts.put_fragments == 2)
        await bench.worker.run(int)  # all of them are hashed
        await turns(50)
        assert bench.source.uploaded_limit == 1
        release.set()
    assert bench.source.uploaded_limit == 31
    assert bench.store.count("put_if_match").requests == 1


async def test_puts_go_on_while_the_manifest_is_swapped(bench: Bench) -> None:
    """But not for ever: what is put and not published is bounded, too."""
    release = asyncio.Event()
    bench.store.on("put_if_match", faults.hang(release), key_prefix=layout.MANIFEST)
    async with asyncio.TaskGroup() as group:
        group.create_task(bench.ship())
        await until(lambda: bench.fragments.puts.put_fragments >= 4)
        await turns(50)
        assert bench.fragments.puts.put_fragments <= 9
        assert bench.store.count("put_if_match").requests == 1
        release.set()
    assert await cloud_values(bench.store.inner) == CONTENT
    assert bench.store.count("put_if_match").requests < 12


async def test_a_refused_fragment_ends_it(bench: Bench) -> None:
    """What was published stays; nothing behind the refused one is ever named."""
    error = StorageUnavailableError("forbidden", retriable=False)
    bench.store.on("put_if_absent", fail(error), key_prefix=layout.fragment_path(5))
    with pytest.raises(ExceptionGroup) as told:
        await bench.ship()
    assert told.value.subgroup(StorageUnavailableError)
    assert bench.source.uploaded_limit == 1 + 10 * len(bench.spans()) <= 41
    await bench.cutter.plan()
    await bench.ship()
    assert await cloud_values(bench.store.inner) == CONTENT
    assert await unreferenced(bench.store.inner) == []


async def test_local_reads_that_fail_in_passing(bench: Bench) -> None:
    bench.source.faults = [StorageUnavailableError("too many open files")] * 4
    await bench.ship()
    assert await cloud_values(bench.store.inner) == CONTENT


@pytest.mark.parametrize(
    "error",
    [
        CorruptionError("damaged", path="1.wal"),
        OffsetTrimmedError("gone", requested=1, head=2, tail=3),
    ],
)
async def test_local_reads_that_fail_for_good(bench: Bench, error: Exception) -> None:
    bench.source.faults = [error]
    with pytest.raises(ExceptionGroup) as told:
        await bench.ship()
    assert told.value.exceptions == (error,)


async def test_cancelled_it_leaves_orphans_and_nothing_else(bench: Bench) -> None:
    reached = asyncio.Event()
    bench.store.on(
        "put_if_match", faults.hang(asyncio.Event(), reached), key_prefix=layout.MANIFEST
    )
    shipping = asyncio.create_task(bench.ship())
    await reached.wait()
    await until(lambda: bench.fragments.puts.put_fragments >= 3)
    shipping.cancel()
    await asyncio.wait((shipping,))
    assert shipping.cancelled()
    await bench.cutter.plan()
    before = bench.fragments.puts.put_fragments
    await bench.ship()
    assert await cloud_values(bench.store.inner) == CONTENT
    assert bench.fragments.adopted_fragments == before
    assert bench.fragments.puts.put_fragments == 12


# -- orphans ---------------------------------------------------------------------------------


async def test_orphans_are_proven_and_holes_are_filled(bench: Bench) -> None:
    for seq_no, start, limit in [(2, 8, 30), (3, 30, 31), (6, 90, 95)]:
        await put_fragment(bench.store.inner, seq_no, start, CONTENT[start - 1 : limit - 1])
    await bench.cutter.plan()
    await bench.ship()
    assert bench.spans()[:6] == [(1, 8), (8, 30), (30, 31), (31, 60), (60, 90), (90, 95)]
    assert await cloud_values(bench.store.inner) == CONTENT
    assert bench.fragments.adopted_fragments == 3


async def test_an_orphan_of_somebody_else_is_never_published(bench: Bench) -> None:
    await put_fragment(bench.store.inner, 2, 11, [b"theirs"] * 10)
    await bench.cutter.plan()
    with pytest.raises(ExceptionGroup) as told:
        await bench.ship()
    assert told.value.subgroup(ContentionError)
    assert bench.manifests.manifest.next_offset <= 11


@pytest.mark.parametrize(("seq_no", "start"), [(1, 1), (2, 125)])
async def test_fragments_that_go_beyond_this_log(bench: Bench, seq_no: int, start: int) -> None:
    """This disk lost records, or somebody else was here: not a wait for records that never come."""
    await put_fragment(bench.store.inner, seq_no, start, values(130, 50, start=start))
    await bench.cutter.plan()
    with pytest.raises(ExceptionGroup) as told:
        await bench.ship()
    (error,) = told.value.exceptions
    assert isinstance(error, ContentionError)
    assert "but this log ends at 121" in str(error)


async def test_a_late_put_of_another_cut(bench: Bench) -> None:
    """A fragment that an earlier life had under way lands while this one goes on with other cuts."""

    async def land() -> None:
        await put_fragment(bench.store.inner, 2, 11, CONTENT[10:33])

    bench.store.on("put_if_absent", faults.call(land), key_prefix=layout.fragment_path(2))
    with pytest.raises(ExceptionGroup) as told:
        await bench.ship()
    assert told.value.subgroup(LateFragmentError)
    await bench.cutter.plan()
    await bench.ship()
    assert bench.spans()[:2] == [(1, 11), (11, 34)]
    assert await cloud_values(bench.store.inner) == CONTENT
    assert await unreferenced(bench.store.inner) == []


async def test_late_puts_of_every_number(bench: Bench) -> None:
    """However many cuts of an earlier life land: each is adopted or replaced, and all is published."""
    for seq_no, start in [(2, 5), (3, 44), (4, 20), (5, 1), (6, 100), (8, 61)]:

        async def land(seq_no=seq_no, start=start) -> None:
            await put_fragment(bench.store.inner, seq_no, start, CONTENT[start - 1 : start + 12])

        bench.store.on("put_if_absent", faults.call(land), key_prefix=layout.fragment_path(seq_no))
    for _ in range(10):
        try:
            await bench.ship()
            break
        except* LateFragmentError:
            await bench.cutter.plan()
    assert await cloud_values(bench.store.inner) == CONTENT
    assert await unreferenced(bench.store.inner) == []


async def put_by(bench: Bench, seq_no: int, start: int, limit: int, maker: str) -> bytes:
    """Put a fragment of the very records that the source has, under somebody's claim."""
    content = CONTENT[start - 1 : limit - 1]
    batch = batch_of(build(values_only(*content, start=start)))
    made = await asyncio.to_thread(encode_fragment, [batch], timestamp_us=7, writer=maker)
    await bench.store.inner.put_if_absent(layout.fragment_path(seq_no), made.data)
    return made.data


@pytest.mark.parametrize("seq_no", [1, 2])
async def test_fragments_of_a_later_claim_are_not_touched(bench: Bench, seq_no: int) -> None:
    """Though they hold the same records, as those of a replicated log's next primary do, whose manifest this
    one has not seen."""
    ours, theirs = (Claim(bytes.fromhex(LOG_ID), epoch, "0" * 16).name for epoch in (3, 4))
    bench.fragments.maker = ours
    start, limit = (1, 15) if seq_no == 1 else (8, 30)
    data = await put_by(bench, seq_no, start, limit, theirs)
    with pytest.raises(FencedError, match="taken over by another directory"):
        await bench.cutter.plan()
    with pytest.raises(ExceptionGroup) as told:
        await bench.ship()
    assert told.value.subgroup(FencedError)
    assert (await bench.store.get(layout.fragment_path(seq_no))).data == data


# -- fragments begun before they are cut -----------------------------------------------------


async def row_groups(bench: Bench) -> list[list[int]]:
    """Return how many records each part of each published fragment has."""
    found = []
    for entry in bench.manifests.manifest.fragments:
        data = (await bench.store.inner.get(entry.path)).data
        footer = pq.read_metadata(pa.BufferReader(data))
        found.append([footer.row_group(at).num_rows for at in range(footer.num_row_groups)])
    return found


async def test_what_was_begun_is_the_first_part_of_the_fragment(roomy: Bench) -> None:
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        for start, begun in ((1, 11), (31, 51), (61, 71)):
            assert shipment.may_begin
            await shipment.begin(begun)
            assert not shipment.may_begin
            assert shipment.position == start
            await shipment.ship(start + 30)
            assert shipment.may_begin
    assert roomy.spans() == [(1, 31), (31, 61), (61, 91)]
    assert await row_groups(roomy) == [[10, 20], [20, 10], [10, 20]]
    assert await cloud_values(roomy.store.inner) == CONTENT[:90]


async def test_only_the_next_fragment_was_begun(roomy: Bench) -> None:
    """However many are cut at once."""
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        await shipment.ship(11)
        await shipment.begin(21)
        await shipment.ship(121)
    assert roomy.spans() == [(1, 11), (11, 41), (41, 71), (71, 101), (101, 121)]
    assert await row_groups(roomy) == [[10], [10, 20], [30], [30], [20]]
    assert await cloud_values(roomy.store.inner) == CONTENT


async def test_nothing_else_became_durable_until_the_cut(roomy: Bench) -> None:
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        for limit in (11, 31):
            await shipment.begin(limit)
            await shipment.ship(limit)
        await shipment.ship(41)
    assert roomy.spans() == [(1, 11), (11, 31), (31, 41)]
    assert await row_groups(roomy) == [[10], [20], [10]]
    assert await cloud_values(roomy.store.inner) == CONTENT[:40]


async def test_a_whole_fragment_is_not_begun_but_cut(roomy: Bench) -> None:
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        await shipment.begin(71)
        assert not shipment.may_begin
        await shipment.ship(71)
    assert roomy.spans() == [(1, 31), (31, 61), (61, 71)]
    assert await row_groups(roomy) == [[30], [30], [10]]
    assert await cloud_values(roomy.store.inner) == CONTENT[:70]


async def test_nothing_is_begun_where_an_orphan_lies(roomy: Bench) -> None:
    """It says where fragments end, also before it; behind it all is as usual."""
    await put_fragment(roomy.store.inner, 2, 15, CONTENT[14:40])
    await roomy.cutter.plan()
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        await shipment.begin(11)
        assert not shipment.may_begin
        await shipment.ship(41)
        await shipment.begin(51)
        await shipment.ship(61)
    assert roomy.spans() == [(1, 15), (15, 41), (41, 61)]
    assert await row_groups(roomy) == [[14], [26], [10, 10]]
    assert roomy.fragments.adopted_fragments == 1
    assert await cloud_values(roomy.store.inner) == CONTENT[:60]


async def test_what_was_begun_is_read_once(roomy: Bench) -> None:
    """Local reads that fail in passing are made again; what was read is not."""
    read: list[tuple[int, int]] = []
    read_local = roomy.source.read_local

    async def noted(position: int, limit: int, max_bytes: int):
        found = await read_local(position, limit, max_bytes)
        read.extend((batch.start, batch.limit) for batch in found)
        return found

    roomy.source.read_local = noted  # type: ignore[method-assign]
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        for limit in (11, 21):
            roomy.source.faults = [StorageUnavailableError("too many open files")] * 2
            await (shipment.begin(limit) if limit == 11 else shipment.ship(limit))
    assert read == [(1, 11), (11, 21)]
    assert await row_groups(roomy) == [[10, 10]]


@pytest.mark.parametrize("begins", [True, False])
async def test_local_reads_that_fail_for_good_around_a_head_start(
    roomy: Bench, begins: bool
) -> None:
    error = CorruptionError("damaged", path="1.wal")
    with pytest.raises(ExceptionGroup) as told:
        async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
            if not begins:
                await shipment.begin(11)
            roomy.source.faults = [error]
            await (shipment.begin(11) if begins else shipment.ship(21))
    assert told.value.exceptions == (error,)
    await roomy.ship()
    assert await cloud_values(roomy.store.inner) == CONTENT


async def test_a_late_put_while_the_next_one_has_begun(roomy: Bench) -> None:
    """Fragment 2, begun early, meets a longer cut of an earlier life; 3 is begun and never cut so."""
    begun = asyncio.Event()

    async def land() -> None:
        await begun.wait()
        await put_fragment(roomy.store.inner, 2, 11, CONTENT[10:43])

    roomy.store.on("put_if_absent", faults.call(land), key_prefix=layout.fragment_path(2))
    with pytest.raises(ExceptionGroup) as told:
        async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
            await shipment.ship(11)
            await shipment.begin(21)
            await shipment.ship(31)
            await shipment.begin(41)
            begun.set()
            await shipment.finish()
    assert told.value.subgroup(LateFragmentError)
    await roomy.cutter.plan()
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        await shipment.begin(21)
        await shipment.ship(121)
    assert roomy.spans()[:2] == [(1, 11), (11, 44)]
    assert await cloud_values(roomy.store.inner) == CONTENT
    assert await unreferenced(roomy.store.inner) == []


async def test_a_late_put_of_the_same_cut(roomy: Bench) -> None:
    """The same records in one part, of another time: as good as ours."""

    async def land() -> None:
        await put_fragment(roomy.store.inner, 1, 1, CONTENT[:20])

    roomy.store.on("put_if_absent", faults.call(land), key_prefix=layout.fragment_path(1))
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        await shipment.begin(11)
        await shipment.ship(21)
    assert roomy.fragments.adopted_fragments == 1
    assert await row_groups(roomy) == [[20]]
    assert await cloud_values(roomy.store.inner) == CONTENT[:20]


async def test_a_late_put_that_fits_nowhere(roomy: Bench) -> None:
    """It is replaced by what was begun early, whose sum is known by then."""

    async def land() -> None:
        await put_fragment(roomy.store.inner, 2, 5, CONTENT[4:15])

    roomy.store.on("put_if_absent", faults.call(land), key_prefix=layout.fragment_path(2))
    async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
        await shipment.ship(11)
        await shipment.begin(21)
        await shipment.ship(31)
    assert roomy.spans() == [(1, 11), (11, 31)]
    assert await row_groups(roomy) == [[10], [10, 10]]
    assert await cloud_values(roomy.store.inner) == CONTENT[:30]


async def test_cancelled_when_it_has_begun(roomy: Bench) -> None:
    begun = asyncio.Event()

    async def ship() -> None:
        async with roomy.cutter.shipping(roomy.source, WRITER) as shipment:
            await shipment.begin(11)
            begun.set()
            await asyncio.Event().wait()

    shipping = asyncio.create_task(ship())
    await begun.wait()
    shipping.cancel()
    await asyncio.wait((shipping,))
    assert shipping.cancelled()
    assert roomy.fragments.puts.put_fragments == 0
    await roomy.ship()
    assert await cloud_values(roomy.store.inner) == CONTENT


# -- a new directory -------------------------------------------------------------------------


async def test_a_new_directory_takes_what_continues_the_log(bench: Bench) -> None:
    await put_fragment(bench.store.inner, 1, 1, CONTENT[:30])
    await put_fragment(bench.store.inner, 2, 31, CONTENT[30:35])
    await bench.cutter.plan()
    await bench.cutter.adopt_unproven(WRITER)
    assert bench.spans() == [(1, 31), (31, 36)]
    assert bench.store.count("put_if_match").requests == 1
    assert bench.fragments.adopted_fragments == 2


async def test_a_new_directory_without_orphans_changes_nothing(bench: Bench) -> None:
    await bench.cutter.plan()
    await bench.cutter.adopt_unproven(WRITER)
    assert bench.store.count("put_if_match").requests == 0


@pytest.mark.parametrize("places", [[(2, 11)], [(1, 1), (3, 40)], [(1, 1), (2, 5)]])
async def test_a_new_directory_cannot_fill_holes(bench: Bench, places) -> None:
    """Their records were on the lost disk only; what lies behind them is not thrown away silently."""
    for seq_no, start in places:
        await put_fragment(bench.store.inner, seq_no, start, CONTENT[start - 1 : start + 9])
    await bench.cutter.plan()
    first = len(places)
    with pytest.raises(ContentionError, match=f"delete the fragments from number {first} on"):
        await bench.cutter.adopt_unproven(WRITER)
    assert bench.spans() == []


async def test_planning_while_the_store_fails(bench: Bench) -> None:
    bench.store.on("list", fail(timeout("not_written")))
    with pytest.raises(StorageUnavailableError):
        await bench.cutter.plan()
