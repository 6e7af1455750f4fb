"""StreamDoor: admits a writer's appends to streams, and opens and closes its streams.

An append to a stream that is known to be open passes at once. The first one to a stream adds it to the table
before its record is sent, so that every reader of the record finds the stream in the list. Appends that wait
for that keep their order, also relative to those that would not have to wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from uploader.format.layout import FIRST_OFFSET
from uploader.format.stream_table import StreamTable
from uploader.root.root import Root
from uploader.root.write_guard import check_unsealed
from uploader.write.stall_guard import StallGuard
from uploader.write.stream_guard import StreamGuard
from walstore.batches.conditions import check_metadata, check_name
from walstore.errors import (
    CorruptionError,
    LimitExceededError,
    LogNotFoundError,
    StorageUnavailableError,
    StreamClosedError,
    UnsupportedStoreError,
)
from walstore.validation.arguments import as_text

logger = logging.getLogger("walstore")


class StreamDoor:
    """The door of one writer. Any number of tasks of its event loop may call it."""

    def __init__(
        self,
        guard: StreamGuard,
        *,
        root: Root,
        url: str,
        stall_guard: StallGuard,
        settle: Callable[[], Awaitable[None]],
        check_open: Callable[[], None],
    ) -> None:
        """``settle`` returns when all appends admitted before are decided; ``check_open`` raises if the
        writer takes no more of them."""
        self._guard = guard
        self._root = root
        self._url = url
        self._stall_guard = stall_guard
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
            raise LogNotFoundError(f"there is no log at {self._url}", location=self._url)

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
