"""A rate: appends wait in turn for credit, nothing is refused, and what waits may be cancelled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.local import SMALL, turns
from tests.waiting import until
from walstore import Settings, Wal, WalClosedError, WalStore, WouldBlock
from walstore.core.append.append_rate import AppendRate
from walstore.core.batches.batch_builder import RECORD_OVERHEAD_BYTES
from walstore.testing import ManualClock

RATE = 1000
RATED = SMALL.replace(max_append_bytes_per_second=RATE)
HUNDRED = bytes(100 - RECORD_OVERHEAD_BYTES)
"""The value of a record that counts for a tenth of a second."""


@asynccontextmanager
async def opened(
    directory: Path, clock: ManualClock, rated: Settings = RATED
) -> AsyncIterator[Wal]:
    async with Wal.open(directory, settings=rated, clock=clock) as wal:
        yield wal


async def use_up(wal: Wal) -> None:
    """Append one second's worth, which is there when a log is opened."""
    for _ in range(10):
        await wal.append(HUNDRED)


async def test_what_is_above_the_rate_waits(log_directory: Path, clock: ManualClock) -> None:
    async with opened(log_directory, clock) as wal, asyncio.TaskGroup() as group:
        await use_up(wal)
        waiting = [group.create_task(wal.append(HUNDRED)) for _ in range(5)]
        for number, task in enumerate(waiting):
            await clock.wait_for_sleepers()
            assert not task.done()
            assert wal.statistics().blocked_appends == 5 - number
            clock.advance(0.1)
            assert await task == 11 + number
    assert clock.monotonic() == pytest.approx(0.5)


async def test_nothing_is_accepted_at_once_either(log_directory: Path, clock: ManualClock) -> None:
    """Neither a plain value, which the log accepts without looking at any limit, nor any other."""
    async with opened(log_directory, clock) as wal:
        for _ in range(10):
            wal.append_nowait(HUNDRED)
        for options in ({}, {"key": b"k"}):
            with pytest.raises(WouldBlock, match="takes 1000 bytes a second") as caught:
                wal.append_nowait(HUNDRED, **options)
            assert (caught.value.outcome, caught.value.retriable) == ("not_written", True)
        clock.advance(0.01)
        assert wal.append_nowait(HUNDRED) == 11
        with pytest.raises(WouldBlock):
            wal.append_nowait(b"")


async def test_no_more_than_a_second_is_kept(log_directory: Path, clock: ManualClock) -> None:
    async with opened(log_directory, clock) as wal:
        await use_up(wal)
        clock.advance(3600)
        await use_up(wal)
        with pytest.raises(WouldBlock):
            wal.append_nowait(b"")


async def test_an_append_larger_than_the_rate_enters_and_the_next_waits_for_it(
    log_directory: Path, clock: ManualClock
) -> None:
    async with opened(log_directory, clock) as wal, asyncio.TaskGroup() as group:
        assert list(await wal.append_many([HUNDRED] * 50)) == list(range(1, 51))
        waiting = group.create_task(wal.append(b""))
        await clock.wait_for_sleepers()
        clock.advance(3.9)
        await turns(10)
        assert not waiting.done()
        clock.advance(0.2)
        assert await waiting == 51


async def test_callers_are_admitted_in_the_order_of_their_calls(
    log_directory: Path, clock: ManualClock
) -> None:
    """A small one does not overtake a large one."""
    async with opened(log_directory, clock) as wal, asyncio.TaskGroup() as group:
        await use_up(wal)
        large = group.create_task(wal.append_many([HUNDRED] * 20))
        await turns(1)
        small = group.create_task(wal.append(b""))
        await clock.wait_for_sleepers()
        clock.advance(0.1)
        assert list(await large) == list(range(11, 31))
        assert not small.done()
        with pytest.raises(WouldBlock):
            wal.append_nowait(b"")
        await clock.wait_for_sleepers()
        clock.advance(2)
        assert await small == 31


async def test_a_caller_that_gives_up_has_appended_nothing(
    log_directory: Path, clock: ManualClock
) -> None:
    async with opened(log_directory, clock) as wal, asyncio.TaskGroup() as group:
        await use_up(wal)
        first, given_up, last = (group.create_task(wal.append(HUNDRED)) for _ in range(3))
        await clock.wait_for_sleepers()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await wal.append(HUNDRED)
        given_up.cancel()
        await turns(2)
        assert given_up.cancelled()
        clock.advance(0.1)
        assert await first == 11
        await clock.wait_for_sleepers()
        clock.advance(0.1)
        assert await last == 12
        assert wal.tail == 13


async def test_closing_does_not_wait_for_the_rate(log_directory: Path, clock: ManualClock) -> None:
    """As with a full channel: what was not accepted is not written."""
    async with opened(log_directory, clock) as wal:
        await use_up(wal)
        waiting = [asyncio.ensure_future(wal.append(b"v")) for _ in range(3)]
        await until(lambda: wal.statistics().blocked_appends == 3)
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, WalClosedError) and one.outcome == "not_written" for one in found)
    async with Wal.open(log_directory, settings=SMALL) as wal:
        assert wal.tail == 11


async def test_a_change_without_records_does_not_wait(
    log_directory: Path, clock: ManualClock
) -> None:
    """A cursor or a fence is not held up by appends that wait for the rate; nor is a barrier."""
    async with opened(log_directory, clock) as wal:
        await use_up(wal)
        waiting = asyncio.ensure_future(wal.append(b"v"))
        await clock.wait_for_sleepers()
        fence = await wal.fence("me")
        await wal.open_stream("s")
        async with wal.transaction(update={"k": "v"}):
            pass
        assert fence.holds
        assert wal.registers["k"] == "v"
        assert not waiting.done()
        clock.advance(1)
        assert await waiting == 11


async def test_a_large_transaction_counts_with_all_its_bytes(
    log_directory: Path, clock: ManualClock
) -> None:
    small = RATED.replace(transaction_memory_bytes=1)
    async with opened(log_directory, clock, small) as wal:
        async with wal.transaction() as txn:
            for _ in range(100):
                await txn.append(HUNDRED)
        waiting = asyncio.ensure_future(wal.append(b"v"))
        await clock.wait_for_sleepers()
        clock.advance(8)
        await turns(10)
        assert not waiting.done()
        clock.advance(3)
        assert await waiting == 101


async def test_a_repeated_append_of_a_producer_takes_no_credit(
    log_directory: Path, clock: ManualClock
) -> None:
    async with opened(log_directory, clock) as wal:
        producer = wal.producer("p")
        for _ in range(100):
            assert await producer.append(HUNDRED, sequence=1) == 1
        for _ in range(9):
            wal.append_nowait(HUNDRED)


async def test_a_log_that_waits_for_its_rate_keeps_no_other_log_of_its_store_waiting(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with WalStore.open(tmp_path / "s", settings=RATED, clock=clock) as store:
        one, other = await store.wal("one"), await store.wal("other")
        await use_up(one)
        waiting = asyncio.ensure_future(one.append(b"v"))
        await clock.wait_for_sleepers()
        await use_up(other)
        assert not waiting.done()
        clock.advance(1)
        assert await waiting == 11


@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=40),
    seed=st.integers(0, 1 << 30),
    rate=st.sampled_from([1, 100, 1000, 10**9]),
)
@settings(max_examples=50)
async def test_in_any_period_no_more_is_accepted_than_its_seconds_and_one_more(
    sizes: list[int], seed: int, rate: int
) -> None:
    """But for the last append, which may be larger; and what waits is admitted as soon as that holds."""
    clock, chosen = ManualClock(), random.Random(seed)
    limit = AppendRate(rate, clock)
    taken: list[tuple[float, int]] = []

    def admit() -> None:
        while sizes and limit.credit_bytes > 0:
            taken.append((clock.monotonic(), sizes[0]))
            limit.take(sizes.pop(0))
        if sizes:
            limit.want()

    running = asyncio.ensure_future(limit.run(admit))
    clock.advance(chosen.random() * 5)
    admit()
    while sizes:
        await clock.wait_for_sleepers()
        clock.advance(chosen.choice([0.001, 0.1, 10.0, 1000.0]))
        await turns(3)
    running.cancel()
    await asyncio.wait([running])
    for first in range(len(taken)):
        total = 0
        for at, size in taken[first:]:
            allowed = (at - taken[first][0] + 1) * rate
            assert total <= allowed * (1 + 1e-9)
            total += size
