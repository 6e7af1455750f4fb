"""Timeline: times and offsets agree with a plain list, wherever one asks, and asking is cheap."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.local import SMALL, UnsyncedFileSystem, copy_log, drop_before, segments
from tests.waiting import until
from walstore import (
    CorruptionError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
    StorageUnavailableError,
    Wal,
)
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import (
    SEARCH_BYTES,
    Segment,
    find_offset,
    load_summary,
    read_batches,
)
from walstore.log.readonly import ReadonlyWal
from walstore.testing import FaultyFileSystem, ManualClock

FS = PosixFileSystem()
STEP_US = 1_000_000


async def fill(directory: Path, count: int, *, per_segment: int, fs=FS) -> list[int]:
    """Append records a second apart, so many to a segment; return their times."""
    clock = ManualClock()
    times = []
    async with Wal.open(directory, settings=SMALL, clock=clock, fs=fs) as wal:
        for at in range(count):
            clock.advance(1)
            times.append(clock.now_us())
            await wal.append(b"%d" % at)
            if at % per_segment == per_segment - 1:
                await wal.rotate()
    return times


# -- against a plain list --------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        # Records with these times, before or after that of the last one; most are equal or close.
        st.tuples(st.just("append"), st.lists(st.integers(0, 60), min_size=1, max_size=8)),
        st.tuples(st.just("rotate"), st.just([])),
        st.tuples(st.just("trim"), st.lists(st.integers(0, 100), min_size=1, max_size=1)),
        st.tuples(st.just("reopen"), st.just([])),
    ),
    min_size=1,
    max_size=25,
)


class Model:
    """What the log must say, kept in a list."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.head = 1

    def offset_at(self, timestamp_us: int) -> int:
        return max(bisect_left(self.times, timestamp_us) + 1, self.head)

    def append(self, times: list[int]) -> None:
        for time in times:
            self.times.append(max(time, self.times[-1] if self.times else 0))


async def check(model: Model, wal: Wal, aside: ReadonlyWal, directory: Path) -> None:
    """Ask all three for every time there is, and two for every offset, and for some that are not."""
    source = wal._engine.source
    view = await asyncio.to_thread(LogSnapshot.open, directory)
    limit = len(model.times) + 1
    assert aside.limit == limit
    for time in sorted({t + d for t in model.times for d in (-1, 0, 1)} | {0, 1 << 50}):
        if time < 0:
            continue
        expected = model.offset_at(time)
        assert await source.offset_at(time) == expected
        assert await aside.offset_at(time) == expected
        assert await asyncio.to_thread(view.offset_at, time) == expected
    for offset in range(limit + 2):
        found = []
        for ask in (source.timestamp_at, aside.timestamp_at):
            try:
                found.append(await ask(offset))
            except OffsetTrimmedError:
                found.append("trimmed")
            except OffsetNotWrittenError:
                found.append("not written")
        if offset >= limit:
            expected = "not written"
        elif offset < model.head:
            expected = "trimmed"
        else:
            expected = model.times[offset - 1]
        assert found == [expected] * 2


async def play(directory: Path, actions) -> None:
    clock = ManualClock(0)
    fs = UnsyncedFileSystem()
    model = Model()
    wal = await Wal.open(directory, settings=SMALL, clock=clock, fs=fs)
    try:
        async with ReadonlyWal.open(directory, fs=fs) as aside:
            for action, numbers in actions:
                if action == "append":
                    for number in numbers:
                        latest = model.times[-1] if model.times else 0
                        time = max(latest + number - 20, 0)
                        await wal.append(b"x" * 20, timestamp_us=time)
                        model.append([time])
                elif action == "rotate":
                    await wal.rotate()
                elif action == "reopen":
                    await wal.aclose()
                    wal = await Wal.open(directory, settings=SMALL, clock=clock, fs=fs)
                else:
                    before = min(numbers[0], len(model.times) + 1)
                    model.head = await drop_before(wal, before)
            await check(model, wal, aside, directory)
    finally:
        await wal.aclose()


@pytest.mark.slow
@settings(max_examples=30)
@given(ACTIONS)
def test_it_agrees_with_a_plain_list(actions) -> None:
    with TemporaryDirectory() as scratch:
        asyncio.run(play(Path(scratch) / "log", actions))


async def test_many_records_of_one_moment(log_directory: Path) -> None:
    """Equal times over many batches and segments: the first of them is found."""
    clock = ManualClock()
    async with Wal.open(log_directory, settings=SMALL, clock=clock) as wal:
        await wal.append(b"before")
        clock.advance(1)
        moment = clock.now_us()
        for _ in range(60):
            await wal.append_many([bytes(1500)] * 4)
        clock.advance(1)
        last = await wal.append(b"after")
        async with ReadonlyWal.open(log_directory) as aside:
            for source in (wal._engine.source, aside):
                assert await source.offset_at(moment) == 2
                assert await source.offset_at(moment + 1) == last
                assert await source.timestamp_at(2) == await source.timestamp_at(last - 1) == moment
    assert len(segments(log_directory)) > 4


async def test_a_segment_that_goes_while_it_is_asked(
    log_directory: Path, faulty: FaultyFileSystem
) -> None:
    """It was trimmed as the active one, so the head does not move when it goes."""
    async with Wal.open(log_directory, settings=SMALL, fs=faulty) as wal:
        await wal.append_many([b"x"] * 3)
        assert await wal.trim(4) == 4
        view = await asyncio.to_thread(LogSnapshot.open, log_directory)
        (path,) = segments(log_directory)
        with faulty.hold("open", name=path.name) as hold:
            asked = asyncio.create_task(wal.offset_at(0))
            await hold.wait_entered()
            await wal.rotate()
            await until(lambda: not path.exists())
        assert await asked == 4
        assert await asyncio.to_thread(view.offset_at, 0) == 4


# -- what it costs ---------------------------------------------------------------------------------

SEGMENTS = 100
PER_SEGMENT = 10


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    directory = tmp_path_factory.mktemp("many") / "log"
    count = SEGMENTS * PER_SEGMENT + 5
    times = asyncio.run(fill(directory, count, per_segment=PER_SEGMENT, fs=UnsyncedFileSystem()))
    return directory, times


@pytest.fixture
def many(template: tuple[Path, list[int]], tmp_path: Path) -> tuple[Path, list[int]]:
    """A log of a hundred sealed segments and an active one, and the times of its records."""
    return copy_log(template[0], tmp_path / "many"), template[1]


def sealed_segments(directory: Path) -> list[Segment]:
    return [Segment(path, int(path.stem)) for path in segments(directory)]


@pytest.mark.slow
async def test_files_looked_at_grow_with_the_logarithm(
    many: tuple[Path, list[int]], faulty: FaultyFileSystem
) -> None:
    """No summary is known: each step of the search reads one footer."""
    directory, times = many
    most = 0
    for at in range(0, len(times), 37):
        sources = await asyncio.to_thread(sealed_segments, directory)
        before = faulty.count("open")
        found = await asyncio.to_thread(find_offset, faulty, sources, times[at], 1 << 60)
        assert found == at + 1
        most = max(most, faulty.count("open") - before)
    assert most <= math.ceil(math.log2(SEGMENTS + 1)) + 1


async def test_with_summaries_one_file_is_looked_at(
    many: tuple[Path, list[int]], faulty: FaultyFileSystem
) -> None:
    """As in a log that is open for writing: its segments' times are in memory."""
    directory, times = many
    async with Wal.open(directory, settings=SMALL, fs=faulty) as wal:
        for at in range(0, len(times), 37):
            before = faulty.count("open"), faulty.count("pread")
            assert await wal._engine.source.offset_at(times[at]) == at + 1
            assert faulty.count("open") - before[0] == 1
            assert faulty.count("pread") - before[1] <= 4, "header, seal, footer, frames"
            assert await wal._engine.source.timestamp_at(at + 1) == times[at]


async def test_from_outside_a_few_files_are_looked_at(
    many: tuple[Path, list[int]], faulty: FaultyFileSystem
) -> None:
    """The checkpoint knows the times of all segments that were sealed before it."""
    directory, times = many
    async with ReadonlyWal.open(directory, fs=faulty) as aside:
        for at in range(0, len(times), 37):
            before = faulty.count("open")
            assert await aside.offset_at(times[at]) == at + 1
            assert faulty.count("open") - before <= 2


async def test_a_large_segment_is_read_at_one_place(log_directory: Path) -> None:
    faulty = FaultyFileSystem(UnsyncedFileSystem())
    clock = ManualClock()
    times = []
    large = SMALL.replace(segment_bytes=16 << 20)
    async with Wal.open(log_directory, settings=large, clock=clock, fs=faulty) as wal:
        for _ in range(500):
            clock.advance(1)
            times.append(clock.now_us())
            await wal.append(bytes(5000))
        for at in range(0, len(times), 41):
            calls = len(faulty.calls)
            assert await wal._engine.source.offset_at(times[at]) == at + 1
            read = [call.size_bytes or 0 for call in faulty.calls[calls:] if call.kind == "pread"]
            assert sum(read) <= 1 << 16


# -- what may be wrong -----------------------------------------------------------------------------


async def test_no_segments_and_no_records(log_directory: Path) -> None:
    assert find_offset(FS, [], 5, 100) is None
    async with Wal.open(log_directory) as wal:
        assert await wal._engine.source.offset_at(0) == 1
        async with ReadonlyWal.open(log_directory) as aside:
            assert await aside.offset_at(0) == 1


async def test_a_sealed_segment_without_its_footer(many: tuple[Path, list[int]]) -> None:
    directory, times = many
    sources = await asyncio.to_thread(sealed_segments, directory)
    middle = sources[50]
    data = await asyncio.to_thread(middle.path.read_bytes)
    await asyncio.to_thread(middle.path.write_bytes, data[:-4])
    with pytest.raises(CorruptionError, match="lost its footer"):
        await asyncio.to_thread(load_summary, FS, middle)
    with pytest.raises(CorruptionError, match="lost its footer"):
        await asyncio.to_thread(find_offset, FS, sources, times[0], 1 << 60)


async def test_a_summary_is_read_once(
    many: tuple[Path, list[int]], faulty: FaultyFileSystem
) -> None:
    directory, times = many
    source = (await asyncio.to_thread(sealed_segments, directory))[3]
    for _ in range(2):
        await asyncio.to_thread(load_summary, faulty, source)
    assert source.summary is not None
    assert source.summary.max_timestamp_us == times[39]
    assert faulty.count("open") == 1
    (batch,) = await asyncio.to_thread(read_batches, FS, source, 31, 32, SEARCH_BYTES)
    assert batch.timestamps_us[0] == times[30]


async def test_segments_that_vanish_during_a_search(
    many: tuple[Path, list[int]], faulty: FaultyFileSystem
) -> None:
    """Retention removes the one that is looked at: the first record that is left is found."""
    directory, times = many
    async with Wal.open(directory, settings=SMALL, fs=faulty) as wal:
        hold = faulty.hold("open", name="*.wal")
        asking = asyncio.create_task(wal._engine.source.offset_at(times[0]))
        await hold.wait_entered()
        dropping = asyncio.create_task(drop_before(wal, 500))
        hold.release()
        head = await dropping
        assert await asking in (1, head)
        assert await wal._engine.source.offset_at(times[0]) == head
        view = await asyncio.to_thread(LogSnapshot.open, directory)
        async with ReadonlyWal.open(directory) as aside:
            assert await aside.offset_at(0) == head
            head = await drop_before(wal, 800)
            assert await aside.offset_at(0) == head
            with pytest.raises(OffsetTrimmedError):
                await asyncio.to_thread(view.offset_at, 0)


async def test_a_disk_that_does_not_read(
    many: tuple[Path, list[int]], faulty: FaultyFileSystem
) -> None:
    directory, times = many
    async with Wal.open(directory, settings=SMALL, fs=faulty) as wal:
        faulty.fail("open", name="*.wal")
        with pytest.raises(StorageUnavailableError):
            await wal._engine.source.offset_at(times[300])
        assert await wal._engine.source.offset_at(times[300]) == 301
    with pytest.raises(Exception, match="closed"):
        await wal._engine.source.offset_at(0)
