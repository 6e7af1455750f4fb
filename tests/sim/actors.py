"""Actors: tasks that use an open log in one way each, and write down what they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from tests.sim.plan import Plan
from tests.sim.rules import Book, Entry, ViolationError
from walstore import Wal
from walstore.errors import (
    CursorMovedError,
    DiskFullError,
    ExpectationError,
    FencedError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    RecordTooLargeError,
    StorageUnavailableError,
    StreamClosedError,
    WalClosedError,
    WalError,
    WalLockedError,
    WouldBlock,
)
from walstore.records import Record

_T = TypeVar("_T")
STREAMS = ("red", "green", "blue")


class Stage:
    """An open log, the book, and what actors need besides."""

    def __init__(
        self, wal: Wal, book: Book, plan: Plan, random: Random, trace: Callable[[str], None]
    ) -> None:
        self.wal = wal
        self.book = book
        self.plan = plan
        self.random = random
        self.trace = trace
        self.is_ending = False
        """Whether calls may fail because the log closes."""
        self.may_fail: Callable[[], bool] = lambda: True
        """Whether the disk gave a reason to fail."""
        self.is_hindered: Callable[[], bool] = lambda: True
        """Whether it refused what data does not depend on."""

    @property
    def keeps(self) -> bool:
        """Whether durable readers see only what no crash takes back."""
        return self.plan.sync != "os"

    async def pause(self) -> None:
        await asyncio.sleep(self.random.choice([0, 0, 0, 1e-4, 1e-3, 5e-3]))

    def size(self) -> int:
        random = self.random
        if random.random() < self.plan.large:
            return random.randint(2000, 9000)
        return random.choice([20, 60, 200, 600])

    async def call(self, what: str, call: Awaitable[_T], entry: Entry | None = None) -> _T | None:
        """Make a call, maybe cancel it; write down what became of it. None if there is no result."""
        if entry is not None:
            entry.tries += 1
        task = asyncio.ensure_future(call)
        if self.random.random() < self.plan.cancels:
            delay = self.random.choice([0, 0, 2e-5, 2e-4, 1e-3, 1e-2])
            asyncio.get_running_loop().call_later(delay, task.cancel)
        self.trace(f"{what} …")
        try:
            result = await task
        except asyncio.CancelledError:
            if entry is not None:
                self.book.lost_sight(entry)
            self.trace(f"{what} was cancelled")
            if task.cancelled() and not asyncio.current_task().cancelling():  # type: ignore
                return None
            raise
        except WalError as error:
            self.trace(f"{what}: {type(error).__name__} {error.outcome}: {error}")
            self.judge(what, error)
            if entry is not None:
                self.book.failed(entry, error)
            return None
        except Exception as error:
            raise ViolationError("typed-errors", f"{what} raised {error!r}") from error
        self.trace(f"{what} -> {result!r}")
        return result

    def judge(self, what: str, error: WalError) -> None:
        """Check that an error has a cause."""
        if isinstance(
            error,
            ExpectationError
            | FencedError
            | StreamClosedError
            | WouldBlock
            | WalLockedError
            | RecordTooLargeError,
        ):
            return
        disk = isinstance(error, StorageUnavailableError | OutcomeUnknownError | DiskFullError)
        if isinstance(error, WalClosedError) and error.reason != "failed" and self.is_ending:
            return
        if (disk or isinstance(error, WalClosedError)) and self.may_fail():
            return
        if disk and self.is_hindered() and not {"trim", "rotate"}.isdisjoint(what.split()):
            return
        raise ViolationError("fails-for-a-cause", f"{what} raised {error!r}") from error


# -- appending -----------------------------------------------------------------------------------


async def append(stage: Stage, name: str) -> None:
    random, book = stage.random, stage.book
    level = random.choice(["disk", "disk", "disk", "memory"])
    entry = book.submit("append", [stage.size()])
    call = stage.wal.append(entry.value(0), durability=level)
    offset = await stage.call(f"{name} append {entry.number} {level}", call, entry)
    if offset is not None:
        if level == "disk":
            book.durable(entry, offset)
        else:
            book.accepted(entry, offset)


async def nowait(stage: Stage, name: str) -> None:
    book, wal = stage.book, stage.wal
    entries = []
    for _ in range(stage.random.randint(1, 5)):
        entry = book.submit("nowait", [stage.size()])
        entry.tries = 1
        try:
            offset = wal.append_nowait(entry.value(0))
        except WalError as error:
            stage.trace(f"{name} nowait {entry.number}: {error!r}")
            stage.judge("append_nowait", error)
            book.failed(entry, error)
            return
        stage.trace(f"{name} nowait {entry.number} -> {offset}")
        book.accepted(entry, offset)
        entries.append(entry)
    last = entries[-1]
    if stage.random.random() < 0.5:
        assert last.start is not None
        before = last.tries
        call = stage.wal.wait_durable(last.start)
        try:
            result = await stage.call(f"{name} wait_durable {last.start}", _true(call), last)
        finally:
            last.tries = before
        if result:
            for entry in entries:
                book.durable(entry)


async def many(stage: Stage, name: str) -> None:
    book = stage.book
    entry = book.submit("many", [stage.size() // 2 for _ in range(stage.random.randint(1, 5))])
    options: dict[str, Any] = {}
    if stage.random.random() < 0.2:
        options["expect_offset"] = stage.wal.tail
    call = stage.wal.append_many(entry.values, **options)
    span = await stage.call(f"{name} append_many {entry.number}", call, entry)
    if span is not None:
        _check_span(entry, span)
        book.durable(entry, span.start)


async def transaction(stage: Stage, name: str, sizes: list[int] | None = None) -> None:
    book, random = stage.book, stage.random
    sizes = [stage.size() for _ in range(random.randint(0, 4))] if sizes is None else sizes
    entry = book.submit("transaction", sizes)
    if random.random() < 0.5:
        entry.update[f"r{name}"] = str(entry.number)
    await _transact(stage, name, entry)


async def spilled(stage: Stage, name: str) -> None:
    count = stage.random.randint(2, 12)
    await transaction(stage, name, [stage.random.choice([700, 3000, 9000]) for _ in range(count)])


async def _transact(stage: Stage, name: str, entry: Entry) -> None:
    """Commit a transaction, or roll it back on purpose."""
    rolls_back = stage.random.random() < 0.1
    txn = stage.wal.transaction(expect=entry.expect or None, update=entry.update or None)

    async def run() -> range | None:
        with contextlib.suppress(_RollBackError):
            async with txn:
                for value in entry.values:
                    await txn.append(value)
                if rolls_back:
                    raise _RollBackError
        return txn.span

    span = None
    try:
        what = f"{name} transaction {entry.number} x{len(entry.sizes)} {entry.update or ''}"
        span = await stage.call(what, run(), entry)
    finally:
        if txn.span is None:
            if entry.status in ("open", "unknown"):
                stage.book.refused(entry)  # no offset was taken: it cannot be in the log
        elif entry.sizes:
            stage.book.accepted(entry, txn.span.start)
    if span is not None:
        _check_span(entry, span)
        stage.book.durable(entry, span.start)
        _check_registers(stage, entry)


class _RollBackError(Exception):
    pass


async def counter(stage: Stage, name: str) -> None:
    """Add records and raise a register of one's own."""
    book = stage.book
    entry = book.submit("counter", [stage.size()])
    entry.update[f"r{name}"] = str(entry.number)
    call = stage.wal.append_many(entry.values, update=entry.update)
    span = await stage.call(f"{name} counter {entry.number}", call, entry)
    if span is not None:
        book.durable(entry, span.start)
        _check_registers(stage, entry)


async def swap(stage: Stage, name: str) -> None:
    """Compare and swap a register that all share."""
    book = stage.book
    held = stage.wal.registers.get("shared")
    if stage.random.random() < 0.5:  # what is accepted and not yet durable
        held = stage.wal._channel.ledger.registers.get("shared")
    entry = book.submit("swap", [stage.size() for _ in range(stage.random.randint(1, 2))])
    entry.expect["shared"] = held
    entry.update["shared"] = str(entry.number)
    if stage.random.random() < 0.3:
        await _transact(stage, name, entry)
        return
    call = stage.wal.append_many(entry.values, expect=entry.expect, update=entry.update)
    span = await stage.call(f"{name} swap {held} to {entry.number}", call, entry)
    if span is not None:
        book.durable(entry, span.start)


async def fence(stage: Stage, name: str) -> None:
    book, random = stage.book, stage.random
    taken = await stage.call(f"{name} fence", stage.wal.fence(name))
    if taken is None:
        return
    number = int(taken.token.partition(" ")[0])
    book.fence = max(book.fence, number)
    for _ in range(random.randint(1, 3)):
        entry = book.submit("fenced", [stage.size()], fence=number)
        newest = book.fence
        offset = await stage.call(
            f"{name} append {entry.number} under fence {number}",
            taken.append(entry.value(0)),
            entry,
        )
        if offset is None:
            return
        book.durable(entry, offset)
        if newest > number:
            raise ViolationError("fences", f"{entry!r} under {number} came after {newest}")
        await stage.pause()


async def produce(stage: Stage, name: str, memory: dict[str, Any]) -> None:
    """Append under sequence numbers; repeat until it is told that it is there."""
    book = stage.book
    producer = stage.wal.producer(f"p{name}")
    for _ in range(3):
        sequence, entry = memory.setdefault(
            "next", (1, book.submit("produce", [stage.size() for _ in range(2)]))
        )
        if entry.status in ("gone", "refused", "unknown"):
            entry.status = "open"
        for _ in range(3):
            call = producer.append_many(entry.values, sequence=sequence)
            what = f"{name} produce {entry.number} under {sequence}, try {entry.tries + 1}"
            span = await stage.call(what, call, entry)
            if span is not None:
                break
            if stage.wal.is_closing:
                return
            if entry.status == "refused":
                entry.status = "open"
            await stage.pause()
        else:
            return
        _check_span(entry, span)
        book.durable(entry, span.start)
        again = await stage.call(
            f"{name} again", producer.append_many(entry.values, sequence=sequence), entry
        )
        if again is not None and again != span:
            raise ViolationError("once", f"{entry!r} was at {span}, again at {again}")
        memory["next"] = sequence + 1, book.submit("produce", [stage.size()])


async def stream(stage: Stage, name: str) -> None:
    book, random, wal = stage.book, stage.random, stage.wal
    chosen = random.choice(STREAMS)
    if random.random() < 0.2:
        if await stage.call(f"{name} open {chosen}", _true(wal.open_stream(chosen))):
            book.streams.add(chosen)
        return
    if random.random() < 0.1:
        await stage.call(f"{name} close {chosen}", wal.close_stream(chosen))
        return
    entry = book.submit("streamed", [stage.size()], stream=chosen)
    call = wal.append(entry.value(0), stream=chosen)
    offset = await stage.call(f"{name} append {entry.number} to {chosen}", call, entry)
    if offset is not None:
        book.durable(entry, offset)
        book.streams.add(chosen)


# -- the log as a whole --------------------------------------------------------------------------


async def flush(stage: Stage, name: str) -> None:
    pending = stage.book.pending()
    if await stage.call(f"{name} flush", _true(stage.wal.flush())):
        for entry in pending:
            stage.book.durable(entry)


async def rotate(stage: Stage, name: str) -> None:
    await stage.call(f"{name} rotate", stage.wal.rotate())


async def trim(stage: Stage, name: str) -> None:
    book, wal = stage.book, stage.wal
    before = stage.random.randint(wal.head, wal.durable_limit)
    book.head_most = max(book.head_most, before)
    head = await stage.call(f"{name} trim {before}", wal.trim(before))
    if head is None:
        return
    if not book.head_least <= head <= book.head_most:
        raise ViolationError("head", f"trim({before}) returned {head}, not {book.head_least}…")
    book.head_least = max(book.head_least, head)


# -- reading -------------------------------------------------------------------------------------


async def follow(stage: Stage, name: str, visibility: str = "durable") -> None:
    """Follow the log with ``async for``, fetch or batches, from anywhere, until it closes."""
    wal, random = stage.wal, stage.random
    start = random.choice(["earliest", "earliest", "latest", random.randint(wal.head, wal.tail)])
    reader = wal.reader(start, visibility=visibility)  # type: ignore[arg-type]
    sight = Sight(stage, name, keeps=visibility == "durable" and stage.keeps)
    style = random.choice(["each", "fetch", "batches"])
    while not stage.wal.is_closing:
        position = reader.position
        try:
            if style == "each":
                sight.see([await anext(reader)], position)
            elif style == "batches":
                sight.see((await anext(reader.batches())).records(), position)
            else:
                found = await reader.fetch(max_records=random.randint(1, 9), max_wait=0.02)
                sight.see(found.records(), position)
        except OffsetTrimmedError:
            stage.trace(f"{name} was passed by the head, {wal.head}")
            reader.seek(wal.head)
        except StopAsyncIteration:
            raise ViolationError("readers", "a follower came to an end") from None
        except WalError as error:
            stage.trace(f"{name} ends: {error!r}")
            if not wal.is_closing:
                stage.judge(f"{name} reads", error)
            return
        if random.random() < 0.2:
            await stage.pause()


async def accepted(stage: Stage, name: str) -> None:
    await follow(stage, name, "accepted")


async def cursor(stage: Stage, name: str) -> None:
    """Read from a cursor on and commit it."""
    wal, book, random = stage.wal, stage.book, stage.random
    handle = await stage.call(f"{name} opens its cursor", wal.cursor(f"c{name}"))
    if handle is None:
        return
    least = book.cursors.get(name, 0)
    if handle.position < least:
        raise ViolationError("cursors", f"{name} is at {handle.position}, was at {least}")
    book.cursors[name] = max(least, handle.position)
    book.cursors_most[name] = max(book.cursors_most.get(name, 0), handle.position)
    if wal.head > handle.position:
        raise ViolationError("cursors", f"the head {wal.head} passed {name} at {handle.position}")
    while not wal.is_closing:
        await stage.pause()
        offset = random.randint(handle.target, max(handle.target, wal.visible_limit))
        book.cursors_most[name] = max(book.cursors_most[name], offset)
        try:
            done = await stage.call(f"{name} commits {offset}", _true(handle.commit(offset)))
        except ViolationError as error:
            if isinstance(error.__cause__, CursorMovedError):
                return
            raise
        if done:
            book.cursors[name] = max(book.cursors[name], offset)
        elif wal.is_closing:
            return
        await asyncio.sleep(random.choice([1e-3, 1e-2, 0.1]))


class Sight:
    """What one reader saw last."""

    def __init__(self, stage: Stage, name: str, *, keeps: bool) -> None:
        self._stage = stage
        self._name = name
        self._keeps = keeps
        self._latest_us = 0

    def see(self, records: Any, position: int) -> None:
        """Check records that were read at a position."""
        for record in records:
            if record.offset != position:
                raise ViolationError("readers", f"{self._name} got {record.offset} at {position}")
            position += 1
            check_record(self._stage.book, record, keeps=self._keeps)
            if self._keeps and record.timestamp_us < self._latest_us:
                raise ViolationError("readers", f"time goes back at {record.offset}")
            self._latest_us = record.timestamp_us


def check_record(book: Book, record: Record, *, keeps: bool) -> None:
    book.saw(record, keeps=keeps)


def _check_span(entry: Entry, span: range) -> None:
    if len(span) != len(entry.sizes):
        raise ViolationError("whole", f"{entry!r} got {span}")


def _check_registers(stage: Stage, entry: Entry) -> None:
    """What was acknowledged is seen at once, unless a later change is, or the log failed."""
    if stage.wal.is_closing:
        return
    for name in entry.update:
        value = stage.wal.registers.get(name)
        if value is None or int(value) < entry.number:
            raise ViolationError("registers", f"{name} is {value!r} although {entry!r}")


async def _true(call: Awaitable[Any]) -> bool:
    await call
    return True


APPENDERS: dict[str, Any] = {
    "append": append,
    "nowait": nowait,
    "many": many,
    "transaction": transaction,
    "spilled": spilled,
    "counter": counter,
    "swap": swap,
    "fence": fence,
    "stream": stream,
    "flush": flush,
    "rotate": rotate,
    "trim": trim,
}
READERS: dict[str, Any] = {
    "follow": follow,
    "batches": follow,
    "accepted": accepted,
    "cursor": cursor,
}
