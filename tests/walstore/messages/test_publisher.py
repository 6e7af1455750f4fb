"""Publisher: clock order is log order, transactions, intents, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.local import SMALL, UnsyncedFileSystem, read_all, turns
from tests.messages import P, Q, committed, ids
from walstore import ExpectationError, InvalidSettingsError, Settings, Wal, WalClosedError
from walstore.core.settings import KIB
from walstore.messages import HEADER, CommittedReader, Flag, Publisher, Stamp
from walstore.testing import FaultyFileSystem, ManualClock

NARROW = SMALL.replace(channel_bytes=16 * KIB, batch_bytes=4 * KIB, max_record_bytes=8 * KIB)


@pytest.fixture
def faulty() -> FaultyFileSystem:
    """A file system without syncs, failing when told to."""
    return FaultyFileSystem(UnsyncedFileSystem())


@pytest.fixture
async def a(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Wal]:
    """A log."""
    async with Wal.open(tmp_path / "a", fs=UnsyncedFileSystem(), clock=clock) as wal:
        yield wal


@pytest.fixture
async def b(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Wal]:
    """Another log."""
    async with Wal.open(tmp_path / "b", fs=UnsyncedFileSystem(), clock=clock) as wal:
        yield wal


@pytest.fixture
def publisher(clock: ManualClock) -> Publisher:
    """A publisher whose producer is P."""
    return Publisher(clock=clock, make_id=ids(P))


async def stamps(wal: Wal) -> list[Stamp]:
    """Return the stamps of all records."""
    await wal.flush()
    return [Stamp.decode(record.headers[HEADER]) for record in await read_all(wal)]


async def test_a_committed_message_is_an_ordinary_record_with_a_stamp(a, publisher) -> None:
    headers = {"h": b"1"}
    offset = await publisher.publish_committed(
        a, b"v", key=b"k", stream="s", headers=headers, timestamp_us=5
    )
    assert a.durable_limit == offset + 1
    (record,) = await read_all(a)
    assert (record.value, record.key, record.stream) == (b"v", b"k", "s")
    assert record.headers["h"] == b"1"
    assert Stamp.of(record)[::2] == (P, Flag.OUTSIDE)
    assert headers == {"h": b"1"}
    assert await committed(a) == [b"v"]


async def test_the_level_is_the_callers_choice(a, publisher) -> None:
    with pytest.raises(InvalidSettingsError):
        await publisher.publish_committed(a, b"v", durability="nowhere")
    assert a.tail == 1, "checked before anything is appended"
    await publisher.publish_committed(a, b"v", durability="memory")
    assert a.tail == 2


async def test_clock_order_is_log_order_under_pressure(tmp_path: Path) -> None:
    """Many tasks, two logs that are full most of the time, and some callers that give up."""
    fs = UnsyncedFileSystem()
    publisher = Publisher()
    async with (
        Wal.open(tmp_path / "a", settings=NARROW, fs=fs) as a,
        Wal.open(tmp_path / "b", settings=NARROW, fs=fs) as b,
    ):

        async def work(number: int) -> None:
            for turn in range(25):
                call = publisher.publish_committed(
                    (a, b)[turn % 2], b"x" * 3000, durability="memory"
                )
                if (number + turn) % 5:
                    await call
                    continue
                task = asyncio.ensure_future(call)
                await turns(number % 3)
                task.cancel()
                await asyncio.wait([task])

        await asyncio.gather(*map(work, range(12)))
        clocks = [[stamp.clock for stamp in await stamps(wal)] for wal in (a, b)]
    for found in clocks:
        assert len(found) > 100
        assert found == sorted(set(found))
    assert not set(clocks[0]) & set(clocks[1])


class SlowLog:
    """A log that does something else before it accepts, some times longer than others."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._calls = 0
        self.log_id = wal.log_id
        self.wait_durable = wal.wait_durable

    async def append(self, *arguments: Any) -> int:
        self._calls += 1
        await turns((7 * self._calls) % 5)
        return await self._wal.append(*arguments)


async def test_clock_order_is_log_order_however_long_the_log_thinks(a, publisher) -> None:
    slow = SlowLog(a)
    calls = [publisher.publish_committed(slow, b"", durability="memory") for _ in range(20)]
    await asyncio.gather(*calls)
    clocks = [stamp.clock for stamp in await stamps(a)]
    assert clocks == sorted(set(clocks))


async def test_a_transaction_is_invisible_until_its_ack(a, b, publisher) -> None:
    for n in range(3):
        await publisher.publish_uncommitted(a, b"a%d" % n)
    await publisher.publish_uncommitted(b, b"b0")
    await publisher.wait_durable()
    assert (a.durable_limit, b.durable_limit) == (4, 2)
    assert await committed(a) == await committed(b) == []
    intents = publisher.build_ack_intents()
    assert await committed(a) == []
    assert await publisher.ack() == {a.log_id: 4, b.log_id: 2}
    await a.flush()
    await b.flush()
    assert await committed(a) == [b"a0", b"a1", b"a2"]
    assert await committed(b) == [b"b0"]
    assert (await stamps(a))[-1] == Stamp.decode(intents[a.log_id])


async def test_intents_are_for_logs_touched_since_the_last_each_with_its_own_tick(
    a, b, publisher
) -> None:
    await publisher.publish_uncommitted(a, b"1")
    first = publisher.build_ack_intents()
    await publisher.ack()
    await publisher.publish_uncommitted(b, b"2")
    await publisher.publish_uncommitted(a, b"3")
    second = publisher.build_ack_intents()
    await publisher.ack()
    assert list(first) == [a.log_id]
    assert set(second) == {a.log_id, b.log_id}
    clocks = [stamp.clock for stamp in [*(await stamps(a)), *(await stamps(b))]]
    assert len(set(clocks)) == len(clocks) == 6
    acks = [Stamp.decode(data) for data in second.values()]
    assert {stamp.flag for stamp in acks} == {Flag.ACK}
    assert all(stamp.clock > publisher_clock for stamp in acks for publisher_clock in clocks[:1])
    assert min(stamp.clock for stamp in acks) > (await stamps(b))[0].clock
    assert publisher.build_ack_intents() == {}, "nothing was published since"


async def test_abort_rolls_back_in_every_log(a, b, publisher) -> None:
    await publisher.publish_uncommitted(a, b"1")
    await publisher.publish_uncommitted(b, b"2")
    await publisher.abort()
    await publisher.publish_uncommitted(a, b"3")
    publisher.build_ack_intents()
    await publisher.ack()
    await a.flush()
    await b.flush()
    assert await committed(a) == [b"3"]
    reader = CommittedReader(b, follow=False)
    assert [record async for record in reader] == []
    assert reader.pending == {}


async def test_abort_drops_intents_that_were_not_sent(a, publisher) -> None:
    await publisher.publish_uncommitted(a, b"1")
    publisher.build_ack_intents()
    await publisher.abort()
    assert await publisher.ack() == {}
    await a.flush()
    assert await committed(a) == []


async def test_nothing_is_published_between_intents_and_ack(a, publisher) -> None:
    await publisher.publish_uncommitted(a, b"1")
    publisher.build_ack_intents()
    with pytest.raises(ExpectationError, match=r"ack\(\) or abort\(\)"):
        await publisher.publish_uncommitted(a, b"2")
    with pytest.raises(ExpectationError, match=r"ack\(\) or abort\(\)"):
        publisher.build_ack_intents()
    await publisher.ack()
    assert await publisher.publish_uncommitted(a, b"2") == 3


async def test_an_ack_needs_its_intents(a, publisher) -> None:
    await publisher.publish_uncommitted(a, b"1")
    with pytest.raises(ExpectationError, match="build_ack_intents"):
        await publisher.ack()


async def test_a_log_sees_one_kind_of_message(a, b, publisher) -> None:
    """A message outside would roll a pending transaction back."""
    await publisher.publish_uncommitted(a, b"1")
    with pytest.raises(ExpectationError, match="another Publisher"):
        await publisher.publish_committed(a, b"2")
    await publisher.publish_committed(b, b"3")
    with pytest.raises(ExpectationError, match="another Publisher"):
        await publisher.publish_uncommitted(b, b"4")
    assert (a.tail, b.tail) == (2, 2)


async def test_no_intents_while_a_message_waits_for_room(
    tmp_path: Path, faulty: FaultyFileSystem, publisher
) -> None:
    """Its clock would be above that of the acknowledgement, and it would be lost."""
    async with Wal.open(tmp_path / "log", settings=NARROW, fs=faulty) as wal:
        with faulty.hold("datasync") as hold:
            for _ in range(5):
                await publisher.publish_uncommitted(wal, b"x" * 3000)
            waiting = asyncio.ensure_future(publisher.publish_uncommitted(wal, b"y" * 8000))
            await hold.wait_entered()
            with pytest.raises(ExpectationError, match="still being published"):
                publisher.build_ack_intents()
        await waiting
        publisher.build_ack_intents()
        await publisher.ack()
        await wal.flush()
        assert len(await committed(wal)) == 6


async def test_acks_that_failed_can_be_sent_again(tmp_path: Path, a, publisher) -> None:
    b = await Wal.open(tmp_path / "b", fs=UnsyncedFileSystem())
    await publisher.publish_uncommitted(a, b"1")
    await publisher.publish_uncommitted(b, b"2")
    publisher.build_ack_intents()
    await b.aclose()
    for _ in range(2):
        with pytest.raises(WalClosedError):
            await publisher.ack()
    await a.flush()
    assert a.tail == 3, "sent once"
    assert await committed(a) == [b"1"]


async def test_abort_reaches_the_other_logs_if_one_fails(tmp_path: Path, a, publisher) -> None:
    b = await Wal.open(tmp_path / "b", fs=UnsyncedFileSystem())
    await publisher.publish_uncommitted(b, b"1")
    await publisher.publish_uncommitted(a, b"2")
    await b.aclose()
    with pytest.raises(WalClosedError):
        await publisher.abort()
    assert [stamp.flag for stamp in await stamps(a)] == [Flag.CONTINUE, Flag.ABORT]


async def test_publisher_sequencer_and_reader_together(a, b, clock) -> None:
    """Two producers with transactions and one without, interleaved over two logs."""
    make_id = ids(P, Q)
    one, two, alone = (Publisher(clock=clock, make_id=make_id) for _ in range(3))
    await one.publish_uncommitted(a, b"one-1")
    await two.publish_uncommitted(a, b"two-1")
    await alone.publish_committed(a, b"alone-1")
    await one.publish_uncommitted(b, b"one-2")
    two.build_ack_intents()
    await two.ack()
    await two.publish_uncommitted(a, b"two-2")
    await one.publish_uncommitted(a, b"one-3")
    one.build_ack_intents()
    await one.ack()
    await two.abort()
    await one.publish_uncommitted(a, b"one-4")
    await a.append(b"plain")
    await b.flush()
    assert await committed(a) == [b"alone-1", b"two-1", b"one-1", b"one-3", b"plain"]
    assert await committed(b) == [b"one-2"]
    reader = CommittedReader(a, follow=False)
    assert [record.value async for record in reader][-1] == b"plain"
    assert set(reader.pending) == {P}


async def test_a_log_that_defaults_to_memory(tmp_path: Path, publisher) -> None:
    """A transaction waits for the disk whatever the log's default is."""
    settings = Settings(durability="memory")
    async with Wal.open(tmp_path / "log", settings=settings) as wal:
        await publisher.publish_uncommitted(wal, b"1")
        await publisher.wait_durable()
        assert wal.durable_limit == 2
