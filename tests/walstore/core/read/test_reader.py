"""Reader: every visible record once, in order, however it is read and whatever interrupts it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests import frames
from tests.local import SMALL, check_contiguous, read_all, turns
from tests.waiting import until
from walstore import (
    CorruptionError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    Record,
    StorageUnavailableError,
    Wal,
    WalClosedError,
)
from walstore.core.batches.batch import Batch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.read.reader import Reader
from walstore.core.runtime.watermark import Watermark
from walstore.errors import InvalidSettingsError
from walstore.records import Start, from_timestamp_us

BATCH = 10


class ListSource:
    """A log in memory: batches of ten records; its reads can be stopped and can fail."""

    def __init__(self, count: int, *, head: int = 1) -> None:
        self.head = head
        self.records = [
            Record(offset, b"%d" % offset, timestamp_us=offset * 1000)
            for offset in range(head, head + count)
        ]
        self.visible = Watermark(head + count, asyncio.get_running_loop())
        self.tail = head + count
        self.reads: list[tuple[int, int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.errors: list[Exception] = []
        self.batches_per_read = 2
        self.damaged_from = 1 << 60

    @property
    def limit(self) -> int:
        return self.visible.value

    async def wait_limit(self, limit: int) -> None:
        await self.visible.wait(limit)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        self.reads.append((position, limit))
        await self.gate.wait()
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop(0)
        if position >= self.damaged_from:
            raise CorruptionError("damaged", path="x")
        assert position < limit <= self.limit
        found: list[Batch] = []
        while position < limit and len(found) < self.batches_per_read:
            first = position - (position - self.head) % BATCH
            rows = self.records[first - self.head : first - self.head + BATCH]
            batch = frames.batch_of(frames.build(rows))
            end = min(batch.limit, limit)
            found.append(batch.slice(position, end))
            position = end
        return found

    async def offset_at(self, timestamp_us: int) -> int:
        await self.gate.wait()
        late = [r.offset for r in self.records if r.timestamp_us >= timestamp_us]
        return late[0] if late else self.limit

    def append(self, count: int) -> None:
        more = range(self.tail, self.tail + count)
        self.records += [Record(o, b"%d" % o, timestamp_us=o * 1000) for o in more]
        self.tail += count
        self.visible.advance(self.tail)


async def drain(reader: Reader) -> list[int]:
    return [record.offset async for record in reader]


# -- where it begins and ends ----------------------------------------------------------------------


async def test_it_delivers_every_record_in_order() -> None:
    reader = Reader(ListSource(95), follow=False)
    assert reader.position == 1
    records = [record async for record in reader]
    check_contiguous(records)
    assert len(records) == 95
    assert (reader.position, reader.is_caught_up) == (96, True)


@pytest.mark.parametrize("start", [1, 2, 10, 11, 57, 94, 95])
async def test_it_begins_at_an_offset(start) -> None:
    assert await drain(Reader(ListSource(95), start=start, follow=False)) == list(range(start, 96))


@pytest.mark.parametrize("stop", [1, 2, 10, 11, 57, 95, 96, 200])
async def test_stop_is_exclusive(stop) -> None:
    reader = Reader(ListSource(95), stop=stop, follow=False)
    assert await drain(reader) == list(range(1, min(stop, 96)))


async def test_stop_ends_a_following_reader() -> None:
    source = ListSource(95)
    reading = asyncio.create_task(drain(Reader(source, start=90, stop=100)))
    await turns()
    source.append(20)
    assert await reading == list(range(90, 100))


async def test_without_follow_it_ends_at_the_limit_seen_when_that_is_reached() -> None:
    source = ListSource(20)
    reader = Reader(source, follow=False)
    found = [(await anext(reader)).offset for _ in range(15)]
    source.append(10)
    found += await drain(reader)
    assert found == list(range(1, 31))
    source.append(5)
    assert await drain(reader) == [31, 32, 33, 34, 35], "it may be used again"


async def test_earliest_is_the_first_retained_record() -> None:
    source = ListSource(30, head=101)
    assert Reader(source).position == 101
    assert await drain(Reader(source, follow=False)) == list(range(101, 131))


async def test_latest_is_the_next_to_become_visible() -> None:
    source = ListSource(20)
    reader = Reader(source, start="latest")
    assert (reader.position, reader.is_caught_up) == (21, True)
    reading = asyncio.create_task(anext(reader))
    await turns()
    assert not reading.done()
    source.append(3)
    assert (await reading).offset == 21
    assert not reader.is_caught_up


async def test_a_time_is_the_first_record_that_is_not_older() -> None:
    source = ListSource(50)
    for micros, first in [(0, 1), (17_000, 17), (17_001, 18), (50_000, 50)]:
        moment = from_timestamp_us(micros)
        assert (await drain(Reader(source, start=moment, follow=False)))[0] == first
    async with Reader(source, start=from_timestamp_us(17_000)) as reader:
        assert reader.position == 17
    after = Reader(source, start=datetime.now(UTC) + timedelta(days=1), follow=False)
    assert await drain(after) == []


async def test_a_time_that_has_not_come_is_waited_for() -> None:
    """Nothing older is delivered, whatever comes meanwhile."""
    source = ListSource(20)
    reader = Reader(source, start=from_timestamp_us(35_000))
    assert reader.position == 1
    async with reader:
        assert reader.position == 21
        reading = asyncio.create_task(anext(reader))
        for count in (1, 5, 2, 6):
            await turns()
            assert not reading.done()
            source.append(count)
        await turns()
        assert reader.position == 35
        assert not reading.done()
        source.append(20)
        assert (await reading).offset == 35
        assert (await anext(reader)).offset == 36


async def test_a_time_that_has_not_come_ends_a_reader_that_does_not_follow() -> None:
    source = ListSource(20)
    reader = Reader(source, start=from_timestamp_us(35_000), follow=False)
    assert await drain(reader) == []
    source.append(10)
    assert await drain(reader) == [], "it may be used again, and looks on"
    source.append(10)
    assert await drain(reader) == list(range(35, 41))


async def test_a_time_behind_stop_is_never_reached() -> None:
    source = ListSource(20)
    assert await drain(Reader(source, start=from_timestamp_us(15_000), stop=10)) == []
    reading = asyncio.create_task(drain(Reader(source, start=from_timestamp_us(35_000), stop=30)))
    await turns()
    assert not reading.done()
    source.append(30)
    assert await reading == []


async def test_fetch_waits_for_a_time_at_most_so_long() -> None:
    source = ListSource(20)
    reader = Reader(source, start=from_timestamp_us(25_000))
    assert not await reader.fetch(max_wait_seconds=0)
    feeding = asyncio.create_task(_feed_old_records(source))
    assert not await reader.fetch(max_wait_seconds=0.02), "old records do not make it wait longer"
    feeding.cancel()
    source.append(200)
    assert (await reader.fetch(max_records=1)).start >= 25


async def _feed_old_records(source: ListSource) -> None:
    for _ in range(4):
        source.append(1)
        await turns()


async def test_what_is_trimmed_while_a_time_is_waited_for_was_too_old_anyway() -> None:
    source = ListSource(20)
    reader = Reader(source, start=from_timestamp_us(45_000))
    reading = asyncio.create_task(anext(reader))
    await turns()
    trims = 2

    async def trim_first(position: int, limit: int, max_bytes: int) -> list[Batch]:
        nonlocal trims
        if trims:
            trims -= 1
            source.records = source.records[10:]
            source.head += 10
        if position < source.head:
            raise OffsetTrimmedError("gone", requested=position, head=source.head, tail=source.tail)
        return await ListSource.read(source, position, limit, max_bytes)

    source.read = trim_first  # type: ignore[method-assign]
    source.append(30)
    assert (await reading).offset == 45


@pytest.mark.parametrize("turns_before", range(12))
async def test_L14_cancelled_while_it_looks_for_a_time_it_looks_on(turns_before) -> None:
    source = ListSource(20)
    reader = Reader(source, start=from_timestamp_us(25_000))
    reading = asyncio.create_task(anext(reader))
    source.append(3)
    await turns(turns_before)
    reading.cancel()
    await asyncio.wait((reading,))
    assert reading.cancelled()
    source.append(3)
    assert (await anext(reader)).offset == 25


async def test_a_zone_is_needed_for_a_time() -> None:
    with pytest.raises(ValueError, match="needs a time zone"):
        Reader(ListSource(1), start=datetime.now())


@pytest.mark.parametrize("start", ["first", None, 1.5, True, b"earliest"])
async def test_other_starts_are_refused(start) -> None:
    with pytest.raises(ValueError, match="start must be"):
        Reader(ListSource(1), start=start)


async def test_the_tail_may_be_waited_for_but_nothing_beyond_it() -> None:
    source = ListSource(20)
    reading = asyncio.create_task(anext(Reader(source, start=21)))
    await turns()
    source.append(1)
    assert (await reading).offset == 21
    with pytest.raises(OffsetNotWrittenError) as found:
        await anext(Reader(source, start=30))
    assert (found.value.requested, found.value.head, found.value.tail) == (30, 1, 22)


@pytest.mark.parametrize("start", [0, -5, 100])
async def test_offsets_before_the_head_are_trimmed(start) -> None:
    with pytest.raises(OffsetTrimmedError) as found:
        await anext(Reader(ListSource(20, head=101), start=start))
    assert (found.value.requested, found.value.head, found.value.tail) == (start, 101, 121)


# -- position and seek -----------------------------------------------------------------------------


async def test_the_position_is_that_of_the_next_record_to_be_delivered() -> None:
    reader = Reader(ListSource(25), follow=False)
    expected = 1
    async for record in reader:
        assert record.offset == expected
        expected += 1
        assert reader.position == expected
    assert reader.position == 26


async def test_seek_continues_elsewhere_at_any_moment() -> None:
    reader = Reader(ListSource(95), follow=False)
    await anext(reader)
    for offset in (50, 3, 95, 12, 11, 1):
        reader.seek(offset)
        assert reader.position == offset
        assert (await anext(reader)).offset == offset
    reader.seek(90)
    assert (await anext(reader.batches())).start == 90
    reader.seek(7)
    assert (await reader.fetch(max_records=1)).start == 7


@pytest.mark.parametrize("taken", [1, 9, 10, 11])
async def test_seek_within_a_batch_and_back(taken) -> None:
    reader = Reader(ListSource(30), follow=False)
    for _ in range(taken):
        await anext(reader)
    reader.seek(5)
    assert reader.position == 5
    assert (await anext(reader)).offset == 5
    assert reader.position == 6
    reader.seek(reader.position)
    assert await drain(reader) == list(range(6, 31))


async def test_after_the_last_record_nothing_of_its_batch_is_kept() -> None:
    source = ListSource(10)
    reader = Reader(source)
    for _ in range(10):
        await anext(reader)
    waiting = asyncio.create_task(anext(reader))
    await turns()
    assert list(reader._records) == []
    assert (reader.position, reader._batches) == (11, [])
    source.append(1)
    assert (await waiting).offset == 11


async def test_seek_forgets_a_start_by_time() -> None:
    reader = Reader(ListSource(95), start=from_timestamp_us(50_000), follow=False)
    reader.seek(5)
    assert (await anext(reader)).offset == 5


async def test_ways_of_reading_may_be_mixed() -> None:
    reader = Reader(ListSource(95), follow=False)
    found = [(await anext(reader)).offset for _ in range(13)]
    found += [record.offset for record in await reader.fetch(max_records=4)]
    found += [(await anext(reader)).offset for _ in range(5)]
    batches = reader.batches()
    for _ in range(2):
        found += [record.offset for record in await anext(batches)]
    found += [record.offset for record in await reader.fetch(max_records=500)]
    found += await drain(reader)
    assert found == list(range(1, 96))


async def test_leaving_batches_early_loses_nothing() -> None:
    reader = Reader(ListSource(95), follow=False)
    async for batch in reader.batches():
        assert (batch.start, batch.limit) == (1, 11)
        break
    assert reader.position == 11
    assert await drain(reader) == list(range(11, 96))


async def test_leaving_the_block_forgets_what_was_read_ahead_not_the_position() -> None:
    reader = Reader(ListSource(95), follow=False)
    async with reader:
        await anext(reader)
    assert reader.position == 2
    assert await drain(reader) == list(range(2, 96))


# -- fetch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 10, 11, 25, 500])
async def test_fetch_returns_at_most_so_many_records(most) -> None:
    reader = Reader(ListSource(95), follow=False)
    found: list[int] = []
    while len(batch := await reader.fetch(max_records=most)):
        assert len(batch) == min(most, 95 - len(found))
        assert [record.offset for record in batch] == list(range(batch.start, batch.limit))
        assert list(batch.values) == [b"%d" % o for o in range(batch.start, batch.limit)]
        found += [record.offset for record in batch]
        assert reader.position == batch.limit
    assert found == list(range(1, 96))


async def test_fetch_stops_at_so_many_bytes_but_returns_at_least_one_record() -> None:
    reader = Reader(ListSource(95), follow=False)
    size = (await reader.fetch(max_bytes=1)).nbytes
    assert reader.position == 11
    assert len(await reader.fetch(max_bytes=size * 2)) == 20


@pytest.mark.parametrize("follow", [True, False])
async def test_fetch_waits_a_number_of_seconds(follow) -> None:
    reader = Reader(ListSource(5), follow=follow)
    for value in (10**400, float("nan"), float("inf")):
        with pytest.raises(InvalidSettingsError, match="max_wait_seconds must be a finite number"):
            await reader.fetch(max_wait_seconds=value)
    for value in ("1", True):
        with pytest.raises(TypeError, match="max_wait_seconds must be a number of seconds"):
            await reader.fetch(max_wait_seconds=value)  # type: ignore[arg-type]
    assert len(await reader.fetch(max_wait_seconds=0)) == 5


@pytest.mark.parametrize("most", [0, -1])
async def test_fetch_needs_room_for_a_record(most) -> None:
    with pytest.raises(ValueError, match="max_records must be at least 1"):
        await Reader(ListSource(5)).fetch(max_records=most)


@pytest.mark.parametrize("follow", [True, False])
async def test_fetch_waits_at_most_so_long_and_returns_nothing_then(follow) -> None:
    reader = Reader(ListSource(5), start=6, follow=follow)
    batch = await reader.fetch(max_wait_seconds=0.01)
    assert (len(batch), batch.start, batch.limit) == (0, 6, 6)
    assert len(await reader.fetch(max_wait_seconds=0)) == 0


async def test_fetch_without_follow_and_limit_does_not_wait() -> None:
    assert len(await Reader(ListSource(5), start=6, follow=False).fetch()) == 0


async def test_fetch_waits_as_long_as_it_takes() -> None:
    source = ListSource(5)
    for max_wait_seconds in (None, 60):
        fetching = asyncio.create_task(
            Reader(source, start=source.tail).fetch(max_wait_seconds=max_wait_seconds)
        )
        await turns()
        assert not fetching.done()
        source.append(3)
        assert len(await fetching) == 3


async def test_fetch_does_not_wait_for_more_than_there_is() -> None:
    assert len(await Reader(ListSource(5)).fetch(max_records=100)) == 5


async def test_an_error_in_the_middle_of_a_fetch_comes_with_the_next_one() -> None:
    source = ListSource(95)
    reader = Reader(source, follow=False)
    source.damaged_from = 21
    batch = await reader.fetch(max_records=100)
    assert (batch.start, batch.limit) == (1, 21)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            await reader.fetch(max_records=100)
        assert reader.position == 21


async def test_a_batch_that_cannot_be_decoded_is_not_passed(monkeypatch) -> None:
    source = ListSource(50)
    reader = Reader(source, follow=False)
    streams = FrameBatch.streams

    def refuse_the_second(batch: FrameBatch):
        if batch.start == 11:
            batch.refuse("a stream that has no name")
        return streams.fget(batch)  # type: ignore[attr-defined]

    monkeypatch.setattr(FrameBatch, "streams", property(refuse_the_second))
    found = [(await anext(reader)).offset for _ in range(10)]
    for _ in range(2):
        with pytest.raises(CorruptionError, match="a stream that has no name"):
            await anext(reader)
        assert reader.position == 11
    monkeypatch.undo()
    assert found + await drain(reader) == list(range(1, 51))


# -- interruptions ---------------------------------------------------------------------------------


READS = {
    "anext": lambda reader: anext(reader),
    "batches": lambda reader: anext(reader.batches()),
    "fetch": lambda reader: reader.fetch(max_records=35),
}


@pytest.mark.parametrize("way", READS)
async def test_L14_cancelled_at_any_await_it_loses_nothing(way) -> None:
    """Cancel after 0, 1, 2, … turns of the event loop, until the read finishes by itself."""
    for after in range(100):
        source = ListSource(95)
        reader = Reader(source, start=from_timestamp_us(5000), follow=False)
        task = asyncio.ensure_future(READS[way](reader))
        await turns(after)
        task.cancel()
        await asyncio.wait([task])
        delivered: list[int] = []
        if not task.cancelled():
            found = task.result()
            delivered = [found.offset] if way == "anext" else [r.offset for r in found]
        delivered += await drain(reader)
        assert delivered == list(range(5, 96)), after
        if not task.cancelled():
            break
    else:
        pytest.fail("it never finished")
    assert after >= 2


async def test_cancelled_while_it_waits_for_the_limit_it_goes_on_later() -> None:
    source = ListSource(5)
    reader = Reader(source, start=6)
    for _ in range(3):
        waiting = asyncio.ensure_future(anext(reader))
        await turns()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert reader.position == 6
    source.append(1)
    assert (await anext(reader)).offset == 6
    assert not source.visible.has_waiters


async def test_after_an_error_the_position_is_that_of_the_record_not_delivered() -> None:
    source = ListSource(50)
    reader = Reader(source, follow=False)
    found = [(await anext(reader)).offset for _ in range(20)]
    source.errors = [StorageUnavailableError("just now"), StorageUnavailableError("again")]
    for _ in range(2):
        with pytest.raises(StorageUnavailableError):
            await anext(reader)
        assert reader.position == 21
    assert found + await drain(reader) == list(range(1, 51))


async def test_the_limit_may_fall_behind_the_position_after_a_seek_and_catch_up() -> None:
    source = ListSource(5)
    source.tail = 10  # accepted, not yet visible
    reader = Reader(source, start=8)
    assert reader.is_caught_up
    waiting = asyncio.ensure_future(anext(reader))
    await turns()
    source.tail = 6
    source.append(5)
    assert (await waiting).offset == 8


# -- over a real log -------------------------------------------------------------------------------


async def test_two_readers_of_one_log_do_not_disturb_each_other(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL) as wal:
        slow, fast = wal.follow(), wal.follow()
        seen: list[list[int]] = [[], []]
        for n in range(100):
            await wal.append(b"x" * 500)
            seen[0].append((await anext(fast)).offset)
            if n % 10 == 9:
                seen[1].append((await anext(slow)).offset)
        while len(seen[1]) < 100:
            seen[1].append((await anext(slow)).offset)
        assert seen[0] == seen[1] == list(range(1, 101))


async def test_a_following_reader_ends_when_the_log_closes(log_directory: Path) -> None:
    wal = await Wal.open(log_directory)
    reader = wal.follow()
    await wal.append(b"a")
    assert (await anext(reader)).offset == 1
    waiting = asyncio.ensure_future(anext(reader))
    await turns()
    await wal.aclose()
    with pytest.raises(WalClosedError):
        await waiting
    for start in (1, 2):
        with pytest.raises(WalClosedError):
            await anext(wal.follow(start))


async def test_reads_of_a_damaged_segment_are_typed_errors(log_directory: Path) -> None:
    async with Wal.open(log_directory, settings=SMALL.replace(cache_bytes=0)) as wal:
        for n in range(80):
            await wal.append(b"%04d" % n * 250)
        path = wal._state.sealed_segments()[0].path
        data = bytearray(path.read_bytes())
        data[5000] ^= 1
        path.write_bytes(data)
        reader = wal.reader(follow=False)
        found: list[int] = []
        with pytest.raises(CorruptionError) as error:
            async for record in reader:
                found.append(record.offset)
        assert error.value.path == str(path)
        assert found == list(range(1, reader.position))
        path.write_bytes(bytes(data[:5000]) + bytes([data[5000] ^ 1]) + bytes(data[5001:]))
        assert found + [r.offset for r in await read_all(wal, reader.position)] == list(
            range(1, 81)
        )


async def test_a_read_that_fails_once_can_be_repeated(log_directory: Path, faulty) -> None:
    async with Wal.open(log_directory, settings=SMALL.replace(cache_bytes=0), fs=faulty) as wal:
        await wal.append_many([b"a", b"b"])
        reader = wal.follow()
        for kind in ("open", "pread"):
            faulty.fail(kind)
            with pytest.raises(StorageUnavailableError, match="cannot be read") as error:
                await anext(reader)
            assert error.value.retriable
            assert isinstance(error.value.__cause__, OSError)
        assert (await anext(reader)).value == b"a"
        assert (await wal.append(b"c")) == 3, "a failed read does not fail the log"


async def test_polling_an_idle_log_keeps_nothing(log_directory: Path) -> None:
    async with Wal.open(log_directory) as wal:
        readers = [wal.follow() for _ in range(3)]
        follower = asyncio.create_task(anext(wal.follow()))
        await turns()
        for _ in range(50):
            await asyncio.gather(*(reader.fetch(max_wait_seconds=0) for reader in readers))
        limit = wal._state.durable
        assert len(limit._queue) + len(limit._others) < 10
        await wal.append(b"a")
        assert (await follower).offset == 1
        assert [len(await reader.fetch()) for reader in readers] == [1, 1, 1]
        await until(lambda: not limit.has_waiters)


# -- seeking by words and times --------------------------------------------------------------------


async def test_seeking_goes_wherever_a_reader_may_begin() -> None:
    source = ListSource(20, head=5)
    reader = Reader(source, start=9, follow=False)
    await anext(reader)
    reader.seek("latest")
    assert [record async for record in reader] == []
    reader.seek(Start.EARLIEST)
    assert (await anext(reader)).offset == 5
    reader.seek(from_timestamp_us(12_000))
    assert (await anext(reader)).offset == 12
    reader.seek(from_timestamp_us(11_001))
    assert [record.offset for record in await reader.fetch(max_records=2)] == [12, 13]
    reader.seek(7)
    assert await drain(reader) == list(range(7, 25))


@pytest.mark.parametrize("place", ["first", None, 1.5, True, False, b"latest", [1]])
async def test_seeking_elsewhere_is_refused_and_changes_nothing(place) -> None:
    reader = Reader(ListSource(20), start=3, follow=False)
    await anext(reader)
    with pytest.raises(ValueError, match="a place to seek must be"):
        reader.seek(place)
    with pytest.raises(ValueError, match="needs a time zone"):
        reader.seek(datetime.now())
    assert (await anext(reader)).offset == 4


async def test_offsets_begin_at_1() -> None:
    for start in (0, -1):
        with pytest.raises(OffsetTrimmedError, match="offsets begin at 1; start at 'earliest'"):
            await anext(Reader(ListSource(3), start=start))


async def test_an_odd_stop_or_stream_is_refused() -> None:
    for stop in (True, "3", 1.0):
        with pytest.raises(TypeError, match="stop must be an int"):
            Reader(ListSource(3), stop=stop)
    with pytest.raises(ValueError, match="stream must not contain lone surrogates"):
        Reader(ListSource(3), stream="\ud800")
