"""Where appends wait: in order, whole, and not too many."""

from __future__ import annotations

import asyncio

import pytest

from uploader.format.layout import MAX_U64
from uploader.write.append_queue import EARLY_BYTES, AppendQueue
from uploader.write.writer_settings import WriterSettings
from walstore.core.batches.append_request import make_group
from walstore.errors import (
    LimitExceededError,
    OffsetMismatchError,
    RecordTooLargeError,
    WalClosedError,
)

SETTINGS = WriterSettings(
    fragment_bytes=4096, pending_bytes=64 << 10, pending_records=20, max_record_bytes=50_000
)


class Bench:
    def __init__(self, settings: WriterSettings = SETTINGS) -> None:
        self.notified = 0
        self.queue = AppendQueue(settings, asyncio.get_running_loop(), tail=1, notify=self.note)

    def note(self) -> None:
        self.notified += 1

    async def add(self, *values: bytes, expect: int | None = None):
        return await self.queue.add(make_group(values, None, None, None, None), expect)


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_I1_in_order_about_a_fragment_at_a_time(bench: Bench) -> None:
    for number in range(6):
        await bench.add(b"%d" % number + bytes(1500))
    await bench.add(*[bytes(1500)] * 5)  # larger than a fragment, and whole
    sizes = []
    while not bench.queue.is_empty:
        first, *others = bench.queue.fragments
        assert bench.queue.is_full == (first.size_bytes >= 4096 or bool(others))
        sizes.append(bench.queue.take().count)
    assert sizes == [2, 2, 2, 5]
    assert bench.queue.tail == 12


async def test_it_tells_when_there_is_something_and_when_there_is_enough() -> None:
    large = WriterSettings(fragment_bytes=8 << 20, max_record_bytes=8 << 20)
    bench = Bench(large)
    await bench.add(b"first")
    assert bench.notified == 1
    await bench.add(b"second")
    assert bench.notified == 1
    assert not bench.queue.is_large
    await bench.add(bytes(EARLY_BYTES))
    assert bench.notified == 2
    assert bench.queue.is_large


async def test_it_is_full_once_nothing_more_goes_into_the_first(bench: Bench) -> None:
    """Also if that is a little less than a whole fragment."""
    for _ in range(4):
        await bench.add(bytes(1000))
    assert not bench.queue.is_full
    before = bench.notified
    await bench.add(bytes(1000))
    assert bench.queue.is_full
    assert bench.notified == before + 1
    bench.queue.take()
    assert not bench.queue.is_full


async def test_I2_bytes_are_bounded(bench: Bench) -> None:
    await bench.add(bytes(40_000))
    waiting = asyncio.create_task(bench.add(bytes(40_000)))
    await asyncio.sleep(0)
    assert bench.queue.blocked == 1
    pending = bench.queue.take()
    assert not waiting.done()  # taken is not released
    bench.queue.release(pending.size_bytes, pending.count)
    await waiting
    assert bench.queue.waiting_records == 1


async def test_I2_records_are_bounded(bench: Bench) -> None:
    await bench.add(*[b""] * 20)
    waiting = asyncio.create_task(bench.add(b""))
    await asyncio.sleep(0)
    bench.queue.release(0, 1)
    await waiting


async def test_I2_one_alone_may_be_larger(bench: Bench) -> None:
    await bench.add(*[b""] * 21)
    assert bench.queue.waiting_records == 21


async def test_I3_nobody_overtakes(bench: Bench) -> None:
    await bench.add(bytes(40_000))
    large = asyncio.create_task(bench.add(bytes(40_000)))
    await asyncio.sleep(0)
    small = asyncio.create_task(bench.add(b"small"))
    await asyncio.sleep(0)
    assert bench.queue.blocked == 2
    large.cancel()
    await asyncio.wait((large,))
    await small
    assert bench.queue.waiting_records == 2


async def test_expectations_are_checked_where_the_order_is_made(bench: Bench) -> None:
    await bench.add(b"1", expect=1)
    with pytest.raises(OffsetMismatchError) as told:
        await bench.add(b"x", expect=1)
    assert (told.value.expected, told.value.actual) == (1, 2)
    await bench.add(*[b""] * 19)
    right = asyncio.create_task(bench.add(b"22", expect=21))
    wrong = asyncio.create_task(bench.add(b"x", expect=21))
    await asyncio.sleep(0)
    bench.queue.release(0, 2)
    await right
    with pytest.raises(OffsetMismatchError):
        await wrong
    assert bench.queue.waiting_records == 19


async def test_too_large(bench: Bench) -> None:
    with pytest.raises(RecordTooLargeError, match="max_record_bytes is 50000"):
        await bench.add(bytes(50_001))
    with pytest.raises(RecordTooLargeError, match="pending_bytes"):
        await bench.add(*[bytes(40_000)] * 2)


async def test_no_offsets_are_left() -> None:
    bench = Bench()
    bench.queue.tail = MAX_U64 - 1
    with pytest.raises(LimitExceededError):
        await bench.add(b"1", b"2")
    await bench.add(b"1")
    with pytest.raises(LimitExceededError):
        await bench.add(b"2")


async def test_it_stays_closed_for_the_first_reason(bench: Bench) -> None:
    bench.queue.check_open()
    bench.queue.close(WalClosedError("closed"))
    bench.queue.close(WalClosedError("failed", reason="failed"))
    assert bench.queue.is_closed
    with pytest.raises(WalClosedError, match="closed"):
        bench.queue.check_open()


async def test_closed(bench: Bench) -> None:
    await bench.add(*[b""] * 20)
    waiting = asyncio.create_task(bench.add(b""))
    await asyncio.sleep(0)
    bench.queue.close(WalClosedError("closed"))
    with pytest.raises(WalClosedError):
        await waiting
    with pytest.raises(WalClosedError):
        await bench.add(b"")
    assert bench.queue.take().count == 20
