"""The cursors of a stream, one in each log with the same name, and where the stream starts. Blocking.

A cursor retains all records from its position on. It is created once, at the start, and moved forward by
compare-and-swap; never back. One query uses it.

Spark asks twice for the start, asks again if it dies before the first micro-batch is done, and remembers no
answer. A start that may resolve differently the next time is therefore resolved once and held by a cursor.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from typing import TypeAlias

from uploader import CloudCursors, CloudLog
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import find_root
from uploader.stores import ObjectStore, RetryPolicy
from walstore import (
    Cursor,
    CursorMovedError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetTrimmedError,
    ReadonlyWal,
)
from walstore.files.locks import this_process
from walstore.runtime.clock import SystemClock
from walstore.runtime.threads import Worker
from walstore.spark.bounds import Bound, Edge, LogName, Offsets, show
from walstore.spark.options import StreamOptions
from walstore.spark.plan import resolve
from walstore.spark.planned_log import StoreLog, SyncRunner
from walstore.spark.streaming.poller import PolledLog


class StoreCursor:
    """A cursor in an object store, where the garbage collector respects it."""

    def __init__(
        self, cursors: CloudCursors, name: str, *, store: ObjectStore | None = None
    ) -> None:
        """``store`` is closed with it."""
        self._cursors = cursors
        self._name = name
        self._store = store

    @classmethod
    def without_log(cls, store: ObjectStore, name: str) -> StoreCursor:
        """Return the cursor of a log that has no manifest yet; it owns ``store``."""
        clock = SystemClock()
        retry = RetryPolicy(clock=clock)

        async def newest() -> Manifest:
            with closing(Worker("cursor")) as worker:
                return (await find_root(store, retry=retry, worker=worker)).manifest

        cursors = CloudCursors(
            store, newest=newest, retry=retry, clock=clock, writer=this_process()
        )
        return cls(cursors, name, store=store)

    async def load(self) -> int | None:
        """Return its position, or None if it does not exist."""
        found = await self._cursors.load(self._name)
        if found is not None and found.expires_us is not None:
            raise InvalidSettingsError(
                f"{self._name!r} is a pin, which expires; give the stream's cursor another name"
            )
        return None if found is None else found.position

    async def create(self, position: int) -> int:
        """Create it at ``position`` if it does not exist; return its position."""
        return (await self._cursors.create(self._name, position)).position

    async def advance(self, position: int) -> None:
        """Move it forward to ``position``, or create it there. A cursor beyond that stays."""
        found = await self.load()
        if found is None or found < position:
            try:
                await self._cursors.commit(self._name, position)
            except ValueError:
                if (await self.load() or 0) < position:
                    raise

    async def aclose(self) -> None:
        """Release the store, if it was opened for this."""
        if self._store is not None:
            await self._store.aclose()


class DirectoryCursor:
    """A cursor of a local log: in the tier to which it ships, or else in its directory.

    Local retention deletes shipped records, so the tier is what must retain them.
    """

    def __init__(self, log: ReadonlyWal, tier_url: str | None, name: str) -> None:
        """Use a cursor of ``log``, which ships to ``tier_url``, or nowhere if that is None."""
        self._log = log
        self._tier_url = tier_url
        self._name = name
        self._tier: CloudLog | None = None
        self._local: Cursor | None = None

    async def load(self) -> int | None:
        """Return its position, or None if it does not exist."""
        tier = await self._open_tier()
        found = None if tier is None else await StoreCursor(tier.cursors, self._name).load()
        if found is not None:
            return found
        for info in await self._log.cursors():
            if info.name == self._name:
                self._local = await self._log.cursor(self._name)
                return self._local.position
        return None

    async def create(self, position: int) -> int:
        """Create it at ``position`` if it does not exist; return its position."""
        found = await self.load()
        if found is not None:
            return found
        if self._tier is not None:
            return await StoreCursor(self._tier.cursors, self._name).create(position)
        try:
            self._local = await self._log.cursor(self._name, start=position)
        except OffsetTrimmedError as error:
            error.add_note(
                "a cursor of a log directory cannot stand before what is in the directory"
            )
            raise
        return self._local.position

    async def advance(self, position: int) -> None:
        """Move it forward to ``position``, or create it there. A cursor beyond that stays."""
        if self._tier is None and self._local is None and await self.load() is None:
            await self.create(position)
        if self._local is None:
            assert self._tier is not None
            await StoreCursor(self._tier.cursors, self._name).advance(position)
        elif self._local.position < position and not await _commit(self._local, position):
            self._local = None
            await self.create(position)

    async def aclose(self) -> None:
        """Release the tier's connections, if there are any."""
        if self._tier is not None:
            await self._tier.aclose()

    async def _open_tier(self) -> CloudLog | None:
        """Return the tier; None if there is none or nothing has been shipped yet."""
        if self._tier is None and self._tier_url is not None:
            try:
                self._tier = await CloudLog.open(self._tier_url)
            except LogNotFoundError:
                return None
        return self._tier


async def _commit(cursor: Cursor, position: int) -> bool:
    """Move a cursor to ``position``, unless it was moved further; return False if it was deleted."""
    try:
        await cursor.commit(position)
    except CursorMovedError as error:
        if error.actual is None:
            return False
        if await cursor.refresh() < position:
            await cursor.commit(position)
    return True


StreamCursor: TypeAlias = StoreCursor | DirectoryCursor
"""A named position in one log."""


def open_cursor(log: PolledLog, name: str) -> StreamCursor:
    """Return the cursor ``name`` of a log that was refreshed; makes no request yet."""
    if isinstance(log, StoreLog):
        if log.stored is None:
            return StoreCursor.without_log(log.open_store(), name)
        return StoreCursor(log.stored.cursors, name)
    with log.plan() as planned:
        return DirectoryCursor(log.wal, planned.tier_url, name)


logger = logging.getLogger("walstore.spark")


class StreamCursors:
    """Cursors of the logs of one stream."""

    def __init__(self, name: str, runner: SyncRunner) -> None:
        """Use the cursors called ``name``; the logs are open on ``runner``."""
        self._name = name
        self._runner = runner
        self._cursors: dict[LogName, StreamCursor] = {}
        self._known: dict[LogName, int] = {}

    def positions(self, logs: Mapping[LogName, PolledLog]) -> dict[LogName, int]:
        """Return the positions of the cursors that exist."""
        found = {
            name: self._runner.run(self._cursor(name, log).load()) for name, log in logs.items()
        }
        return {name: position for name, position in found.items() if position is not None}

    def begin(self, name: LogName, log: PolledLog, position: int) -> int:
        """Create a log's cursor at ``position`` if it does not exist; return its position."""
        return self._runner.run(self._cursor(name, log).create(position))

    def advance(self, logs: Mapping[LogName, PolledLog], offsets: Offsets) -> None:
        """Move the cursors forward. A failure is logged; the next call tries again."""
        for name, position in offsets.items():
            if name not in logs or position <= self._known.get(name, 0):
                continue
            try:
                self._runner.run(self._cursor(name, logs[name]).advance(position))
            except Exception as error:  # noqa: BLE001 - the query continues without its cursor
                logger.warning(
                    "cursor %s of %s was not moved to %d: %s",
                    self._name, show(name), position, error,
                )  # fmt: skip
            else:
                self._known[name] = position

    def close(self) -> None:
        """Release what was opened for the cursors."""
        while self._cursors:
            _, cursor = self._cursors.popitem()
            self._runner.run(cursor.aclose())

    def _cursor(self, name: LogName, log: PolledLog) -> StreamCursor:
        if name not in self._cursors:
            self._cursors[name] = open_cursor(log, self._name)
        return self._cursors[name]


def initial_offsets(
    logs: Mapping[LogName, PolledLog], options: StreamOptions, cursors: StreamCursors | None
) -> dict[LogName, int]:
    """Return where each log starts without a checkpoint: at its cursor, or else at the options' bound.

    Creates the cursors that do not exist. Raises OffsetTrimmedError or OffsetNotWrittenError for offsets that
    are not available, InvalidSettingsError for bounds that do not fit the logs, and the cursors' errors.
    """
    held = {} if cursors is None else cursors.positions(logs)
    if held.keys() != logs.keys():
        options.starting.check(logs.keys())
    found = {}
    for name, log in logs.items():
        bound = held.get(name) or options.starting.of(*name)
        start = _resolve(name, log, bound, options)
        if cursors is not None and name not in held:
            start = cursors.begin(name, log, start)
        found[name] = start
    return found


def _resolve(name: LogName, log: PolledLog, bound: Bound, options: StreamOptions) -> int:
    with log.plan() as planned:
        interval = resolve(
            planned,
            bound,
            Edge.LATEST,
            needs_record=options.needs_record,
            fail_on_data_loss=options.fail_on_data_loss,
        )
    if interval.lost:
        logger.warning("%s: %s", show(name), interval.lost)
    return interval.start
