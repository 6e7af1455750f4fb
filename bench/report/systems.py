"""The systems of a report that run in this process: how each makes a batch of records durable."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
)
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.bare import BareLog
from walstore import Settings, Wal
from walstore.core.settings import MIB

Append = Callable[[Sequence[bytes]], Any]
AppendSoon = Callable[[Sequence[bytes]], Awaitable[Any]]
SQLITE: Final = (
    "pragma journal_mode = wal",
    "pragma synchronous = full",
    "create table log (offset integer primary key, value blob)",
)
INSERT: Final = "insert into log (value) values (?)"
RESERVED_BYTES: Final = 1 << 30
SYNCED: Final = "synced to this disk"


class System(NamedTuple):
    """One system."""

    name: str
    promise: str
    measure: Callable[[Path, Sequence[bytes], float], list[float]]
    """Appends a batch again and again for so many seconds; returns the seconds of each call."""
    needs: str = ""
    """The module that has to be there."""

    @property
    def is_there(self) -> bool:
        """Whether it can be measured."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def fresh(directory: Path, name: str) -> Path:
    """Return an empty directory."""
    path = directory / "".join(letter for letter in name if letter.isalnum())
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def timed(append: Append, batch: Sequence[bytes], seconds: float) -> list[float]:
    """Call until the time is over; return the seconds of each call."""
    found, end = [], time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        append(batch)
        found.append(time.perf_counter() - begun)
    return found


def blocking(
    opened: Callable[[Path, int], AbstractContextManager[Append]],
) -> Callable[[Path, Sequence[bytes], float], list[float]]:
    """Return how to measure a system that is called on a thread."""

    def measure(directory: Path, batch: Sequence[bytes], seconds: float) -> list[float]:
        with opened(directory, sum(map(len, batch))) as append:
            append(batch)
            return timed(append, batch, seconds)

    return measure


def looped(
    opened: Callable[[Path], AbstractAsyncContextManager[AppendSoon]], *, runner: str = "asyncio"
) -> Callable[[Path, Sequence[bytes], float], list[float]]:
    """Return how to measure a system that is awaited; ``runner`` is the module that runs its event loop."""

    async def run(directory: Path, batch: Sequence[bytes], seconds: float) -> list[float]:
        found = []
        async with opened(directory) as append:
            await append(batch)
            end = time.perf_counter() + seconds
            while (begun := time.perf_counter()) < end:
                await append(batch)
                found.append(time.perf_counter() - begun)
        return found

    def measure(directory: Path, batch: Sequence[bytes], seconds: float) -> list[float]:
        times: list[float] = importlib.import_module(runner).run(run(directory, batch, seconds))
        return times

    return measure


_RETAINING: Final = Settings(segment_bytes=16 * MIB, retention_bytes=32 * MIB)


@asynccontextmanager
async def _walstore(directory: Path, *, retains: bool = False) -> AsyncIterator[AppendSoon]:
    """Append groups, or single records; with retention, once segments get the files of deleted ones."""
    async with Wal.open(directory / "log", settings=_RETAINING if retains else None) as wal:
        while retains and wal.tail < 80 * 1024:
            await wal.append_many([bytes(1024)] * 1024)
        await wal.append(b"")

        async def append(batch: Sequence[bytes]) -> object:
            return await (wal.append(batch[0]) if len(batch) == 1 else wal.append_many(batch))

        yield append


@asynccontextmanager
async def _bare(directory: Path) -> AsyncIterator[AppendSoon]:
    with BareLog(directory / "bare") as log:
        yield log.append_many


@asynccontextmanager
async def _aiosqlite(directory: Path) -> AsyncIterator[AppendSoon]:
    import aiosqlite

    async with aiosqlite.connect(directory / "sqlite", isolation_level=None) as database:
        for statement in SQLITE:
            await database.execute(statement)

        async def append(batch: Sequence[bytes]) -> None:
            if len(batch) == 1:  # a transaction of its own
                await database.execute(INSERT, batch)
                return
            await database.execute("begin")
            await database.executemany(INSERT, ((one,) for one in batch))
            await database.execute("commit")

        yield append


@contextmanager
def _growing(directory: Path, _: int) -> Iterator[Append]:
    descriptor = os.open(directory / "raw", os.O_RDWR | os.O_CREAT | os.O_APPEND)

    def append(batch: Sequence[bytes]) -> None:
        os.write(descriptor, b"".join(batch))
        os.fdatasync(descriptor)

    yield append
    os.close(descriptor)


@contextmanager
def _written_before(directory: Path, size: int) -> Iterator[Append]:
    """Blocks that have been written: a sync has no metadata to write. The file is used round and round."""
    descriptor = os.open(directory / "raw", os.O_RDWR | os.O_CREAT)
    length = min(RESERVED_BYTES, max(64 << 20, 64 * size)) // size * size
    for position in range(0, length, 1 << 20):
        os.pwrite(descriptor, bytes(min(1 << 20, length - position)), position)
    os.fsync(descriptor)
    places = itertools.cycle(range(0, length, size))

    def append(batch: Sequence[bytes]) -> None:
        os.pwrite(descriptor, b"".join(batch), next(places))
        os.fdatasync(descriptor)

    yield append
    os.close(descriptor)


@contextmanager
def _sqlite(directory: Path, _: int) -> Iterator[Append]:
    with closing(sqlite3.connect(directory / "sqlite", isolation_level=None)) as database:
        for statement in SQLITE:
            database.execute(statement)

        def append(batch: Sequence[bytes]) -> None:
            database.execute("begin")
            database.executemany(INSERT, ((one,) for one in batch))
            database.execute("commit")

        yield append


@contextmanager
def _lmdb(directory: Path, _: int) -> Iterator[Append]:
    import lmdb

    with lmdb.open(str(directory / "lmdb"), map_size=1 << 34) as environment:
        numbers = itertools.count()

        def append(batch: Sequence[bytes]) -> None:
            with environment.begin(write=True) as transaction:
                for value in batch:
                    transaction.put(next(numbers).to_bytes(8), value, append=True)

        yield append


@contextmanager
def _rocksdb(directory: Path, _: int) -> Iterator[Append]:
    import rocksdict

    database = rocksdict.Rdict(str(directory / "rocksdb"), rocksdict.Options(raw_mode=True))
    options = rocksdict.WriteOptions()
    options.sync = True
    database.set_write_options(options)
    numbers = itertools.count()

    def append(batch: Sequence[bytes]) -> None:
        writes = rocksdict.WriteBatch(raw_mode=True)
        for value in batch:
            writes.put(next(numbers).to_bytes(8), value)
        database.write(writes, options)

    yield append
    database.close()


@contextmanager
def _persist_queue(directory: Path, _: int) -> Iterator[Append]:
    import persistqueue

    queue = persistqueue.FIFOSQLiteQueue(str(directory / "queue"), auto_commit=False)

    def append(batch: Sequence[bytes]) -> None:
        for value in batch:
            queue.put(value)
        queue.task_done()

    yield append
    queue.close()


SYSTEMS: Final = (
    System("walstore", SYNCED, looped(_walstore)),
    System("walstore, with retention", SYNCED, looped(partial(_walstore, retains=True))),
    System("walstore, on uvloop", SYNCED, looped(_walstore, runner="uvloop"), "uvloop"),
    System("a bare group commit", SYNCED, looped(_bare)),
    System("raw: write + fdatasync, growing file", SYNCED, blocking(_growing)),
    System("raw: the same, blocks written before", SYNCED, blocking(_written_before)),
    System("SQLite", f"{SYNCED} (WAL, synchronous=FULL)", blocking(_sqlite)),
    System("aiosqlite", f"{SYNCED} (WAL, synchronous=FULL)", looped(_aiosqlite), "aiosqlite"),
    System("LMDB", SYNCED, blocking(_lmdb), "lmdb"),
    System("RocksDB", f"{SYNCED} (sync writes)", blocking(_rocksdb), "rocksdict"),
    System(
        "persist-queue",
        "committed by SQLite as the library sets it",
        blocking(_persist_queue),
        "persistqueue",
    ),
)
