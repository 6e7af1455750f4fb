"""WalStore: many logs in one directory and one process, with shared threads, budgets and descriptors.

Opens, closes, lists and deletes logs. One task watches the disk space for all of them; it sleeps until
megabytes have been written. An idle log costs only memory.

Invariants (tests/scenarios/test_30_store.py, test_store_sharing.py)
  S1  While a store is open, no other process or object writes to any of its logs.
  S2  A log has at most one open object; every caller gets that one.
  S3  A deleted log is gone as a whole, also after a crash: it is renamed durably, then removed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from walstore.core.append.budgets import CacheBudget, ChannelBudget
from walstore.core.append.disk_watch import DiskWatch
from walstore.core.files.anchor import absolute
from walstore.core.files.locks import lock_in_store, this_process
from walstore.core.files.open_files import OpenFiles
from walstore.core.files.posix import PosixFileSystem
from walstore.core.ports import Clock, FileSystem
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.error_mapping import copy_error, describe_open
from walstore.core.runtime.keyed_locks import KeyedLocks
from walstore.core.runtime.owned import Owned
from walstore.core.runtime.resource import (
    LoopGuard,
    MustClose,
    Opening,
    Unclosed,
    abandon_in_children,
    wait_closed,
)
from walstore.core.runtime.statistics import Metrics
from walstore.core.runtime.tasks import log_failure, start_task, wait_ended
from walstore.core.runtime.threads import Pool
from walstore.core.settings import Settings
from walstore.core.tier_port import Tier
from walstore.core.validation.arguments import as_directory
from walstore.errors import DiskFullError, LogNotFoundError, WalClosedError, WalError
from walstore.log.log_resources import FileLane, LogResources
from walstore.log.wal import Wal
from walstore.store.directory import (
    OpenedStore,
    delete_log,
    directory_of,
    has_log,
    list_logs,
    name_of,
    open_store,
)
from walstore.store.log_catalog import LogCatalog, ManyLogs, has_failed
from walstore.store.store_settings import StoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    """Counters of a store. Those of a single log are its own, see :class:`walstore.Statistics`."""

    open_logs: int
    """Logs that are open now."""
    opened_logs: int
    """Logs that were opened since the store was."""
    logs_with_files: int
    """Open logs that have descriptors; the others are parked."""
    parkings: int
    """How often a log's files were closed to make room for another's."""
    cache_bytes: int
    """Bytes of recent batches that all logs keep in memory."""
    channel_bytes: int
    """Bytes that all logs have accepted and not yet on disk, including leased room."""
    waiting_logs: int
    """Logs that wait for a share of the channel budget."""


logger = logging.getLogger("walstore.log")

_T = TypeVar("_T")

_READS_OF_ONE_LOG: Final = 2

MakeTier = Callable[[str], Tier | None]
"""Makes the tier of a log from its name; None for a log without one."""


class WalStore(ManyLogs, Owned, MustClose):
    """Many logs in one directory, for one writing process.

    Make one with :meth:`open`. All methods belong to the event loop that opened it: from another thread or
    event loop they raise WrongLoopError, in a forked child WalClosedError. Only :meth:`statistics` may be
    called on any thread.
    """

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        settings: Settings | None = None,
        store_settings: StoreSettings | None = None,
        tier: MakeTier | None = None,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> Opening[WalStore]:
        """Open the store in directory ``path``, creating it if there is none. Opens no log yet.

        Use as ``async with WalStore.open(p) as store`` or ``store = await WalStore.open(p)`` with a
        later ``await store.aclose()``. ``settings`` are those of each log. ``tier`` is called with a
        log's name when it is opened and makes its tier, a new one for each. ``metrics`` exports each
        log under its name.

        Raises TypeError or InvalidSettingsError at once for an invalid path, such as a URL, ``""`` or
        ``"~/x"``. Opening raises InvalidSettingsError if the path is that of a file, WalLockedError if the
        store, or one of its logs on its own, is open elsewhere, DiskFullError, and StorageUnavailableError
        for a directory that cannot be written.
        """
        directory = as_directory(path, "WalStore.open()")

        async def open_it() -> WalStore:
            path = directory
            shared = store_settings or StoreSettings()
            writing = Pool("writer", shared.writer_threads)
            reading = Pool("reader", shared.reader_threads)
            try:
                path = await absolute(path, writing.lane())
                opened = await writing.lane().run_owned(
                    partial(open_store, fs or PosixFileSystem(), path), OpenedStore.release
                )
            except BaseException as error:
                writing.close()
                reading.close()
                if isinstance(error, OSError):
                    raise describe_open(error, path) from error
                raise
            return cls(
                path=path,
                settings=settings or Settings(),
                store_settings=shared,
                tier=tier,
                clock=clock or SystemClock(),
                metrics=metrics,
                pools=(writing, reading),
                opened=opened,
            )

        return Opening(open_it)

    def __init__(
        self,
        *,
        path: Path,
        settings: Settings,
        store_settings: StoreSettings,
        tier: MakeTier | None,
        clock: Clock,
        metrics: Metrics | None,
        pools: tuple[Pool, Pool],
        opened: OpenedStore,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        # Set once at open.
        self.path = path
        """The store's directory as an absolute path. A directory that is moved is followed; this path
        stays."""
        self.settings = settings
        """Settings of each log, as given to :meth:`open`."""
        self.store_settings = store_settings
        """As given to :meth:`open`."""
        self._tier = tier
        self._opened = opened
        self._fs = opened.fs
        self._clock = clock
        self._metrics = metrics
        self._writing, self._reading = pools
        self._lane = self._writing.lane()
        self._cache = CacheBudget(store_settings.cache_bytes)
        self._channel = ChannelBudget(store_settings.channel_bytes)
        self._files = OpenFiles(store_settings.max_open_logs)
        self._disk_watch = DiskWatch(
            fs=opened.fs,
            path=path,
            min_free_bytes=settings.min_free_bytes,
            worker=self._reading.lane(),
            clock=clock,
            waiting_bytes=lambda: self._channel.used_bytes,
        )
        self._disk_watch.judge(opened.free_bytes)
        # Owned by the event loop. Logs and locks by the names of their directories.
        self._logs: dict[str, Wal] = {}
        self._locks = KeyedLocks(store_settings.max_concurrent_opens)
        self._opened_logs = 0
        self._closing: asyncio.Task[None] | None = None
        self._abandoned: WalClosedError | None = None
        abandon_in_children(self)
        loop = asyncio.get_running_loop()
        self._guard = LoopGuard("store", loop)
        # Set by the first step of closing.
        self._close_begun: asyncio.Future[None] = loop.create_future()
        # Ended by aclose().
        self._watching = start_task(self._disk_watch.run(), name=f"walstore {path} space")

    # -- logs --------------------------------------------------------------------------------

    async def wal(self, name: str) -> Wal:
        """Return the log ``name``, opening or creating it if needed: the same object for all callers.

        A failed log is closed and opened again. The store closes its logs; ``aclose()`` of the log
        closes it earlier. Names are parts with ``/`` between them, see ``docs/store.md``.

        Raises InvalidSettingsError for an invalid name, WalClosedError once the store is closed, and
        what :meth:`walstore.Wal.open` raises. If cancelled, the log stays as it was.
        """
        found = await self._find(name, creates=True)
        assert found is not None
        return found

    async def _find(self, name: str, *, creates: bool) -> Wal | None:
        """Return a log, opened if it is not; None if there is none and it is not to be made."""
        self.check_owner()
        directory = directory_of(name)
        found = self._logs.get(directory)
        if found is not None and not found.is_closing:
            return found
        self._check_open()
        async with self._locks.pass_through(directory):
            found = self._logs.get(directory)
            if found is not None:
                if not found.is_closing:
                    return found
                await self._close(directory, found)
            self._check_open()
            if not creates and not await self._is_on_disk(directory):
                return None
            return await self._open_log(name, directory)

    async def _make(self, name: str, handler: Callable[[Wal], Awaitable[_T]]) -> _T:
        """As :meth:`wal`, and return what ``handler`` makes of the log.

        If there is no space for that, a log that was made for it, and has nothing, is removed again.
        """
        directory, wal = directory_of(name), None
        was_there = await self.exists(name)
        try:
            wal = await self.wal(name)
            return await handler(wal)
        except DiskFullError as error:
            if was_there or await self._remove_unused(directory, wal):
                raise
            text = f"{error}; the log {name!r} was made, and is left for the next try"
            raise DiskFullError(text, outcome=error.outcome) from error

    async def _remove_unused(self, directory: str, wal: Wal | None) -> bool:
        """Remove a log that was just made; False if it stays, as it may have records or registers."""
        async with self._locks.pass_through(directory):
            found = self._logs.get(directory)
            if (found is not None and found is not wal) or _is_used(wal):
                return False  # others go on with it
            if found is not None:
                await self._close(directory, found)
                if _is_used(wal):
                    return False  # what others appended before it was closed
            delete = partial(delete_log, self._fs, self.path, directory)
            try:
                await self._lane.run_owned(delete, lambda _: None)
            except LogNotFoundError:
                return True  # the directory was not made
            except (OSError, WalError):
                return False
            return True

    async def logs(self) -> list[str]:
        """Return the names of all logs on disk, open or not, in order."""
        self._check_open()
        try:
            return await self._lane.run(list_logs, self._fs, self.path)
        except OSError as error:
            raise describe_open(error, self.path) from error

    def opened(self) -> dict[str, Wal]:
        """Return the logs that are open now, by name."""
        return {
            name: wal
            for directory, wal in self._logs.items()
            if (name := name_of(directory)) is not None and not wal.is_closing
        }

    async def exists(self, name: str) -> bool:
        """Return whether there is a log ``name`` on disk, open or not.

        InvalidSettingsError for an invalid name.
        """
        self._check_open()
        directory = directory_of(name)
        return directory in self._logs or await self._is_on_disk(directory)

    async def _is_on_disk(self, directory: str) -> bool:
        try:
            return await self._lane.run(has_log, self._fs, self.path, directory)
        except OSError as error:
            raise describe_open(error, self.path) from error

    async def close_log(self, name: str) -> None:
        """Drain and close the log ``name`` if it is open; see :meth:`walstore.Wal.aclose`."""
        directory = directory_of(name)
        async with self._locks.pass_through(directory):
            found = self._logs.get(directory)
            if found is not None:
                await found.aclose()

    async def delete(self, name: str) -> None:
        """Close the log ``name`` and delete it and all its records from this disk.

        It is permanently deleted once this returns; after a crash or an error before that, it is whole
        or deleted. Records in a tier stay. If cancelled, it may or may not be deleted.

        Raises LogNotFoundError if there is no such log, WalLockedError if it is open outside the store.
        """
        directory = directory_of(name)
        async with self._locks.pass_through(directory):
            self._check_open()
            found = self._logs.get(directory)
            if found is not None:
                await self._close(directory, found)
            try:
                # Owned: the log must not be opened before this has ended, even if the caller was cancelled.
                delete = partial(delete_log, self._fs, self.path, directory)
                await self._lane.run_owned(delete, lambda _: None)
            except OSError as error:
                raise describe_open(error, self.path / directory) from error
            logger.info("%s: deleted", self.path / directory)

    async def _announce(self, where: str | None) -> None:
        """Let a WalLockedError of others say where the store is served, or no longer."""
        owner = this_process() if where is None else f"{this_process()}, which serves it at {where}"
        await self._lane.run(self._opened.lock.describe, owner)

    # -- looking -----------------------------------------------------------------------------

    def statistics(self) -> StoreStatistics:
        """Return a snapshot of what the logs share. For one log: ``(await wal(n)).statistics()``.

        May be called on any thread, also after closing."""
        return StoreStatistics(
            open_logs=len(self._logs),
            opened_logs=self._opened_logs,
            logs_with_files=len(self._files),
            parkings=self._files.parkings,
            cache_bytes=self._cache.size_bytes,
            channel_bytes=self._channel.used_bytes,
            waiting_logs=self._channel.waiting,
        )

    # -- closing -----------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether the store is closed or about to close: it opens no more logs."""
        return self._closing is not None

    async def aclose(self) -> None:
        """Close all logs, several at a time, and the store.

        Twice is allowed. Cancelling the wait does not stop the closing. If logs failed, raises the
        error of one, with notes about the others; every log is closed nevertheless.
        """
        await wait_closed(await self._begin_to_close())

    def _left_open(self) -> Unclosed | None:
        if not hasattr(self, "_watching") or self._closing or self._abandoned is not None:
            return None
        return Unclosed(f"the store at {self.path}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<WalStore {self.path} with {len(self._logs)} open logs>"

    # -- inside ------------------------------------------------------------------------------

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything in a child process; see :mod:`walstore.core.runtime.resource`."""
        self._abandoned = error

    @property
    def catalog(self) -> LogCatalog:
        """Not for callers: the logs, as a server has them."""
        find = partial(self._find, creates=False)
        return _StoreCatalog(self, find, self._make, self._announce, self._logs.values)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        if self._abandoned is not None:
            raise copy_error(self._abandoned)
        self._guard.check()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise WalClosedError("the store is closed")

    async def _open_log(self, name: str, directory: str) -> Wal:
        async with self._locks.few:
            wal = await Wal.open_in(
                self.path / directory,
                settings=self.settings,
                tier=self._tier(name) if self._tier is not None else None,
                fs=self._fs,
                clock=self._clock,
                resources=LogResources(
                    writing=FileLane(self._writing, self._files),
                    reading=self._reading.lane(_READS_OF_ONE_LOG),
                    make_spilling=self._writing.lane,
                    take_lock=lock_in_store,
                    defers_epoch=True,
                    cache=self._cache,
                    channel=self._channel,
                    disk_watch=self._disk_watch,
                    on_closed=partial(self._forget, directory),
                ),
                metrics=self._metrics,
                name=name,
            )
        self._logs[directory] = wal
        self._opened_logs += 1
        return wal

    def _forget(self, directory: str) -> None:
        self._logs.pop(directory, None)

    async def _begin_to_close(self) -> asyncio.Task[None]:
        """Return the task that closes the store once it runs, so that cancelling it does not end it."""
        is_cancelled = was_ended = False
        while not self._close_begun.done():
            if self._closing is None or self._closing.done():
                was_ended = self._closing is not None  # cancelled before it ran
                self._closing = start_task(self._close_all(), name=f"walstore {self.path}")
            try:
                await asyncio.wait(
                    (self._close_begun, self._closing), return_when="FIRST_COMPLETED"
                )
            except asyncio.CancelledError:
                is_cancelled = True
        assert self._closing is not None
        if is_cancelled:
            log_failure(self._closing)
            if was_ended:  # by code that cancels all tasks and waits for those it found
                await asyncio.wait((self._closing,))
            raise asyncio.CancelledError
        return self._closing

    async def _close(self, directory: str, wal: Wal) -> None:
        """Close a log whose failure, if any, its users already know."""
        try:
            async with self._locks.few:
                await wal.aclose()
        except WalError as error:
            logger.warning("log %s had failed: %s", self.path / directory, error)

    async def _close_all(self) -> None:
        """Close the logs, then release the lock: on a thread, when nothing can write any more.

        If cancelled from outside, because the event loop is being stopped, it still closes them.
        """
        self._close_begun.set_result(None)
        errors: list[Exception] = []
        current = asyncio.current_task()
        assert current is not None
        while self._logs or self._locks.busy:
            try:
                await self._close_logs(errors)
            except asyncio.CancelledError:
                current.uncancel()
        self._lane.close()
        self._reading.close()
        released = self._writing.close_with(self._opened.release)
        self._watching.cancel()
        await wait_ended(released, self._watching)
        if not self._watching.cancelled() and self._watching.exception() is not None:
            error = self._watching.exception()
            logger.error("watching the space of %s had failed", self.path, exc_info=error)
        released.result()
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and: {other}")
            raise errors[0]

    async def _close_logs(self, errors: list[Exception]) -> None:
        waiting = iter(dict.fromkeys((*self._logs, *self._locks.busy)))

        async def close_some() -> None:
            for directory in waiting:
                async with self._locks.pass_through(directory):
                    found = self._logs.get(directory)
                    if found is None:
                        continue
                    try:
                        await found.aclose()
                    except asyncio.CancelledError:
                        current = asyncio.current_task()
                        if current is not None and current.cancelling():
                            raise
                    except Exception as error:  # noqa: BLE001 - the others are still closed
                        errors.append(error)
                    self._forget(directory)

        async with asyncio.TaskGroup() as group:
            for _ in range(self.store_settings.max_concurrent_opens):
                group.create_task(close_some())


class _StoreCatalog(LogCatalog):
    """The logs of a store, and what only a server asks of it."""

    def __init__(
        self,
        store: WalStore,
        find: Callable[[str], Awaitable[Wal | None]],
        make: Callable[[str, Callable[[Wal], Awaitable[Any]]], Awaitable[Any]],
        announce: Callable[[str | None], Awaitable[None]],
        every: Callable[[], Iterable[Wal]],
    ) -> None:
        self._store = store
        self._all = every
        self._find, self._make, self._announce = find, make, announce

    @property
    def is_closing(self) -> bool:
        return self._store.is_closing

    def opened(self) -> dict[str, Wal]:
        return self._store.opened()

    def failed(self) -> list[Wal]:
        return [wal for wal in self._all() if has_failed(wal)]

    async def logs(self) -> list[str]:
        return await self._store.logs()

    async def wal(self, name: str) -> Wal:
        return await self._store.wal(name)

    async def find(self, name: str) -> Wal | None:
        return await self._find(name)

    async def make(self, name: str, handler: Callable[[Wal], Awaitable[_T]]) -> _T:
        made: _T = await self._make(name, handler)
        return made

    async def delete(self, name: str) -> None:
        await self._store.delete(name)

    async def announce(self, where: str | None) -> None:
        await self._announce(where)


def _is_used(wal: Wal | None) -> bool:
    """Whether a log that was just made may have records or registers."""
    return wal is not None and (wal.tail > wal.head or bool(wal.registers))
