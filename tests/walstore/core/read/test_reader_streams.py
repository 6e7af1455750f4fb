"""Reading one stream: the records of the stream and no others, however it is read."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import frames
from tests.cases import case
from tests.local import turns
from walstore import CorruptionError, OffsetNotWrittenError, OffsetTrimmedError, Record, Wal
from walstore.core.batches.batch import Batch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.read.reader import Reader
from walstore.core.runtime.watermark import Watermark

STREAMS = (None, "a", "b", "c")


class StreamSource:
    """A log in memory; each number in ``cuts`` ends a batch. Counts what is asked of it."""

    def __init__(self, records: list[Record], cuts: set[int] | None = None, per_read: int = 2):
        self.records = records
        self.head = records[0].offset if records else 1
        self.tail = self.head + len(records)
        self.visible = Watermark(self.tail, asyncio.get_running_loop())
        self.per_read = per_read
        self.reads: list[int] = []
        self.suspends = True
        self.damaged_from = 1 << 60
        self.batches: list[FrameBatch] = []
        self._frame(records, cuts or set())

    @property
    def limit(self) -> int:
        return self.visible.value

    async def wait_limit(self, limit: int) -> None:
        await self.visible.wait(limit)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        self.reads.append(position)
        if self.suspends:
            await asyncio.sleep(0)
        if position >= self.damaged_from:
            raise CorruptionError("damaged", path="x")
        assert position < limit <= self.limit
        found = [b.view(b.start, b.limit) for b in self.batches if b.limit > position]
        return [
            batch.slice(max(position, batch.start), min(limit, batch.limit))
            for batch in found[: self.per_read]
            if batch.start < limit
        ]

    async def offset_at(self, timestamp_us: int) -> int:
        late = [r.offset for r in self.records if r.timestamp_us >= timestamp_us]
        return late[0] if late else self.limit

    def append(self, *streams: str | None) -> None:
        """Append one batch of records in these streams."""
        more = make(streams, start=self.tail)
        self.records += more
        self._frame(more, set())
        self.tail += len(more)
        self.visible.advance(self.tail)

    def _frame(self, records: list[Record], cuts: set[int]) -> None:
        rows: list[Record] = []
        for record in records:
            if record.offset in cuts and rows:
                self.batches.append(frames.batch_of(frames.build(rows)))
                rows = []
            rows.append(record)
        if rows:
            self.batches.append(frames.batch_of(frames.build(rows)))


class IndexedSource(StreamSource):
    """Knows of each part of ten offsets which streams it holds, as sealed segments do."""

    async def skip_stream(self, name: str, position: int, limit: int) -> int:
        await asyncio.sleep(0)
        while position < limit:
            end = position - position % 10 + 10
            if any(r.stream == name for r in self.records if end - 10 <= r.offset < end):
                return position
            position = end
        return limit


def make(streams, start: int = 1) -> list[Record]:
    return [
        Record(offset, b"%d" % offset, stream=name, timestamp_us=offset * 1000)
        for offset, name in enumerate(streams, start)
    ]


def every_tenth(count: int = 95) -> list[Record]:
    """Records of which 5, 15, 25, … are of stream ``a``, the others of ``b``."""
    return make("a" if offset % 10 == 5 else "b" for offset in range(1, count + 1))


async def drain(reader: Reader) -> list[int]:
    return [record.offset async for record in reader]


# -- what is delivered -----------------------------------------------------------------------------


async def test_it_delivers_the_records_of_the_stream_as_they_are() -> None:
    records = every_tenth()
    source = StreamSource(records, cuts=set(range(1, 96, 7)))
    reader = Reader(source, stream="a", follow=False)
    assert [record async for record in reader] == [r for r in records if r.stream == "a"]
    assert (reader.position, reader.is_caught_up) == (96, True)


async def test_it_begins_and_stops_at_offsets_of_the_log() -> None:
    for stop in (None, 5, 6, 50, 96, 200):
        for start in (1, 5, 6, 14, 15, 16, 85, 86, 95, 96):
            with case(stop, start):
                source = StreamSource(every_tenth(), cuts=set(range(1, 96, 7)))
                reader = Reader(source, start=start, stop=stop, stream="a", follow=False)
                expected = [offset for offset in range(5, 96, 10) if start <= offset < (stop or 96)]
                assert await drain(reader) == expected
                assert reader.position == max(start, min(stop or 96, 96))


async def test_a_stream_that_is_not_there_has_no_records() -> None:
    source = StreamSource(every_tenth(), cuts=set(range(1, 96, 7)))
    reader = Reader(source, stream="nowhere", follow=False)
    assert await drain(reader) == []
    assert reader.position == 96
    batch = await reader.fetch()
    assert (len(batch), batch.start, batch.limit) == (0, 96, 96)


async def test_batches_follow_each_other_over_what_was_looked_at() -> None:
    source = StreamSource(every_tenth(), cuts=set(range(1, 96, 3)), per_read=4)
    reader = Reader(source, stream="a", follow=False)
    found = []
    async for batch in reader.batches():
        assert reader.position == batch.limit
        found.append(batch)
    assert found[0].start == 1
    assert all(before.limit == after.start for before, after in pairwise(found))
    assert [o for batch in found for o in batch.offsets] == list(range(5, 96, 10))
    assert reader.position == 96


async def test_the_position_while_it_iterates_is_past_what_was_delivered() -> None:
    source = StreamSource(every_tenth(), cuts={40})
    reader = Reader(source, stream="a", follow=False)
    async for record in reader:
        assert record.offset < reader.position
        again = Reader(source, start=reader.position, stream="a", follow=False)
        assert await drain(again) == list(range(record.offset + 10, 96, 10))


async def test_the_position_within_a_batch_is_the_next_record_of_the_stream() -> None:
    source = StreamSource(every_tenth(), cuts={40})
    reader = Reader(source, stream="a", follow=False)
    found = [(record.offset, reader.position) async for record in reader]
    assert found[:5] == [(5, 15), (15, 25), (25, 35), (35, 40), (45, 55)]
    assert found[-1] == (95, 96)


async def test_seek_and_mixed_ways_of_reading() -> None:
    source = StreamSource(every_tenth(), cuts=set(range(1, 96, 7)))
    reader = Reader(source, stream="a", follow=False)
    assert (await anext(reader)).offset == 5
    assert list((await reader.fetch(max_records=2)).offsets) == [15, 25]
    assert list((await anext(reader.batches())).offsets) == [35]
    reader.seek(11)
    assert (await anext(reader)).offset == 15
    reader.seek(95)
    assert (await anext(reader)).offset == 95
    reader.seek(2)
    assert await drain(reader) == list(range(5, 96, 10))


async def test_a_start_by_time() -> None:
    from walstore.records import from_timestamp_us

    source = StreamSource(every_tenth(), cuts=set(range(1, 96, 7)))
    reader = Reader(source, start=from_timestamp_us(17_000), stream="a", follow=False)
    assert await drain(reader) == list(range(25, 96, 10))


@pytest.mark.parametrize(("name", "error"), [("", ValueError), (b"a", TypeError), (1, TypeError)])
async def test_what_is_no_name_is_refused(name, error) -> None:
    with pytest.raises(error, match="stream"):
        Reader(StreamSource(make("a")), stream=name)


async def test_offsets_that_are_gone_or_to_come_are_errors_with_a_stream_too() -> None:
    source = StreamSource(make("abab", start=101))
    with pytest.raises(OffsetTrimmedError):
        await anext(Reader(source, start=50, stream="a"))
    with pytest.raises(OffsetNotWrittenError):
        await anext(Reader(source, start=500, stream="a"))


# -- fetch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3, 10, 500])
@pytest.mark.parametrize("per_read", [1, 5])
async def test_fetch_counts_the_records_that_it_delivers(most, per_read) -> None:
    source = StreamSource(every_tenth(), cuts=set(range(1, 96, 4)), per_read=per_read)
    reader = Reader(source, stream="a", follow=False)
    found: list[int] = []
    position = 1
    while len(batch := await reader.fetch(max_records=most)):
        assert len(batch) == min(most, 10 - len(found))
        assert (batch.start, batch.limit) == (position, reader.position)
        found += batch.offsets
        assert [r.offset for r in batch] == list(batch.offsets)
        position = reader.position
    assert found == list(range(5, 96, 10))
    assert reader.position == batch.limit == 96


async def test_fetch_stops_after_so_many_bytes_of_whatever_stream() -> None:
    """It does not search the whole log for a full batch, but returns at least one record."""
    source = StreamSource(make("b" * 50 + "a" + "b" * 50 + "a"), cuts=set(range(103)), per_read=1)
    reader = Reader(source, stream="a", follow=False, read_bytes=100)
    batch = await reader.fetch(max_bytes=1000)
    assert list(batch.offsets) == [51]
    assert (batch.start, batch.limit) == (1, reader.position)
    assert 52 < reader.position < 70
    assert list((await reader.fetch(max_bytes=1000)).offsets) == [102]


async def test_an_error_behind_records_of_other_streams_comes_with_the_next_fetch() -> None:
    source = StreamSource(every_tenth(40), cuts=set(range(41)), per_read=1)
    source.damaged_from = 30
    reader = Reader(source, stream="a", follow=False)
    batch = await reader.fetch()
    assert (list(batch.offsets), batch.limit) == ([5, 15, 25], 30)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            await reader.fetch()
        assert reader.position == 30


async def test_max_wait_is_one_deadline_however_often_others_append() -> None:
    """Foreign records wake the fetch up; none of them may give it its time again."""
    source = StreamSource(make("b"))
    reader = Reader(source, stream="a")
    fetching = asyncio.ensure_future(reader.fetch(max_wait_seconds=0.1))
    while not fetching.done():  # for ever, if they did
        source.append("b", "c")
        await turns()
    batch = await fetching
    assert len(batch) == 0
    assert (batch.start, batch.limit) == (1, reader.position)
    assert reader.position > 10


async def test_max_wait_holds_while_it_looks_through_what_is_there() -> None:
    source = StreamSource(make("b" * 100), cuts=set(range(101)), per_read=1)
    reader = Reader(source, stream="a", follow=False)
    positions = [(await reader.fetch(max_wait_seconds=0)).limit for _ in range(5)]
    assert positions == [2, 3, 4, 5, 6], "each call gets on, none goes to the end"


async def test_a_fetch_that_waits_returns_the_first_record_of_the_stream() -> None:
    source = StreamSource(make("ab"))
    reader = Reader(source, start=3, stream="a")
    for wait in (None, 60):
        fetching = asyncio.ensure_future(reader.fetch(max_wait_seconds=wait))
        for _ in range(3):
            source.append("b")
            await turns()
            assert not fetching.done()
        source.append("b", "a", "b")
        batch = await fetching
        assert list(batch.offsets) == [source.tail - 2]
        assert batch.limit == reader.position == source.tail
        assert reader.is_caught_up


# -- following -------------------------------------------------------------------------------------


async def test_a_follower_gets_only_its_records_and_moves_past_the_others() -> None:
    source = StreamSource(make("ab"))
    reader = Reader(source, start="latest", stream="a")
    reading = asyncio.ensure_future(anext(reader))
    for _ in range(5):
        source.append("b", "c")
        await turns()
    assert not reading.done()
    assert (reader.position, reader.is_caught_up) == (13, True)
    source.append("b", "a")
    assert (await reading).offset == 14
    assert reader.position == 15


async def test_cached_records_of_others_do_not_starve_the_loop(monkeypatch) -> None:
    """Reads that never suspend: every so often the loop must turn."""
    monkeypatch.setattr("walstore.core.read.reader._TURN_SECONDS", 0)
    source = StreamSource(make("b" * 500 + "a"), cuts=set(range(502)), per_read=1)
    source.suspends = False
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    assert (await anext(Reader(source, stream="a"))).offset == 501
    assert ticks >= 500
    ticking.cancel()


async def test_batches_of_other_streams_are_passed_by_their_names_alone(monkeypatch) -> None:
    source = StreamSource(make("b" * 30 + "a" * 3), cuts={*range(1, 31, 3), 31})
    looked_into: list[int] = []
    unpacked: list[int] = []
    uints, names = FrameBatch.uints, FrameBatch.stream_names

    def count_uints(self, kind):
        looked_into.append(self.start)
        return uints(self, kind)

    def count_names(self):
        if not self._names:
            unpacked.append(self.start)
        return names.fget(self)

    monkeypatch.setattr(FrameBatch, "uints", count_uints)
    monkeypatch.setattr(FrameBatch, "stream_names", property(count_names))
    for _ in range(3):
        found = [b async for b in Reader(source, stream="a", follow=False).batches()]
        assert [list(batch.offsets) for batch in found] == [[31, 32, 33]]
        assert not any(batch.has_decoded_values for batch in source.batches)
    assert looked_into == []
    assert len(unpacked) == len(source.batches), "once for each frame, not for each reader"


# -- sources that know where a stream is not -------------------------------------------------------


async def test_what_the_source_rules_out_is_not_read() -> None:
    source = IndexedSource(make(["b"] * 49 + ["a"] + ["b"] * 45), cuts=set(range(1, 96, 5)))
    reader = Reader(source, stream="a", follow=False)
    assert await drain(reader) == [50]
    assert reader.position == 96
    assert all(50 <= position < 60 for position in source.reads)
    assert list((await Reader(source, follow=False).fetch()).offsets) == list(range(1, 96))


async def test_stop_lies_within_what_is_skipped() -> None:
    source = IndexedSource(make("b" * 95))
    reader = Reader(source, stream="a", stop=33, follow=False)
    assert await drain(reader) == []
    assert (reader.position, source.reads) == (33, [])


# -- interruptions ---------------------------------------------------------------------------------


READS = {
    "anext": lambda reader: anext(reader),
    "batches": lambda reader: anext(reader.batches()),
    "fetch": lambda reader: reader.fetch(max_records=4),
}


@pytest.mark.parametrize("kind", [StreamSource, IndexedSource])
@pytest.mark.parametrize("way", READS)
async def test_L14_cancelled_at_any_await_it_loses_nothing(way, kind) -> None:
    """Cancel after 0, 1, 2, … turns of the event loop, until the read finishes by itself."""
    for after in range(200):
        source = kind(every_tenth(), cuts=set(range(1, 96, 2)), per_read=1)
        reader = Reader(source, start=6, stream="a", follow=False)
        task = asyncio.ensure_future(READS[way](reader))
        await turns(after)
        task.cancel()
        await asyncio.wait([task])
        delivered: list[int] = []
        if not task.cancelled():
            found = task.result()
            delivered = [found.offset] if way == "anext" else [r.offset for r in found]
        delivered += await drain(reader)
        assert delivered == list(range(15, 96, 10)), after
        if not task.cancelled():
            break
    else:
        pytest.fail("it never finished")
    assert after >= 5


# -- against a list --------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Record], set[int]]:
    streams = draw(st.lists(st.sampled_from(STREAMS), min_size=1, max_size=60))
    start = draw(st.integers(1, 1000))
    records = make(streams, start)
    cuts = draw(st.sets(st.sampled_from([record.offset for record in records])))
    return records, cuts


@pytest.mark.slow
@given(logs(), st.sampled_from(STREAMS[1:]), st.integers(1, 4), st.booleans(), st.data())
def test_any_way_of_reading_is_a_walk_over_a_list(log, name, per_read, indexed, data) -> None:
    records, cuts = log
    head, limit = records[0].offset, records[-1].offset + 1

    async def walk() -> None:
        kind = IndexedSource if indexed else StreamSource
        source = kind(records, cuts, per_read)
        stop = data.draw(st.none() | st.integers(head, limit + 3))
        end = limit if stop is None else min(stop, limit)
        reader = Reader(source, stop=stop, stream=name, follow=False)
        at = head  # everything of the stream before it was delivered
        for _ in range(data.draw(st.integers(1, 12))):
            wanted = [r for r in records if r.stream == name and at <= r.offset < end]
            before = reader.position
            match data.draw(st.sampled_from(["next", "fetch", "poll", "batch", "seek"])):
                case "next":
                    found = await anext(reader, None)
                    assert found == (wanted[0] if wanted else None)
                    at = found.offset + 1 if found else max(at, end)
                case "fetch":
                    most = data.draw(st.integers(1, 20))
                    batch = await reader.fetch(max_records=most)
                    assert batch.records() == wanted[: len(batch)]
                    assert len(batch) == min(most, len(wanted))
                    assert (batch.start, batch.limit) == (before, reader.position)
                    at = max(at, reader.position)
                case "poll":
                    batch = await reader.fetch(max_wait_seconds=0, max_bytes=1)
                    assert batch.records() == wanted[: len(batch)]
                    assert (batch.start, batch.limit) == (before, reader.position)
                    at = max(at, reader.position)
                case "batch":
                    found = await anext(reader.batches(), None)
                    assert (found is None) == (not wanted)
                    if found is not None:
                        assert found.records() == wanted[: len(found)]
                        assert (found.start, found.limit) == (before, reader.position)
                    at = max(at, reader.position)
                case "seek":
                    at = data.draw(st.integers(head, limit))
                    reader.seek(at)
            assert reader.position >= min(at, limit)
            skipped = [r for r in records if at <= r.offset < reader.position]
            assert all(record.stream != name for record in skipped)
        if at <= end:
            wanted = [r for r in records if r.stream == name and at <= r.offset < end]
            assert [record async for record in reader] == wanted
            assert reader.position == max(at, end)

    asyncio.run(walk())


# -- over a real log -------------------------------------------------------------------------------


async def test_streams_of_a_real_log(log_directory) -> None:
    from tests.local import SMALL

    async with Wal.open(log_directory, settings=SMALL) as wal:
        for n in range(600):
            wal.append_nowait(b"%04d" % n * 100, stream=f"s{n % 7}" if n % 8 else None)
            if n % 300 == 0:
                await wal.flush()
        await wal.flush()
        assert len(wal._state.segments) > 3
        everything = [record async for record in wal.reader(follow=False)]
        for name in ("s0", "s3", "none"):
            reader = wal.reader(stream=name, follow=False)
            assert [r async for r in reader] == [r for r in everything if r.stream == name]
            assert reader.position == 601
