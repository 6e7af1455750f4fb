"""CommittedReader on real logs: following, resuming, reading again, and errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.local import SMALL, UnsyncedFileSystem, turns
from tests.messages import P, Q, committed, ids
from walstore import (
    FormatVersionError,
    OffsetTrimmedError,
    StorageUnavailableError,
    Wal,
)
from walstore.messages import (
    HEADER,
    CommittedReader,
    Flag,
    Publisher,
    ReadCheckpoint,
    Stamp,
    abort_producers,
)
from walstore.testing import FaultyFileSystem, ManualClock


@pytest.fixture
def faulty() -> FaultyFileSystem:
    """A file system without syncs, failing when told to."""
    return FaultyFileSystem(UnsyncedFileSystem())


@pytest.fixture
async def wal(tmp_path: Path, faulty: FaultyFileSystem, clock: ManualClock) -> AsyncIterator[Wal]:
    """A log with small segments and a small cache."""
    async with Wal.open(tmp_path / "log", settings=SMALL, fs=faulty, clock=clock) as wal:
        yield wal


async def put(wal: Wal, producer: bytes, flag: int, clock: int, value: bytes = b"") -> int:
    """Append a message with a stamp of one's own."""
    stamp = Stamp(producer, clock, flag).encode()
    return await wal.append(value, headers={HEADER: stamp})


async def put_span(wal: Wal, count: int, size: int = 1) -> list[bytes]:
    """Append pending messages of P with clocks from 1 up; return their values."""
    values = [b"%d" % n * size for n in range(1, count + 1)]
    for clock, value in enumerate(values, 1):
        wal.append_nowait(value, headers={HEADER: Stamp(P, clock, Flag.CONTINUE).encode()})
        await turns(3)
    await wal.flush()
    return values


async def test_follows_the_log(wal: Wal, clock: ManualClock) -> None:
    publisher = Publisher(clock=clock)
    reader = CommittedReader(wal)
    waiting = asyncio.ensure_future(anext(reader))
    await publisher.publish_uncommitted(wal, b"1")
    await publisher.wait_durable()
    await turns()
    assert not waiting.done()
    publisher.build_ack_intents()
    await publisher.ack()
    assert (await waiting).value == b"1"
    waiting = asyncio.ensure_future(anext(reader))
    await turns()
    waiting.cancel()
    await asyncio.wait([waiting])
    await wal.append(b"2")
    assert (await anext(reader)).value == b"2", "a cancelled wait loses nothing"
    assert reader.position == wal.tail


@pytest.mark.slow
async def test_a_span_beyond_the_ring_is_read_again_from_the_files(wal: Wal) -> None:
    """More than cache and ring hold, with another producer in between, resumed in the middle."""
    for n in range(1, 200):
        await wal.append(b"%d" % n * 300, headers={HEADER: Stamp(P, n, Flag.CONTINUE).encode()})
        await put(wal, Q, Flag.OUTSIDE, n, b"q%d" % n)
    await put(wal, P, Flag.ACK, 200)
    expected = [b"q%d" % n for n in range(1, 200)] + [b"%d" % n * 300 for n in range(1, 200)]
    assert await committed(wal, ring_records=10) == expected
    assert await committed(wal, ring_bytes=0) == expected
    reads = wal.statistics().file_reads
    reader = CommittedReader(wal, follow=False, ring_records=10)
    found = [(await anext(reader)).value for _ in range(300)]
    assert wal.statistics().file_reads > reads
    state = ReadCheckpoint.from_bytes(reader.checkpoint().to_bytes())
    assert state.position == wal.tail - 1, "the ACK is looked at again"
    found += await committed(wal, state, ring_records=10)
    assert found == expected


async def test_memory_stays_bounded(wal: Wal) -> None:
    reader = CommittedReader(wal, follow=False, ring_bytes=20_000)
    for n in range(1, 100):
        await put(wal, P, Flag.CONTINUE, n, b"x" * 1000)
        async for _ in reader:
            pytest.fail("nothing is committed")
        assert reader._sequencer.ring_bytes <= 20_000


async def test_resuming_behind_every_message(wal: Wal, clock: ManualClock) -> None:
    """Each reader delivers one message and is thrown away."""
    publishers = [Publisher(clock=clock) for _ in range(3)]
    expected: list[bytes] = []
    for turn in range(4):
        for number, publisher in enumerate(publishers):
            for part in range(2):
                await publisher.publish_uncommitted(wal, b"%d-%d-%d" % (turn, number, part))
        for number, publisher in enumerate(publishers):
            publisher.build_ack_intents()
            await publisher.ack()
            expected += [b"%d-%d-%d" % (turn, number, part) for part in range(2)]
    await wal.flush()
    found: list[bytes] = []
    state: ReadCheckpoint | None = None
    while True:
        reader = CommittedReader(wal, checkpoint=state, follow=False, ring_records=3)
        message = await anext(reader, None)
        if message is None:
            break
        found.append(message.value)
        state = reader.checkpoint()
    assert found == expected


async def test_position_and_pin(wal: Wal) -> None:
    await wal.append(b"plain")
    await put(wal, P, Flag.CONTINUE, 1, b"1")
    await put(wal, Q, Flag.OUTSIDE, 1, b"q")
    reader = CommittedReader(wal, follow=False)
    assert reader.position == 1
    assert [record.value async for record in reader] == [b"plain", b"q"]
    assert (reader.position, reader.checkpoint().pin) == (4, 2)
    assert reader.pending == {P: 2}
    await put(wal, P, Flag.ACK, 2)
    assert (await anext(reader)).value == b"1"
    assert reader.position == 4
    assert await anext(reader, None) is None
    assert reader.position == reader.checkpoint().pin == 5


async def test_starts_and_stops(wal: Wal, clock: ManualClock) -> None:
    await wal.append_many([b"1", b"2"])
    clock.advance(10)
    moment = datetime.fromtimestamp(clock.now_us() / 1e6, UTC)
    await wal.append_many([b"3", b"4"])
    for start, values in ((2, [b"2", b"3"]), (moment, [b"3"]), ("latest", [])):
        async with CommittedReader(wal, start=start, stop=4, follow=False) as reader:
            assert [record.value async for record in reader] == values


async def test_a_failed_reading_again_can_be_repeated(wal: Wal, faulty: FaultyFileSystem) -> None:
    values = await put_span(wal, 99, size=300)
    await put(wal, P, Flag.ACK, 100)
    reader = CommittedReader(wal, follow=False, ring_records=0)
    found = [(await anext(reader)).value for _ in range(5)]
    faulty.fail("pread", times=1)
    while True:
        try:
            found.append((await anext(reader)).value)
        except StorageUnavailableError:
            break
    assert len(found) < 99
    found += [record.value async for record in reader]
    assert found == values


async def test_a_span_whose_beginning_was_trimmed_is_an_error(wal: Wal) -> None:
    """Not silently a shorter transaction."""
    await put_span(wal, 199, size=300)
    reader = CommittedReader(wal, follow=False, ring_records=10)
    assert await anext(reader, None) is None
    await wal.rotate()
    await wal.trim(before=150)
    await put(wal, P, Flag.ACK, 200)
    for _ in range(2):
        with pytest.raises(OffsetTrimmedError):
            await anext(reader)


async def test_a_stamp_of_a_newer_version_is_an_error_each_time(wal: Wal) -> None:
    await wal.append(b"fine")
    await wal.append(b"new", headers={HEADER: b"\x02" + bytes(15)})
    reader = CommittedReader(wal, follow=False)
    assert (await anext(reader)).value == b"fine"
    for _ in range(2):
        with pytest.raises(FormatVersionError, match="record 2"):
            await anext(reader)
    assert reader.position == 2


async def test_going_back_is_logged(wal: Wal, caplog: pytest.LogCaptureFixture) -> None:
    for clock_, flag in ((1, 1), (2, 2), (3, 1), (4, 2), (2, 2), (3, 1), (4, 2)):
        await put(wal, P, flag, clock_, b"%d" % clock_)
    with caplog.at_level(logging.WARNING, "walstore.messages"):
        assert await committed(wal) == [b"1", b"3", b"3"]
    assert "record 5 goes back" in caplog.text


async def test_an_operator_can_end_a_span_that_nobody_will(wal: Wal, clock: ManualClock) -> None:
    publisher = Publisher(clock=clock, make_id=ids(P))
    await publisher.publish_uncommitted(wal, b"1")
    await publisher.wait_durable()
    reader = CommittedReader(wal, follow=False)
    assert await anext(reader, None) is None
    assert reader.pending == {P: 1}
    await abort_producers([wal], reader.pending, clock=clock)
    assert await anext(reader, None) is None
    assert reader.pending == {}
