"""Readers that ask for what is accepted: they see it before its sync, and each record once."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from tests.local import SMALL, turns
from walstore import Wal, WalClosedError, WalError
from walstore.core.settings import KIB
from walstore.testing import FaultyFileSystem

pytest.importorskip("pyarrow")


@pytest.fixture
async def wal(log_directory: Path, faulty: FaultyFileSystem):
    """An open log on a file system that can be held."""
    opened = await Wal.open(
        log_directory, settings=SMALL.replace(transaction_memory_bytes=4 * KIB), fs=faulty
    )
    yield opened
    faulty.heal()
    try:
        await opened.aclose()
    except WalError:
        assert opened._engine.writer.failure is not None


async def test_records_are_seen_before_their_sync(wal, faulty) -> None:
    reader, durable = wal.follow(visibility="accepted"), wal.follow()
    with faulty.hold("datasync") as hold:
        writing = asyncio.create_task(wal.append(b"1", b"key", "eu", {"h": b"x"}, 5))
        await hold.wait_entered()
        later = asyncio.create_task(wal.append(b"2"))
        found = [await anext(reader), await anext(reader)]
        assert found[0][:5] == (1, b"1", b"key", "eu", {"h": b"x"})
        assert found[1][:4] == (2, b"2", None, None)
        waiting = asyncio.create_task(anext(reader))
        await turns()
        assert not waiting.done()
        wal.append_nowait(b"3")
        assert (await waiting).value == b"3"
        assert reader.is_caught_up
        assert durable.is_caught_up
        assert durable.position == wal.durable_limit == 1
        assert (await durable.fetch(max_wait_seconds=0)).start == 1
    await asyncio.gather(writing, later)
    assert (await anext(durable)).value == b"1"


async def test_each_record_once_through_drafts_cache_and_files(wal) -> None:
    """A reader that is fast and slow by turns, beside many small and large batches."""
    reader = wal.follow(visibility="accepted")
    found: list[bytes] = []
    sent: list[bytes] = []
    for n in range(300):
        value = b"%d" % n * (1 + 700 * (n % 7 == 0))
        sent.append(value)
        wal.append_nowait(value)
        if n % 3 == 0:
            await turns(n % 11)
        if n % 5 == 0:
            batch = await reader.fetch(max_records=1 + n % 17)
            assert batch.start == len(found) + 1
            found += batch.values
    while len(found) < len(sent):
        found += (await reader.fetch()).values
    assert found == sent


async def test_large_drafts_are_read_in_parts(log_directory, faulty) -> None:
    async with Wal.open(log_directory, fs=faulty) as wal:
        with faulty.hold("datasync") as hold:
            wal.append_nowait(b"1")
            await hold.wait_entered()
            for n in range(2, 40_001):
                wal.append_nowait(b"%d" % n)
            reader = wal.reader(visibility="accepted", stop=40_001, follow=False)
            assert [int(record.value) async for record in reader] == list(range(1, 40_001))


async def test_a_large_transaction_is_seen_once_it_is_a_segment(wal, faulty) -> None:
    reader = wal.follow(visibility="accepted")
    async with wal.transaction() as transaction:
        for _ in range(100):
            await transaction.append(bytes(1000))
        with faulty.hold("replace", name="*.wal") as hold:
            leaving = asyncio.create_task(transaction.__aexit__(None, None, None))
            await hold.wait_entered()
            wal.append_nowait(b"behind")
            reading = asyncio.create_task(reader.fetch(max_records=1000, max_bytes=1 << 20))
            await turns(50)
            assert not reading.done()
        await leaving
    batch = await reading
    assert (batch.start, batch.values[0]) == (1, bytes(1000))
    async with wal.follow(start=101, visibility="accepted") as behind:
        assert (await anext(behind)).value == b"behind"


async def test_batches_become_arrow(wal) -> None:
    wal.append_nowait(b"1", b"k", "eu", {"h": b"x"}, 5)
    wal.append_nowait(b"2")
    batch = await wal.follow(visibility="accepted").fetch()
    rows = batch.to_arrow().to_pylist()
    assert [(row["offset"], row["value"], row["key"]) for row in rows] == [
        (1, b"1", b"k"),
        (2, b"2", None),
    ]
    assert batch.slice(2, 3).values == [b"2"]


async def test_one_stream_of_it(wal) -> None:
    for n in range(6):
        wal.append_nowait(b"%d" % n, None, "eu" if n % 2 else "us")
    batch = await wal.follow(stream="eu", visibility="accepted").fetch()
    assert batch.values == [b"1", b"3", b"5"]


async def test_waiting_readers_learn_that_the_log_ends(wal, faulty) -> None:
    reading = asyncio.create_task(anext(wal.follow(visibility="accepted")))
    await turns()
    faulty.fail("pwrite", error=errno.EIO, times=None)
    late = asyncio.create_task(anext(wal.follow(start=2, visibility="accepted")))
    with pytest.raises(WalError):
        await wal.append(b"x")
    assert (await reading).value == b"x", "it was accepted, and is lost"
    with pytest.raises(WalClosedError):
        await late


async def test_other_words_are_refused(wal) -> None:
    with pytest.raises(ValueError, match="visibility"):
        wal.follow(visibility="synced")
