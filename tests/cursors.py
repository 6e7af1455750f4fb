"""Cursors and consumers for tests: without a log, where only limits matter, and on an open one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from walstore import Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.core.format.checkpoint import CELL_FILE_NAME, DurableCell, encode_cell
from walstore.core.ports import Clock, FileSystem
from walstore.core.read.reader import Reader
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.resource import LoopGuard
from walstore.positions.cursor_state import CursorState
from walstore.positions.cursors.consumer import Consumer
from walstore.positions.cursors.directory import (
    DIRECTORY_NAME,
    HeldCursors,
    decode_cursor,
    hold_cursors,
    list_cursors,
    lowest_pin,
)
from walstore.positions.cursors.store import CursorStore
from walstore.testing import ManualClock

FS = PosixFileSystem()


class StillLog:
    """A log that consists of its limits: ``[head, visible_limit)``, with the head on disk."""

    def __init__(self, path: Path, head: int = 1, visible_limit: int = 1001) -> None:
        self.path = path
        self.tier_head: int | None = None
        self.visible_limit = visible_limit
        path.mkdir(exist_ok=True)
        self.move_head(head)

    def move_head(self, head: int) -> None:
        """Make another head durable, as retention does under the lock."""
        self.head = head
        numbers = dict.fromkeys(DurableCell._fields, 0)
        cell = DurableCell(**numbers | {"head": head, "durable_limit": self.visible_limit})
        (self.path / CELL_FILE_NAME).write_bytes(encode_cell(cell))

    async def wait_durable(self, offset: int) -> None:
        pass

    def reader(self, start: Any, /, *, follow: bool) -> Reader:
        return Reader(_Source(self), start=start, follow=follow)


@dataclasses.dataclass
class _Source:
    log: StillLog

    @property
    def head(self) -> int:
        return self.log.head

    @property
    def limit(self) -> int:
        return self.log.visible_limit


class OpenLog:
    """An open log, as cursors and consumers see it."""

    def __init__(self, wal: Wal) -> None:
        self.wal = wal
        self.tier_head = None

    async def wait_durable(self, offset: int) -> None:
        await self.wal.wait_durable(offset)

    @property
    def path(self) -> Path:
        return self.wal.path

    @property
    def log_id(self) -> str:
        return self.wal.log_id

    @property
    def head(self) -> int:
        return self.wal.head

    @property
    def visible_limit(self) -> int:
        return self.wal.durable_limit

    def reader(self, start: int | str | datetime, /, **options: Any) -> Reader:
        return self.wal.reader(start, **options)


@contextlib.asynccontextmanager
async def cursors_of(
    log: StillLog | OpenLog,
    *,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    owner: str = "a test",
    make_tag: Callable[[int], bytes] = os.urandom,
) -> AsyncIterator[CursorStore]:
    """Give the cursors of a log, with a worker of their own."""
    store = CursorStore(
        log,
        fs=fs or FS,
        clock=clock or ManualClock(),
        owner=owner,
        check_home=LoopGuard("log").check,
        make_tag=make_tag,
    )
    try:
        yield store
    finally:
        await store.aclose()


class Consumers:
    """Makes consumers of an open log."""

    def __init__(self, log: OpenLog, store: CursorStore, clock: Clock) -> None:
        self.log = log
        self.store = store
        self.clock = clock

    def consumer(self, name: str = "c", *, follow: bool = False, **options: Any) -> Consumer[Any]:
        """Return a consumer that stops at the end unless told to follow."""
        return Consumer(self.log, self.store, name, clock=self.clock, follow=follow, **options)

    async def position(self, name: str = "c") -> int | None:
        """Return where a cursor's file says that it is."""
        found = {info.name: info.position for info in await self.store.list()}
        return found.get(name)


@contextlib.asynccontextmanager
async def consumers_of(
    wal: Wal, *, fs: FileSystem | None = None, clock: Clock | None = None
) -> AsyncIterator[Consumers]:
    """Give what makes consumers of an open log."""
    clock = clock or SystemClock()
    log = OpenLog(wal)
    async with cursors_of(log, fs=fs, clock=clock) as store:
        yield Consumers(log, store, clock)


def on_disk(path: Path, name: str = "c") -> CursorState:
    """Return what a cursor's file says to another process."""
    file = path / DIRECTORY_NAME / name
    return decode_cursor(file.read_bytes(), str(file))


async def pinned(path: Path, clock: Clock) -> int | None:
    """Return the offset that the cursors of a log pin."""
    return lowest_pin(await asyncio.to_thread(list_cursors, FS, path, clock.now_us()))


@contextlib.asynccontextmanager
async def locked(path: Path, owner: str = "a test") -> AsyncIterator[HeldCursors]:
    """Hold the lock of a log's cursors, as another process would."""
    holding = hold_cursors(FS, path, owner=owner)
    held = await asyncio.to_thread(holding.__enter__)
    try:
        yield held
    finally:
        await asyncio.to_thread(holding.__exit__, None, None, None)
