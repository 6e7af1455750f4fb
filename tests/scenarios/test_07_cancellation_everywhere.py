"""L14: every public coroutine, cancelled at each of its suspensions.

A coroutine is driven by :class:`tests.interrupted.Interrupted`, which cancels it at its n-th suspension, for
every n until it completes. ``at``: while it waits. ``late``: in the moment in which what it waits for has
come. Afterwards

  * what it would have appended is there as a whole or not at all, and its registers say the same;
  * no offset is burnt, and others that waited before and behind it have their records and their acks;
  * no task, no room in the channel and, once the log is closed, no descriptor and no file is left behind;
  * the log works.

``Wal.open`` and ``Wal.aclose`` are in tests/walstore/log/test_wal_cancellation.py (L14), the commit of a
cursor in tests/walstore/positions/cursors/test_cursor.py, many callers at once in
test_06_local_cancellation.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.interrupted import Interrupted, finish
from tests.local import (
    SMALL,
    HastyClock,
    UnsyncedFileSystem,
    check_contiguous,
    open_descriptors,
    read_all,
)
from tests.waiting import until
from tools.docstrings import is_coroutine
from walstore import Wal, WouldBlock
from walstore.core.faces.fence import Fence
from walstore.core.faces.producer import Producer
from walstore.core.faces.transaction import Transaction
from walstore.core.read.reader import Reader
from walstore.core.settings import KIB
from walstore.records import from_timestamp_us
from walstore.testing import ManualClock

SETTINGS = SMALL.replace(
    max_record_bytes=4000,
    channel_bytes=8000,
    channel_records=40,
    cache_bytes=0,
    transaction_memory_bytes=2 * KIB,
)
LARGE = 12
"""Records of 500 bytes that do not fit a transaction's memory."""


@dataclass
class Log:
    """An open log and what the case needs beside it."""

    wal: Wal
    fence: Fence
    reader: Reader
    """Stands at the first record of the turn."""
    clock: ManualClock
    start: int = 0
    """Tail before the turn."""
    results: Any = None


Run = Callable[[Log, str], Coroutine[Any, Any, Any]]
CASES: dict[str, tuple[Run, int, str]] = {}
"""What is called, how many records it appends, and the public coroutines that it covers."""


def case(covers: str, records: int = 0) -> Callable[[Run], Run]:
    def note(run: Run) -> Run:
        CASES[run.__name__] = (run, records, covers)
        return run

    return note


def value(tag: str, at: int = 0, size: int = 30) -> bytes:
    return f"{tag} {at} ".encode().ljust(size, b".")


async def fill(transaction: Transaction, tag: str, records: int, size: int = 30) -> None:
    for at in range(records):
        assert await transaction.append(value(tag, at, size)) == at


# -- what is called ------------------------------------------------------------------------------


@case("Wal.append", 1)
async def append(log: Log, tag: str) -> None:
    await log.wal.append(value(tag), b"key", "eu", {"h": b"1"})


@case("Wal.append", 1)
async def append_to_memory(log: Log, tag: str) -> None:
    await log.wal.append(value(tag), durability="memory")


@case("Wal.append_many", 3)
async def append_many(log: Log, tag: str) -> None:
    await log.wal.append_many([value(tag, at) for at in range(3)], update={tag: "1"})


@case("Wal.append_many", 3)
async def append_many_on_a_condition(log: Log, tag: str) -> None:
    values = [value(tag, at) for at in range(3)]
    await log.wal.append_many(values, expect={tag: None}, update={tag: "1"}, stream=tag)


@case("Transaction.append Transaction.__aenter__ Transaction.__aexit__", 3)
async def small_transaction(log: Log, tag: str) -> None:
    async with log.wal.transaction(update={tag: "1"}) as transaction:
        await fill(transaction, tag, 3)


@case("Transaction.append", LARGE)
async def large_transaction(log: Log, tag: str) -> None:
    async with log.wal.transaction(update={tag: "1"}) as transaction:
        await fill(transaction, tag, LARGE, 500)


@case("Transaction.append_rows", LARGE)
async def transaction_of_rows(log: Log, tag: str) -> None:
    async with log.wal.transaction(update={tag: "1"}) as transaction:
        for low in range(0, LARGE, 10):
            rows = [value(tag, at, 500) for at in range(low, min(low + 10, LARGE))]
            await transaction.append_rows(rows, [None] * len(rows))


@case("Transaction.__aexit__")
async def register_transaction(log: Log, tag: str) -> None:
    async with log.wal.transaction(update={f"only {tag}": "1"}):
        pass


@case("Transaction.rollback")
async def rolled_back_transaction(log: Log, tag: str) -> None:
    async with log.wal.transaction(update={tag: "1"}) as transaction:
        await fill(transaction, tag, LARGE, 500)
        await transaction.rollback()


@case("Transaction.__aexit__")
async def failing_transaction(log: Log, tag: str) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with log.wal.transaction() as transaction:
            await fill(transaction, tag, LARGE, 500)
            raise ZeroDivisionError


@case("Wal.fence")
async def fence(log: Log, tag: str) -> None:
    taken = await log.wal.fence("me", register=f"fence of {tag}")
    assert taken.holds


@case("Fence.append", 1)
async def fence_append(log: Log, tag: str) -> None:
    await log.fence.append(value(tag))


@case("Fence.append_many", 3)
async def fence_append_many(log: Log, tag: str) -> None:
    await log.fence.append_many([value(tag, at) for at in range(3)])


@case("Transaction.append", LARGE)
async def fence_transaction(log: Log, tag: str) -> None:
    async with log.fence.transaction(update={tag: "1"}) as transaction:
        await fill(transaction, tag, LARGE, 500)


@case("Producer.append", 1)
async def producer_append(log: Log, tag: str) -> None:
    await log.wal.producer(tag).append(value(tag), sequence=1)


@case("Producer.append_many", 3)
async def producer_append_many(log: Log, tag: str) -> None:
    await log.wal.producer(tag).append_many([value(tag, at) for at in range(3)], sequence=1)


@case("Transaction.append", LARGE)
async def producer_transaction(log: Log, tag: str) -> None:
    async with log.wal.producer(tag).transaction(sequence=1) as transaction:
        await fill(transaction, tag, LARGE, 500)


@case("Producer.append", 1)
async def producer_repeats(log: Log, tag: str) -> None:
    producer = log.wal.producer(tag)
    assert await producer.append(value(tag), sequence=1) == await producer.append(
        value(tag), sequence=1
    )


@case("Wal.open_stream Wal.close_stream")
async def open_and_close_stream(log: Log, tag: str) -> None:
    await log.wal.open_stream(tag, metadata={"a": "b"})
    await log.wal.close_stream(tag)


@case("Wal.flush")
async def flush(log: Log, tag: str) -> None:
    await log.wal.flush()


@case("Wal.wait_durable")
async def wait_durable(log: Log, tag: str) -> None:
    await log.wal.wait_durable(log.wal.tail - 1)


@case("Wal.rotate")
async def rotate(log: Log, tag: str) -> None:
    await log.wal.rotate()


@case("Wal.trim")
async def trim(log: Log, tag: str) -> None:
    assert await log.wal.trim(log.start) == log.start


@case("Wal.cursor Wal.cursors Wal.delete_cursor")
async def cursors(log: Log, tag: str) -> None:
    await log.wal.cursor("a")
    assert [info.name for info in await log.wal.cursors()] == ["a"]
    assert await log.wal.delete_cursor("a")


@case("Wal.groups Wal.delete_group Wal.redrive_group")
async def groups(log: Log, tag: str) -> None:
    """Of a log without any; those in use are in tests/walstore/serve/test_groups.py."""
    assert await log.wal.groups() == []
    assert not await log.wal.delete_group("a")
    assert await log.wal.redrive_group("a") == ([], [], 0)


@case("Reader.fetch")
async def fetch(log: Log, tag: str) -> None:
    log.results = await log.reader.fetch(max_records=3)


@case("Reader.wait Reader.fetch")
async def wait_and_fetch(log: Log, tag: str) -> None:
    assert await log.reader.wait()
    log.results = await log.reader.fetch(max_records=3)


@case("Reader.__anext__")
async def anext_of_a_reader(log: Log, tag: str) -> None:
    log.results = [await anext(log.reader)]


@case("Wal.offset_at Wal.timestamp_at")
async def look_up_times(log: Log, tag: str) -> None:
    last = log.start - 1
    time_us = await log.wal.timestamp_at(last)
    assert await log.wal.offset_at(time_us) <= last


@case("Reader.__aenter__ Reader.__aexit__ Reader.fetch")
async def other_readers(log: Log, tag: str) -> None:
    moment = from_timestamp_us(log.clock.now_us())
    readers: list[tuple[Any, dict[str, Any]]] = [
        (log.start, {"stream": "eu"}),
        (log.start, {"visibility": "accepted"}),
        (moment, {}),
    ]
    for start, options in readers:
        async with log.wal.reader(start, follow=False, **options) as reader:
            await reader.fetch(max_records=1000)
            async for _ in reader.batches():
                pass


# -- the test ------------------------------------------------------------------------------------


async def one_turn(log: Log, run: Run, tag: str, nth: int, *, late: bool, busy: bool) -> bool:
    """Interrupt the call once; return whether it ended by itself."""
    wal = log.wal
    log.results = None
    log.start = wal.tail
    others: list[asyncio.Task[int]] = []
    filled = 0
    if busy:
        for size in (300, 0):
            with contextlib.suppress(WouldBlock):
                while True:
                    wal.append_nowait(b"other" + bytes(size))
                    filled += 1
        others.append(asyncio.create_task(wal.append(b"other before")))
    else:
        wal.append_nowait(b"other")
        filled = 1
    interrupted = Interrupted(run(log, tag), nth, late=late)
    task = asyncio.create_task(finish(interrupted))
    others.append(asyncio.create_task(wal.append(b"other behind")))
    finished = True
    try:
        async with asyncio.timeout(60):
            await task
    except asyncio.CancelledError:
        finished = False
    async with asyncio.timeout(60):
        offsets = await asyncio.gather(*others)
        await wal.flush()
    assert finished or not interrupted.is_over
    records, has_records = CASES[run.__name__][1], False
    found = await read_all(wal, log.start)
    check_contiguous(found, log.start)
    mine = [record for record in found if not record.value.startswith(b"other")]
    assert len(found) == len(mine) + filled + len(others), "the others are all there"
    for offset in offsets:
        assert found[offset - log.start].value.startswith(b"other ")
    has_records = bool(mine)
    size = 500 if records == LARGE else 30
    assert [r.value for r in mine] in ([], [value(tag, at, size) for at in range(records)])
    assert has_records or not (finished and records)
    if tag in wal.registers:
        assert has_records, "registers and records change together"
    assert wal.tail == wal.durable_limit == log.start + len(found), "no offset is burnt"
    check_delivered(log, found)
    return interrupted.is_over


def check_delivered(log: Log, found: list[Any]) -> None:
    """Whatever was delivered follows what was delivered before; nothing was passed over."""
    delivered = log.results
    if delivered is None:
        assert log.reader.position == log.start
        return
    for record, expected in zip(delivered, found, strict=False):
        assert record[:4] == expected[:4]
    assert log.reader.position == log.start + len(delivered)


def unplaced(wal: Wal) -> set[Any]:
    """Return the files of transactions that are no segments; the log deletes them when it closes."""
    return {spill for spill in wal._engine.spills if not spill.is_placed}


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("late", [False, True], ids=["at", "late"])
@pytest.mark.parametrize("name", CASES)
async def test_L14_cancelled_at_every_suspension(
    name: str, late: bool, busy: bool, scratch: Path
) -> None:
    run, _, _ = CASES[name]
    directory, clock = scratch / "log", HastyClock()
    async with Wal.open(directory, settings=SETTINGS, fs=UnsyncedFileSystem(), clock=clock) as wal:
        log = Log(wal, await wal.fence("me"), wal.follow(), clock)
        await wal.append(b"first")
        tasks = asyncio.all_tasks()
        for nth in count(1):
            clock.advance(1)
            log.reader.seek(wal.tail)
            files = unplaced(wal)
            is_over = await one_turn(log, run, f"{name}{nth}", nth, late=late, busy=busy)
            await until(lambda: asyncio.all_tasks() <= tasks)
            assert wal._channel.waiting == (0, 0)
            assert not wal._channel.blocked
            assert not wal._state.durable.has_waiters
            assert not wal._state.settled.has_waiters
            if is_over:
                assert unplaced(wal) <= files, "left to itself it takes its file away at once"
                break
            assert nth < 200, "it never ends"
        await wal.append(b"works")
        last = wal.tail, dict(wal.registers), wal.streams()
    assert nth > 1 or (name == "append_to_memory" and not busy), "it was never suspended"
    assert open_descriptors(directory) == []
    assert list(directory.glob("transaction-*")) == []
    (directory / "CHECKPOINT").unlink()
    async with Wal.open(directory, settings=SETTINGS, fs=UnsyncedFileSystem()) as wal:
        assert (wal.tail, dict(wal.registers), wal.streams()) == last


@pytest.mark.parametrize("size", [500, 1900], ids=["many", "few"])
@pytest.mark.parametrize("late", [False, True], ids=["at", "late"])
async def test_a_cancelled_append_to_a_transaction_loses_none_before_it(
    late: bool, size: int, scratch: Path
) -> None:
    """A caller may catch the cancellation, for one by a timeout, and go on with the transaction.

    Then either it cannot commit any more, or all appends that returned are in it.
    """
    async with Wal.open(scratch / "log", settings=SETTINGS, fs=UnsyncedFileSystem()) as wal:
        for nth in count(1):
            wanted: list[bytes] = []
            start, was_cancelled = wal.tail, False
            try:
                async with wal.transaction() as transaction:
                    for at in range(2 * LARGE):
                        item = value(f"t{nth}", at, size)
                        call = Interrupted(transaction.append(item), nth, late=late)
                        try:
                            await asyncio.create_task(finish(call))
                            wanted.append(item)
                        except asyncio.CancelledError:
                            was_cancelled = True
            except Exception:  # noqa: BLE001 - it says that it was rolled back
                wanted = []
            found = [record.value for record in await read_all(wal, start)]
            assert [item for item in found if item in wanted] == wanted
            assert wanted or not found
            if not was_cancelled:
                break
        assert nth > 1


def test_every_public_coroutine_is_here() -> None:
    covered = {name for _, _, covers in CASES.values() for name in covers.split()}
    elsewhere = {"Wal.aclose", "Wal.__aenter__", "Wal.__aexit__", "Wal.open_in", "Wal.announce"}
    # Not for callers.
    elsewhere |= {"Wal.append_letter", "Wal.has_group", "Reader.coming_bytes"}
    elsewhere |= {"Transaction.write_out"}
    elsewhere |= {
        "Wal.wait_closing"
    }  # ends with its log: walstore/cluster/replication/test_clients.py
    elsewhere |= {"Wal.refresh"}  # waits for copies: walstore/cluster/replication/test_current.py
    elsewhere |= {"Wal.to_arrow"}  # only reads, by a reader's fetch: contract/test_arrow.py
    for owner in (Wal, Transaction, Producer, Fence, Reader):
        for name, _ in inspect.getmembers(owner, is_coroutine):
            if not name.startswith("_") or name.startswith("__a"):
                assert f"{owner.__name__}.{name}" in covered | elsewhere
