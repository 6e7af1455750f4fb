"""Actors: tasks that change an open log in one way each, and write down what they are told."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.sim.rules import Entry, ViolationError
from tests.sim.stage import STREAMS, Stage, succeeds
from walstore.errors import WalError


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
            result = await stage.call(f"{name} wait_durable {last.start}", succeeds(call), last)
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
        if await stage.call(f"{name} open {chosen}", succeeds(wal.open_stream(chosen))):
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


async def flush(stage: Stage, name: str) -> None:
    pending = stage.book.pending()
    if await stage.call(f"{name} flush", succeeds(stage.wal.flush())):
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
