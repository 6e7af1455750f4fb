"""A log of a stream: opened once, polled for its limit, planned over at any time.

All logs of a stream share one event loop, so that many are polled concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from uploader import CloudLog
from uploader.stores import ObjectStore
from walstore import CorruptionError, LogNotFoundError, ReadonlyWal, Wal
from walstore.files.directory import peek_log_id
from walstore.files.posix import PosixFileSystem
from walstore.spark.bounds import LogName
from walstore.spark.directory import DirectoryLog
from walstore.spark.location import Location
from walstore.spark.logs import NamedLog
from walstore.spark.plan import EmptyLog
from walstore.spark.store import StoreLog, SyncRunner, open_cloud_log
from walstore.spark.streaming.cursors import DirectoryCursor, StoreCursor, StreamCursor

StoreOpener = Callable[[str], ObjectStore]
"""Opens the store at a URL."""

PlannedLog = StoreLog | DirectoryLog | EmptyLog


class PolledLog(Protocol):
    """One log of a stream."""

    @property
    def name(self) -> LogName:
        """Topic and partition."""

    @property
    def head(self) -> int:
        """First offset that can certainly be read; cheap. Earlier records may be in a tier."""

    @property
    def limit(self) -> int:
        """Last known offset after the last one that can be read; cheap."""

    async def refresh(self) -> None:
        """Update what is known of the log; the first call opens it.

        Raises LogNotFoundError, CorruptionError, StorageUnavailableError.
        """

    def plan(self) -> PlannedLog:
        """Return a snapshot for planning, which the caller closes. Blocking: not on the event loop."""

    def cursor(self, name: str) -> StreamCursor:
        """Return the log's cursor of that name; call :meth:`refresh` first."""

    async def aclose(self) -> None:
        """Release connections and threads."""


class PolledStore:
    """A log in an object store. A refresh costs one request if nothing is new."""

    def __init__(self, log: NamedLog, runner: SyncRunner, open_store: StoreOpener) -> None:
        """Poll ``log`` on ``runner``."""
        self.name = (log.topic, log.partition)
        self._named = log
        self._runner = runner
        self._open_store = open_store
        self._log: CloudLog | None = None

    @property
    def head(self) -> int:
        """First retained offset."""
        return 1 if self._log is None else self._log.head

    @property
    def limit(self) -> int:
        """Offset after the last one in the manifest that was read last."""
        return 1 if self._log is None else self._log.tail

    async def refresh(self) -> None:
        """Read the manifest; a partition without records may have none yet."""
        if self._log is not None:
            await self._log.refresh()
            return
        url = self._named.location.text
        try:
            self._log = await open_cloud_log(url, store=self._open())
        except LogNotFoundError:
            if not self._named.is_part:
                raise

    def plan(self) -> PlannedLog:
        """Return the log as of the manifest that was read last."""
        if self._log is None:
            return EmptyLog()
        return StoreLog(
            _location(self._named), partition=self.name[1], log=self._log, runner=self._runner
        )

    def cursor(self, name: str) -> StreamCursor:
        """Return a cursor in the store."""
        if self._log is None:
            return StoreCursor.without_log(self._open(), name)
        return StoreCursor(self._log.cursors, name)

    async def aclose(self) -> None:
        """Release connections and threads."""
        if self._log is not None:
            await self._log.aclose()

    def _open(self) -> ObjectStore:
        return self._open_store(self._named.location.text)


class PolledDirectory:
    """A log in a directory of this machine, next to its writer. Its limit is known at any time.

    The log belongs to ``runner`` and is used only there: Spark may call from another thread each time.
    """

    def __init__(self, log: NamedLog, runner: SyncRunner, *, use_tier: bool) -> None:
        """Poll ``log`` on ``runner``."""
        self.name = (log.topic, log.partition)
        self._named = log
        self._runner = runner
        self._use_tier = use_tier
        self._log: ReadonlyWal | None = None

    @property
    def head(self) -> int:
        """First offset in the directory; earlier records may be in its tier."""
        return 1 if self._log is None else self._runner.run(_head(self._log))

    @property
    def limit(self) -> int:
        """The durable limit."""
        return 1 if self._log is None else self._runner.run(_limit(self._log))

    async def refresh(self) -> None:
        """Refresh the log, and check that the directory still contains it."""
        if self._log is None:
            self._log = await Wal.open_readonly(self._named.location.text)
        else:
            await self._log.refresh()
            await asyncio.to_thread(self._check_location, self._log)

    def _check_location(self, log: ReadonlyWal) -> None:
        """Check that the path still leads to this log, since tasks read it by its path."""
        path = Path(self._named.location.text)
        found = peek_log_id(PosixFileSystem(), path)
        if found is None:
            raise LogNotFoundError(f"there is no log at {path} any more", location=str(path))
        if found.hex() != log.log_id:
            raise CorruptionError(
                "another log has taken this one's place; begin the query again",
                path=str(path),
                expected=log.log_id,
                found=found.hex(),
            )

    def plan(self) -> PlannedLog:
        """Return a new snapshot of the directory."""
        return DirectoryLog(_location(self._named), partition=self.name[1], use_tier=self._use_tier)

    def cursor(self, name: str) -> StreamCursor:
        """Return a cursor in the tier, if there is one, or else in the directory."""
        assert self._log is not None
        planned = self.plan()
        assert isinstance(planned, DirectoryLog)
        planned.close()
        return DirectoryCursor(self._log, planned.tier_url, name)

    async def aclose(self) -> None:
        """Release the thread and the file descriptors."""
        if self._log is not None:
            await self._log.aclose()


def make_polled_log(
    log: NamedLog, runner: SyncRunner, *, use_tier: bool, open_store: StoreOpener
) -> PolledLog:
    """Return a log to poll; nothing is opened yet."""
    if log.location.is_store:
        return PolledStore(log, runner, open_store)
    return PolledDirectory(log, runner, use_tier=use_tier)


def _location(log: NamedLog) -> Location:
    return replace(log.location, topic=log.topic)


async def _head(log: ReadonlyWal) -> int:
    return log.head


async def _limit(log: ReadonlyWal) -> int:
    return log.limit
