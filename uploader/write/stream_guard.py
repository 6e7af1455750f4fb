"""StreamGuard and StreamDoor: keep records of closed streams out of the log, for one of several writers.

Closing a stream takes two steps. The closing is put into the table of streams, then its number into the
manifest. A writer appends to streams under the number of closings that it knows
(:attr:`StreamGuard.closings`), and the root refuses appends to a manifest with a larger number
(``uploader/format/stream_table.py``). So every append comes either before the second step, and is in the log
before the stream counts as closed, or after it: then its writer reads the table first. There is no flag that
could be read too early.

The program may die between the two steps: then the stream is not closed yet for writers that do not read the
table. The next program that closes it again, or appends under the newer number, finishes it.

Next to a writer that publishes all the time, the closing program is always too late with the manifest. So
such a writer, if it uses streams, reads the table now and then, and its own next manifest carries the number.

The place where the log continues may hold a fragment whose streams were closed since it was made. No writer
names it once the number is in the manifest: before it is replaced, the number is put there.

An append to a stream that is known to be open passes :class:`StreamDoor` at once. The first one to a stream
adds it to the table before its record is sent, so that every reader of the record finds the stream in the
list. Appends that wait for that keep their order, also relative to those that would not have to wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from uploader.format.layout import FIRST_OFFSET
from uploader.format.manifest import Manifest
from uploader.format.stream_table import (
    StreamTable,
    closings_in,
    is_telling,
    raise_closings,
    with_closings,
)
from uploader.root.orphan_recovery import Orphan
from uploader.root.ownership import check_direct
from uploader.root.stream_file import Change, StreamFile
from uploader.root.write_guard import check_unsealed, missing
from uploader.runtime.task_groups import BackgroundTask
from uploader.write.stall_guard import WriteContext
from walstore.core.batches.conditions import check_metadata, check_name
from walstore.core.validation.arguments import as_text
from walstore.errors import (
    CorruptionError,
    LimitExceededError,
    StorageUnavailableError,
    StreamClosedError,
    UnsupportedStoreError,
)

logger = logging.getLogger("walstore.upload")

LOOK_SECONDS: Final = 2.0
"""How often a writer that publishes without such a pause reads the table. Others never do, since the program
that closes a stream gets in between."""


class StreamGuard:
    """What one writer knows of its log's streams. Belongs to one event loop."""

    def __init__(self, context: WriteContext, writer: str) -> None:
        """``writer`` is the writer's name. No request is made before a stream is used."""
        self._root = context.root
        self._stall_guard = context.stall_guard
        self.writer = writer
        self._url = context.url
        self._file = StreamFile(context.store, retry=context.retry, worker=context.worker)
        self._clock = context.retry.clock
        self._background = BackgroundTask[StreamTable]()
        self._published_at: float | None = None
        self._looked_at = 0.0
        self.closings: int | None = None
        """Closings under which the writer appends; None as long as no stream was used."""
        self.on_change: Callable[[], None] = lambda: None
        """Called whenever a table was read or written."""

    @property
    def table(self) -> StreamTable | None:
        """The newest table known; None as long as no stream was used."""
        return self._file.table

    @property
    def signature(self) -> str:
        """The writer that the root records."""
        if self.closings is None:
            return self.writer
        return with_closings(self.writer, self.closings)

    async def load(self) -> StreamTable:
        """Read the newest table; see :meth:`StreamFile.load` and :meth:`StreamTable.checked`."""
        closings = closings_in(self._root.manifest.writer)
        return self._noted((await self._stall_guard.call(self._file.load)).checked(closings))

    async def change(self, make: Change) -> StreamTable:
        """Change the table; see :meth:`StreamFile.change` and :meth:`StreamTable.checked`."""
        closings = closings_in(self._root.manifest.writer)

        def changed(table: StreamTable) -> StreamTable | None:
            return make(table.checked(closings))

        return self._noted(await self._stall_guard.call(partial(self._file.change, changed)))

    def adopt(self, streams: Iterable[tuple[frozenset[str], int]] = ()) -> None:
        """Append under the closings of the newest table from now on.

        Not if that contradicts a fragment under way, until it is decided what becomes of it. ``streams``
        contains the streams of each, and the closings under which it was made.
        """
        table = self.table
        if table is None or table.closings == self.closings:
            return
        if all(table.admits(*found) for found in streams):
            self.closings = table.closings

    def note_published(self) -> None:
        """Record that something was published; begin to read the table if it is time. Returns at once."""
        now, before = self._clock.monotonic(), self._published_at
        self._published_at = now
        if self.closings is None or self._background.is_busy:
            return
        looked = self._background.take()
        if looked is not None and not looked.cancelled() and looked.exception() is not None:
            logger.info("%s: %s", self._url, looked.exception())
        is_steady = before is not None and now - before < LOOK_SECONDS
        if not is_steady:
            self._looked_at = now
        elif now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._background.start(self._look(), f"look for closed streams of {self._url}")

    async def aclose(self) -> None:
        """Cancel the background work; twice is allowed."""
        await self._background.aclose()

    async def catch_up(self) -> None:
        """Learn all closings that the root's manifest counts, if streams are used at all."""
        manifest = self._root.manifest
        if self.closings is None:
            return
        if (closings_in(manifest.writer) or 0) > self.closings or not is_telling(manifest.writer):
            await self.load()
        self.adopt()

    async def admits(self, orphan: Orphan) -> bool:
        """Return whether a fragment that was found in the store may be named; False is final.

        Then no later manifest names it, unless the one that is known by now does.
        """
        if orphan.closings is None:
            return True
        if self.closings is None:
            await self.load()
            self.adopt()
        await self.catch_up()
        return await self.admits_made(orphan.streams, orphan.closings)

    async def admits_made(self, streams: frozenset[str], closings: int) -> bool:
        """As :meth:`admits`, for a fragment with these streams that was made under ``closings``."""
        table = self.table
        if table is None or table.admits(streams, closings):
            return True
        await self.finish(table.closings)
        return False

    async def finish(self, closings: int) -> None:
        """Make the manifest count at least so many closings; that of a sealed log need not.

        ContentionError if the log belongs to a local one by now.
        """
        make = partial(_raised, closings=closings, url=self._url)
        await self._stall_guard.call(partial(self._root.change, make))

    # -- inside ------------------------------------------------------------------------------

    async def _look(self) -> StreamTable:
        closings = closings_in(self._root.manifest.writer)
        return self._noted((await self._file.load()).checked(closings))

    def _noted(self, table: StreamTable) -> StreamTable:
        self.on_change()
        return table


def _raised(manifest: Manifest, *, closings: int, url: str) -> Manifest | None:
    check_direct(manifest, url=url)
    return raise_closings(manifest, closings)


class StreamDoor:
    """The door of one writer. Any number of tasks of its event loop may call it."""

    def __init__(
        self,
        context: WriteContext,
        guard: StreamGuard,
        *,
        settle: Callable[[], Awaitable[None]],
        check_open: Callable[[], None],
    ) -> None:
        """``settle`` returns when all appends admitted before are decided; ``check_open`` raises if the
        writer takes no more of them."""
        self._guard = guard
        self._root = context.root
        self._url = context.url
        self._stall_guard = context.stall_guard
        self._settle = settle
        self._check_open = check_open
        self._turn = asyncio.Lock()
        self._waiting = 0  # appends
        self._wanted: dict[str, None] = {}  # streams that they are for
        self._closing: str | None = None
        self._has_no_swaps = False

    @property
    def has_waiting(self) -> bool:
        """Whether appends wait, so that new ones must wait behind them."""
        return self._waiting > 0

    async def enter(self, streams: Iterable[str | None]) -> None:
        """Return when an append to these streams may be accepted, in the order of the calls.

        StreamClosedError if one is closed, by the newest table; LimitExceededError if there are too many
        streams; what :meth:`StreamGuard.change` raises. After any error nothing was appended.
        """
        self._check_open()
        names = {name for name in streams if name is not None}
        if not self._waiting and self._are_open(names):
            return
        self._waiting += 1
        self._wanted.update(dict.fromkeys(names))
        try:
            async with self._turn:
                self._check_open()
                if not self._are_open(names):
                    await self._add(names)
        finally:
            self._waiting -= 1

    async def open(self, name: str, metadata: Mapping[str, str] | None) -> None:
        """See :meth:`uploader.CloudWriter.open_stream`."""
        checked = check_metadata(metadata or {})
        opened = check_name(name, "stream")
        async with self._turn, _in_doubt():
            self._check_open()
            await self._check_exists()
            check_unsealed(self._root.manifest, url=self._url)
            await self._change(lambda table: self._opened(table, opened, checked))

    async def close(self, name: str) -> None:
        """See :meth:`uploader.CloudWriter.close_stream`."""
        name = as_text(name, "a stream name")
        async with self._turn, _in_doubt():
            self._check_open()
            self._closing = name
            try:
                await self._settle()
                table = await self._of_a_log(lambda: self._change(lambda table: table.close(name)))
                finish = partial(self._guard.finish, table.streams[name].closing)
                await self._stall_guard.guard(finish)
            finally:
                self._closing = None

    async def table(self) -> StreamTable:
        """Return the newest table."""
        async with self._turn:
            self._check_open()
            return await self._of_a_log(lambda: self._stall_guard.guard(self._guard.load))

    async def drain(self) -> None:
        """Return when everything that was begun before has ended."""
        async with self._turn:
            pass

    # -- inside ------------------------------------------------------------------------------

    def _are_open(self, names: Collection[str]) -> bool:
        if not names:
            return True
        table = self._guard.table
        if table is None or self._closing in names:
            return False
        return table.is_open(names) or (self._has_no_swaps and not table.closings)

    async def _add(self, names: Collection[str]) -> None:
        """Add streams to the table, and with the same swap those that other appends wait for."""
        wanted, self._wanted = [*dict.fromkeys((*names, *self._wanted))], {}
        try:
            try:
                await self._change(lambda table: self._added(table, wanted))
            except (StreamClosedError, LimitExceededError):
                await self._change(lambda table: self._added(table, names))
        except UnsupportedStoreError as error:
            # A chain, in a store without swaps: nobody can close a stream there.
            logger.warning("%s: streams are not listed: %s", self._url, error)
            self._has_no_swaps = True

    async def _of_a_log(self, call: Callable[[], Awaitable[StreamTable]]) -> StreamTable:
        """Return the table that ``call`` returns, or raise its error; LogNotFoundError if the log is gone.

        Destroying deletes the table. So an answer that a log without streams would give, too, is believed
        only once the root was found.
        """
        try:
            table = await call()
        except (StreamClosedError, CorruptionError):
            await self._check_exists()
            raise
        if not table.streams:
            await self._check_exists()
        return table

    async def _check_exists(self) -> None:
        """Read the root; LogNotFoundError if it is gone."""
        await self._stall_guard.guard(partial(self._stall_guard.call, self._look))

    async def _look(self) -> None:
        if not await self._root.load():
            raise missing(self._url)

    async def _change(self, make: Callable[[StreamTable], StreamTable | None]) -> StreamTable:
        return await self._stall_guard.guard(partial(self._guard.change, make))

    def _added(self, table: StreamTable, names: Collection[str]) -> StreamTable | None:
        table = table.begun(self._root.manifest.next_offset)
        return table.add(names, opened_at=self._opened_at(table))

    def _opened(
        self, table: StreamTable, name: str, metadata: Mapping[str, str]
    ) -> StreamTable | None:
        table = table.begun(self._root.manifest.next_offset)
        return table.open(name, metadata, opened_at=self._opened_at(table))

    def _opened_at(self, table: StreamTable) -> int:
        """Return an offset below which there is no record of a stream that is new to the table."""
        manifest = self._root.manifest
        is_complete = table.since == FIRST_OFFSET
        return manifest.next_offset if is_complete else manifest.oldest_offset


@asynccontextmanager
async def _in_doubt() -> AsyncIterator[None]:
    """Mark an error of a store that gave no answer: the change may have happened."""
    try:
        yield
    except StorageUnavailableError as error:
        error.outcome = "unknown"
        raise
