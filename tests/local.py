"""Local logs for tests: settings that rotate and evict early, and looking at what a log holds."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Awaitable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from walstore import Record, Settings, Wal
from walstore.core.batches.append_request import make_group
from walstore.core.batches.batch import Batch
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.posix import PosixFile, PosixFileSystem
from walstore.core.files.segment_file import CHUNK_BYTES, read_batches
from walstore.core.ports import Clock, FileSystem
from walstore.core.settings import KIB
from walstore.log.entered import enter_log
from walstore.log.opening import Opened, recover_log
from walstore.testing import Call, FaultyFileSystem, ManualClock, PowerLossFileSystem

_T = TypeVar("_T")

SMALL = Settings(
    segment_bytes=64 * KIB,
    batch_bytes=4 * KIB,
    cache_bytes=16 * KIB,
    checkpoint_bytes=64 * KIB,
    read_ahead_bytes=4 * KIB,
    max_record_bytes=64 * KIB,
    channel_bytes=256 * KIB,
)
"""Many batches, many segments, and a cache that holds little."""


async def read_all(wal: Wal, start: Any = "earliest", stop: int | None = None) -> list[Record]:
    """Return every durable record from ``start`` on."""
    async with wal.reader(start, stop=stop, follow=False) as reader:
        return [record async for record in reader]


async def read_values(wal: Wal, start: Any = "earliest") -> list[bytes]:
    """Return the values of every durable record from ``start`` on."""
    return [record.value for record in await read_all(wal, start)]


async def contents(directory: Path, settings: Settings | None = None) -> list[Record]:
    """Open the log, read all of it, and close it again."""
    async with Wal.open(directory, settings=settings) as wal:
        return await read_all(wal)


def segments(directory: Path) -> list[Path]:
    """Return the segment files of a log, oldest first."""
    return sorted(directory.glob("*.wal"))


def open_descriptors(directory: Path) -> list[str]:
    """Return the files below ``directory`` that this process has open."""
    found: list[str] = []
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{entry}"))
    return [name for name in found if name.startswith(f"{directory}/")]


def copy_log(source: Path, target: Path) -> Path:
    """Copy a log's files, as they lie on disk now.

    A log that is open may meanwhile give a file its name, or delete it: such a file is left out.
    """

    def copy(found: str, to: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(found, to)

    shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK"), copy_function=copy)
    return target


def check_contiguous(records: Iterable[Record], start: int = 1) -> None:
    """Assert that offsets count up by one from ``start`` and that time never goes back."""
    latest_us = 0
    for offset, record in enumerate(records, start):
        assert record.offset == offset
        assert record.timestamp_us >= latest_us
        latest_us = record.timestamp_us


UNCHANGING = frozenset(("close", "free_bytes", "list", "pread", "read", "size"))
"""Calls before which a power failure leaves what one before the next other call leaves."""


class PowerCut:
    """Cuts the power before the n-th call that may change the disk, and counts these calls."""

    def __init__(self, fs: FaultyFileSystem, power: PowerLossFileSystem, nth: int) -> None:
        self.calls = 0
        self._power = power
        self._nth = nth
        self._lock = threading.Lock()
        fs.before_each(self._see)

    @property
    def was_cut(self) -> bool:
        """Whether there were as many calls."""
        return self.calls >= self._nth

    def _see(self, call: Call) -> None:
        if call.kind in UNCHANGING:
            return
        with self._lock:
            self.calls += 1
        if self.was_cut:
            self._power.cut()


def crashes(
    power: PowerLossFileSystem,
    seeds: Iterable[int],
    scratch: Path,
    seen: set[bytes] | None = None,
) -> Iterator[Path]:
    """Yield what a crash leaves with each seed, in directories of ``scratch``; what is the same only once.

    Pass the same ``seen`` each time if a check needs nothing but the disk: then it sees each disk only once.
    """
    seen = set() if seen is None else seen
    for seed in seeds:
        crashed = scratch / f"crashed-{seed}"
        power.crash(seed, crashed)
        if is_new(crashed, seen):
            yield crashed


def is_new(directory: Path, seen: set[bytes]) -> bool:
    """Return whether a directory's names and bytes are in ``seen`` for the first time.

    For checks that need nothing but the disk: faults at many calls leave the same, which is checked once.
    """
    state = disk_state(directory)
    if state in seen:
        return False
    seen.add(state)
    return True


def disk_state(directory: Path) -> bytes:
    """Return a hash of the names and bytes in a directory, which need not be there."""
    found = hashlib.blake2b(b"there" if directory.is_dir() else b"")
    for path in sorted(directory.rglob("*")):
        data = path.read_bytes() if path.is_file() else None
        name = str(path.relative_to(directory))
        found.update(repr((name, None if data is None else len(data))).encode())
        found.update(data or b"")
    return found.digest()


async def turns(count: int = 10) -> None:
    """Let the event loop run whatever can run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def gather_outcomes(calls: Iterable[Awaitable[_T]]) -> list[_T | BaseException]:
    """Run calls at the same time and return what each returned or raised."""
    return await asyncio.gather(*calls, return_exceptions=True)


def open_blocking(
    directory: Path,
    *,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    settings: Settings = SMALL,
    tier_limit: int = 1,
    tier_url: str | None = None,
) -> Opened:
    """Open a log without an event loop, as the writer's thread does."""
    return recover_log(
        enter_log(directory, fs=fs or PosixFileSystem(), owner="test"),
        clock=clock or ManualClock(),
        settings=settings,
        make_log_id=lambda: b"identity of log ",
        tier_limit=tier_limit,
        tier_url=tier_url,
    )


class HastyClock(ManualClock):
    """A clock whose pauses below a second are over at once: those before a lock is tried again.

    For tests that do not advance the clock whenever two threads of a log meet at the cursors' lock.
    """

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds if seconds >= 1 else 0)


def draft_of(start: int, *values: bytes, timestamp_us: int | None = None) -> BatchBuilder:
    """Return a draft as the channel would hand it to the writer."""
    draft = BatchBuilder(start)
    group = make_group(values, None, None, None, timestamp_us)
    draft.extend(group)
    draft.size_bytes = group.size_bytes
    return draft


def close_opened(opened: Opened, *, clean: bool = True) -> None:
    """Close a log that was opened with :func:`open_blocking`."""
    try:
        opened.tail.close(clean=clean)
    finally:
        opened.release()


def read_opened(opened: Opened) -> list[Record]:
    """Read all of a log that was opened with :func:`open_blocking`."""
    tail = opened.tail
    position = tail.head
    records: list[Record] = []
    for source in [*opened.sealed, tail.active]:
        limit = source.summary.limit if source.summary else tail.durable_limit
        while position < limit:
            for batch in read_batches(PosixFileSystem(), source, position, limit, 1 << 20):
                records += batch.records()
                position = batch.limit
    assert position == tail.durable_limit
    return records


class UnsyncedFileSystem(PosixFileSystem):
    """The real file system without its syncs: for tests that open thousands of logs."""

    def open(self, path: Path, mode: str) -> PosixFile:
        found = super().open(path, mode)
        found.datasync = lambda: None  # type: ignore[method-assign]
        return found

    def sync_directory(self, path: Path) -> None:
        pass


async def drop_before(wal: Wal, offset: int) -> int:
    """Delete the sealed segments wholly below an offset, as retention does; return the new head."""
    return await wal.trim(offset)


def stored_batches(
    log: Path | LogSnapshot, start: int | None = None, limit: int | None = None
) -> Iterator[Batch]:
    """Yield what a log's files hold of ``[start, limit)``; by default all that is durable."""
    view = log if isinstance(log, LogSnapshot) else LogSnapshot.open(log)
    position = view.head if start is None else start
    limit = view.durable_limit if limit is None else limit
    ends = [*(source.start for source in view.segments[1:]), limit]
    for source, end in zip(view.segments, ends, strict=True):
        while position < min(limit, end):
            found = read_batches(view.fs, source, position, min(limit, end), CHUNK_BYTES)
            yield from found
            position = found[-1].limit
