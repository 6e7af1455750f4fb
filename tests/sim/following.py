"""Actors that read an open log: followers, and cursors."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.sim.rules import ViolationError
from tests.sim.stage import Stage, succeeds
from walstore.errors import CursorMovedError, OffsetTrimmedError, WalError


async def follow(stage: Stage, name: str, visibility: str = "durable") -> None:
    """Follow the log with ``async for``, fetch or batches, from anywhere, until it closes."""
    wal, random = stage.wal, stage.random
    start = random.choice(["earliest", "earliest", "latest", random.randint(wal.head, wal.tail)])
    reader = wal.follow(start, visibility=visibility)  # type: ignore[arg-type]
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
                found = await reader.fetch(max_records=random.randint(1, 9), max_wait_seconds=0.02)
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
    is_unsure = False
    while not wal.is_closing:
        await stage.pause()
        offset = random.randint(handle.target, max(handle.target, wal.visible_limit))
        book.cursors_most[name] = max(book.cursors_most[name], offset)
        try:
            done = await stage.call(f"{name} commits {offset}", succeeds(handle.commit(offset)))
        except ViolationError as error:
            if isinstance(error.__cause__, CursorMovedError):
                return
            was_passed = offset < wal.head <= book.cursors_most[name]
            if not (is_unsure and was_passed and isinstance(error.__cause__, OffsetTrimmedError)):
                raise
            continue  # a commit that ended without an answer had moved it
        is_unsure = not done
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
            self._stage.book.saw(record, keeps=self._keeps)
            if self._keeps and record.timestamp_us < self._latest_us:
                raise ViolationError("readers", f"time goes back at {record.offset}")
            self._latest_us = record.timestamp_us


READERS: dict[str, Any] = {
    "follow": follow,
    "batches": follow,
    "accepted": accepted,
    "cursor": cursor,
}
