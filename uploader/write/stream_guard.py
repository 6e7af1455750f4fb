"""StreamGuard: keeps records of closed streams out of the log, for one of several writers.

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

The place where the log goes on may hold a fragment whose streams were closed since it was made. No writer
names it once the number is in the manifest: before it is replaced, the number is put there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

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
from uploader.root.root import Root
from uploader.root.stream_file import Change, StreamFile
from uploader.runtime.background_task import BackgroundTask
from uploader.stores.port import ObjectStore
from uploader.stores.retry import RetryPolicy
from uploader.write.stall_guard import StallGuard
from walstore.runtime.threads import Worker

logger = logging.getLogger("walstore")

LOOK_SECONDS: Final = 2.0
"""How often a writer that publishes without such a pause reads the table. Others never do, since the program
that closes a stream gets in between."""


class StreamGuard:
    """What one writer knows of its log's streams. Belongs to one event loop."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        root: Root,
        stall_guard: StallGuard,
        writer: str,
        retry: RetryPolicy,
        worker: Worker,
    ) -> None:
        """``writer`` is the writer's name. No request is made before a stream is used."""
        self._root = root
        self._stall_guard = stall_guard
        self._writer = writer
        self._url = store.url
        self._file = StreamFile(store, retry=retry, worker=worker)
        self._clock = retry.clock
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
            return self._writer
        return with_closings(self._writer, self.closings)

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
