"""Garbage collection beside live writers and readers, on real fragments, in both layouts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cloud import FAST, SMALL, URL, cloud_log, copy_store, tier
from tests.local import SMALL as SMALL_LOG
from tests.uploader.places import INTERVAL_SECONDS, LeapClock
from tests.waiting import until
from uploader.care.gc.collection_plan import CollectorSettings
from uploader.care.gc.collector import GarbageCollector
from uploader.chain.chain_root import ChainSettings
from uploader.format import layout
from uploader.format.rollup import RollUpSettings
from uploader.stores.memory import MemoryStore
from uploader.stores.port import ObjectStore
from uploader.testing import FaultyStore, StoreKilled
from uploader.testing.faults import Fault, call, happen_then_fail, happen_then_kill, kill, timeout
from uploader.write.cloud_writer import CloudWriter
from uploader.write.writer_settings import WriterSettings
from walstore import ContentionError, OffsetTrimmedError, Settings, Wal
from walstore.errors import OutcomeUnknownError, StorageUnavailableError

TINY = RollUpSettings(fragments_per_snapshot=2, snapshots_per_snapshot=2)
WRITING = WriterSettings(interval_seconds=0, roll_up=TINY)
COLLECTING = CollectorSettings(interval_seconds=INTERVAL_SECONDS, max_drop_fraction=1)
LAYOUTS = ["swap", "chain"]


def writer(store: ObjectStore, kind: str = "swap"):
    chain = ChainSettings(shards=3, inline_bytes=0) if kind == "chain" else None
    return CloudWriter.open(
        URL, store=store, settings=WRITING, layout=kind, chain=chain, retry=FAST
    )


async def collect(
    store: ObjectStore, clock: LeapClock | None = None, settings: CollectorSettings = COLLECTING
):
    """Collect once, on a clock that leaps over the waiting."""
    clock = clock or LeapClock()
    async with GarbageCollector.open(
        URL, store=store, settings=settings, retry=FAST, clock=clock
    ) as collector:
        return await collector.collect()


async def fill(store: ObjectStore, kind: str, records: int = 20, *, first: int = 1) -> None:
    """Append records that say their offset, each in a fragment of its own."""
    async with writer(store, kind) as log:
        for number in range(first, first + records):
            assert await log.append(b"%d" % number) == number


async def move(store: ObjectStore, position: int) -> None:
    async with cloud_log(store) as log:
        await log.cursors.rewind("billing", position)


async def check_log(store: ObjectStore, head: int, tail: int) -> None:
    """Check that the log holds exactly these records, sound, and nothing else lies there."""
    async with cloud_log(store) as log:
        await log.verify()
        assert (log.head, log.tail) == (head, tail)
        assert [int(record.value) async for record in log.reader()] == list(range(head, tail))
        named = {entry.path for entry in await log.fragments()}
    found = {
        listed.key async for listed in store.list("") if listed.key.startswith(("log/", "shard"))
    }
    assert found == named


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("cutoff", [1, 2, 7, 20, 21])
async def test_a_log_goes_on_after_a_collection(kind: str, cutoff: int) -> None:
    """Offsets and numbers go on, also if everything went."""
    store = MemoryStore()
    await fill(store, kind)
    await move(store, cutoff)
    await collect(store)
    await check_log(store, cutoff, 21)
    await fill(store, kind, 5, first=21)
    await check_log(store, cutoff, 26)


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_a_writer_that_is_open_goes_on(kind: str) -> None:
    """Its publishing lands on top of the collection's manifest."""
    store = MemoryStore()
    async with writer(store, kind) as log:
        for number in range(1, 30):
            assert await log.append(b"%d" % number) == number
            if number % 7 == 0:
                await log.cursors.commit("billing", number - 2)
                await collect(store)
        assert log.head == 26
    await check_log(store, 26, 30)


class Crowd:
    """A writer, a reader that commits what it has read, and collectors, on one log."""

    records = 60

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.store = MemoryStore()
        self.seen: list[int] = []

    async def write(self) -> None:
        async with writer(self.store, self.kind) as log:
            for number in range(1, self.records + 1):
                await log.append(b"%d" % number)
                await until(lambda number=number: len(self.seen) >= number - 10, seconds=50)

    async def read(self) -> None:
        async with cloud_log(self.store, LeapClock()) as log:
            reader = log.follow(stop=self.records + 1)
            async for record in reader:
                self.seen.append(int(record.value))
                if record.offset % 5 == 0:
                    await log.cursors.commit("billing", record.offset + 1)

    async def collect(self) -> None:
        """Collect all the time; every process dies, or loses an answer, a few calls later than the last."""
        clock = LeapClock()
        faults = itertools.cycle((kill(), happen_then_kill(), happen_then_fail(timeout())))
        for nth in itertools.cycle(range(1, 60, 3)):
            if len(self.seen) == self.records:
                return
            store = FaultyStore(self.store)
            store.on("any", next(faults), nth=nth)
            # Another collector may also have been quicker five times in a row.
            with suppress(
                ContentionError,
                StoreKilled,
                StorageUnavailableError,
                OutcomeUnknownError,
                BaseExceptionGroup,  # what a killed task of a chain ends with
            ):
                await collect(store, clock)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
async def test_writer_reader_and_collectors_at_once(kind: str) -> None:
    """Every record is read once, in order, whatever happens to the collectors."""
    crowd = Crowd(kind)
    async with writer(crowd.store, kind) as log:
        await log.cursors.commit("billing", 1)
    async with asyncio.TaskGroup() as group:
        for task in (crowd.write, crowd.read, crowd.collect, crowd.collect):
            group.create_task(task())
    tail = crowd.records + 1
    assert crowd.seen == list(range(1, tail))
    clock = LeapClock()
    for _ in range(3):  # what is pending, the rest, and leaks below it
        await collect(crowd.store, clock)
        clock.seconds += INTERVAL_SECONDS
    await check_log(crowd.store, tail, tail)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("begun_at", [1, 4, 9, 15])
@pytest.mark.parametrize("prefetch", [0, 1 << 20])
async def test_a_reader_that_started_before(kind: str, begun_at: int, prefetch: int) -> None:
    """It reads on, or is told that its records are gone; never anything else."""
    store = MemoryStore()
    await fill(store, kind)
    await move(store, 13)
    async with cloud_log(store) as log:
        reader = log.reader(begun_at, prefetch_bytes=prefetch)
        seen = [int((await anext(reader)).value)]
        dropped = await collect(store, settings=replace(COLLECTING, max_wait_seconds=0))
        assert dropped.due_us is not None
        seen.append(int((await anext(reader)).value))  # still there for the interval
        await collect(store, later())
        told = None
        try:
            async for record in reader:
                seen.append(int(record.value))
        except OffsetTrimmedError as error:
            told = error
        assert seen == list(range(begun_at, begun_at + len(seen)))
        if told is None:
            assert seen[-1] == 20
        else:
            assert (told.head, begun_at < 13) == (13, True)
        await log.refresh()
        assert [int(record.value) async for record in log.reader()] == list(range(13, 21))
        with pytest.raises(OffsetTrimmedError):
            await anext(log.reader(12))


def later() -> LeapClock:
    """Return the clock of a process that starts when the interval is over."""
    clock = LeapClock()
    clock.seconds = INTERVAL_SECONDS
    return clock


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_a_manifest_of_before_resolves_to_what_is_left(kind: str) -> None:
    """Snapshots are deleted, too: who walks an old tree is told that, and does not see damage."""
    store = MemoryStore()
    await fill(store, kind)
    async with cloud_log(store) as log:
        await move(store, 13)
        await collect(store)
        if kind == "swap":  # the other has a short manifest without snapshots here
            with pytest.raises(OffsetTrimmedError):
                await log.fragments()
        with pytest.raises(OffsetTrimmedError):
            await anext(log.reader(3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("fault", [kill, happen_then_kill])
async def test_killed_at_every_call(kind: str, fault: Callable[[], Fault]) -> None:
    """The log can be read at every moment, and the next collector finishes."""
    origin = MemoryStore()
    await fill(origin, kind, 9)
    await move(origin, 7)
    for nth in range(1, 200):
        inner = await copy_store(origin)
        store = FaultyStore(inner)
        store.on("any", fault(), nth=nth)
        clock = LeapClock()
        try:
            await collect(store, clock)
        except (StoreKilled, BaseExceptionGroup):
            assert store.is_killed
            async with cloud_log(inner) as log:
                read = [int(record.value) async for record in log.reader()]
            assert read[-3:] == [7, 8, 9]
            assert read in (list(range(1, 10)), [7, 8, 9])
        await collect(inner, clock)
        await collect(inner, clock)
        await check_log(inner, 7, 10)
        if not store.is_killed:
            return
    pytest.fail("it never got to its end")


@pytest.mark.parametrize("kind", LAYOUTS)
async def test_a_late_put_into_a_collected_place_is_swept(kind: str) -> None:
    """A writer that slept while its number was given, published and collected cannot publish it.

    Nor can it tell that nobody else did.
    """
    inner = MemoryStore()
    await fill(inner, kind, 3)
    store = FaultyStore(inner)
    slept = False

    async def sleep() -> None:
        nonlocal slept
        slept = True
        await fill(inner, kind, 5, first=4)
        await move(inner, 8)
        await collect(inner)

    prefix = "log/" if kind == "swap" else "shard"
    store.on("put_if_absent", call(sleep), key_prefix=prefix)
    async with writer(store, kind) as log:
        with pytest.raises(OutcomeUnknownError, match="was collected before"):
            await log.append(b"9")
        assert await log.append(b"9") == 9
    assert slept
    await collect(inner, later())
    clock = later()
    clock.seconds *= 3
    await collect(inner, clock)
    await check_log(inner, 8, 10)


async def test_keep_seconds_goes_by_the_records_time() -> None:
    """Fragments with a record that is young enough stay."""
    store = MemoryStore()
    clock = LeapClock()
    now_us = clock.now_us()
    async with writer(store) as log:
        for number in range(1, 11):
            await log.append(b"%d" % number, timestamp_us=now_us - (10 - number) * 1_000_000)
        await log.cursors.commit("billing", 11)
    for keep_seconds, head in [(100, 1), (8, 2), (3.5, 7), (3, 7), (0.5, 10)]:
        found = await collect(store, clock, replace(COLLECTING, keep_seconds=keep_seconds))
        clock.seconds = 0
        assert (found.head, found.cutoff.held_by) == (head, "keep_seconds")


# -- a local log with a tier -------------------------------------------------------------------


@pytest.mark.slow
async def test_a_local_log_ships_on_beside_a_collector(log_directory: Path) -> None:
    """Its next publishing finds the head moved; nothing is shipped twice and nothing is lost."""
    store = MemoryStore()
    async with Wal.open(log_directory, settings=SMALL_LOG, tier=tier(store)) as wal:
        for number in range(1, 61):
            await wal.append(b"%d" % number, durability="cloud")
            if number % 20 == 0:
                await move(store, number - 4)
                await collect(store)
        assert [int(record.value) async for record in wal.reader(57, follow=False)] == [
            57,
            58,
            59,
            60,
        ]
    await check_log(store, 56, 61)
    async with Wal.open(log_directory, settings=SMALL_LOG, tier=tier(store)) as wal:
        assert await wal.append(b"61", durability="cloud") == 61
    await check_log(store, 56, 62)


@pytest.mark.slow
async def test_a_local_log_whose_tier_has_lost_its_beginning(log_directory: Path) -> None:
    """Records that only the cloud had, and that were collected, are trimmed; the rest is there."""
    store = MemoryStore()
    settings = SMALL_LOG.replace(retention_bytes=0, cache_bytes=0)
    values = [b"%d" % number + bytes(500) for number in range(1, 401)]
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        for value in values:
            await wal.append(value, durability="memory")
        await wal.wait_durable(wal.tail - 1, "cloud")
        await move(store, 201)
        await collect(store)
        # Retention is a task of its own; until then the disk has what the store has not.
        await until(lambda: wal.statistics().local_head > 100)
        with pytest.raises(OffsetTrimmedError):
            _ = [record async for record in wal.reader(1, follow=False)]
        assert [record.value async for record in wal.reader(201, follow=False)] == values[200:]
    async with Wal.open(log_directory, settings=settings, tier=tier(store)) as wal:
        assert 150 < wal.head <= 201
        assert [r.value async for r in wal.reader(follow=False)] == values[wal.head - 1 :]


async def test_a_new_directory_goes_on_behind_a_collected_log(
    log_directory: Path, tmp_path: Path
) -> None:
    """Also when nothing is left of it but its numbers."""
    store = MemoryStore()
    async with Wal.open(log_directory, settings=SMALL_LOG, tier=tier(store, SMALL)) as wal:
        for number in range(1, 6):
            await wal.append(b"%d" % number, durability="cloud")
    await move(store, 6)
    await collect(store)
    await check_log(store, 6, 6)
    async with Wal.open(tmp_path / "new", settings=Settings(), tier=tier(store)) as wal:
        assert await wal.append(b"6", durability="cloud") == 6
    await check_log(store, 6, 7)
    assert layout.HEADS in [listed.key async for listed in store.list("collection/")]
