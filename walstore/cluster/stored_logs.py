"""StoredLogs: logs that another program ships to a store, and that a machine of a cluster only reads.

Each is opened for the first client that reads it here, shared by all of them, and closed after the last one:
those that nobody reads cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from walstore.cluster.view import ClusterView
from walstore.core.batches.batch import Batch
from walstore.core.faces.readable_log import OneLimitLog
from walstore.core.format.ledger import StreamInfo
from walstore.core.read.read_source import ReadSource
from walstore.core.read.reader import ReadGuard
from walstore.core.runtime.keyed_locks import KeyedLocks
from walstore.core.runtime.resource import LoopGuard
from walstore.errors import InvalidSettingsError, WalClosedError, WalError

logger = logging.getLogger("walstore.cluster")

_LOG_ID_DIGITS: Final = 32


class SourceLog(ReadSource, Protocol):
    """A log in a store, as far as it is served: ``uploader.CloudLog`` is one."""

    @property
    def url(self) -> str:
        """Where it is, without credentials."""

    async def refresh(self) -> None:
        """Look again."""

    async def streams(self) -> dict[str, StreamInfo]:
        """Return its streams by name."""

    async def aclose(self) -> None:
        """End its readers."""


class StoredLog(OneLimitLog):
    """One log for its readers, who share it."""

    replicated_limit: Final = None
    """It is not replicated."""
    epoch: Final = 0
    """It has none that clients could compare."""

    def __init__(self, owner: StoredLogs, name: str, url: str, log: SourceLog) -> None:
        """Of the store at ``url``."""
        self.name = name
        self.url = url
        """As in the spec."""
        self.path = log.url
        """Where it is, for clients."""
        self.log_id = hashlib.sha256(url.encode()).hexdigest()[:_LOG_ID_DIGITS]
        """The same at every machine: of its place."""
        self.users = 0
        """How many clients read it."""
        self._owner = owner
        self._log = log
        self._closed = asyncio.Event()
        self._home = LoopGuard(f"log at {log.url}")
        self._read_guard = ReadGuard(self.check_owner)

    @property
    def is_closing(self) -> bool:
        """Whether it is not read here any more: the cluster does not have it, or has it from elsewhere."""
        return self._closed.is_set()

    @property
    def head(self) -> int:
        """First offset that can be read."""
        return self._log.head

    @property
    def limit(self) -> int:
        """Offset after the last record, as last looked."""
        return self._log.limit

    @property
    def uploaded_limit(self) -> int:
        """Same as :attr:`limit`."""
        return self.limit

    async def refresh(self) -> None:
        """Look again what there is."""
        await self._log.refresh()

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._home.check()

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""
        return await self._log.read(position, limit, max_bytes)

    async def wait_limit(self, limit: int) -> None:
        """Return when records below ``limit`` can be read, or when the log is sealed."""
        await self._log.wait_limit(limit)

    async def wait_more(self, position: int, seconds: float) -> bool:
        """Return whether there is a record at a position, or comes within that time.

        A sealed log gets none: its clients ask as rarely as those of others.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._log.wait_limit(position + 1)
                if position >= self.limit:
                    await self._closed.wait()
        if self.is_closing:
            raise WalClosedError(f"the log {self.name!r} is not read here any more")
        return position < self.limit

    async def _find_offset(self, time_us: int) -> int:
        return await self._log.offset_at(time_us)

    async def _find_streams(self) -> dict[str, StreamInfo]:
        return await self._log.streams()

    async def release(self) -> None:
        """Say that one of its clients is gone."""
        await self._owner.release(self)

    async def aclose(self) -> None:
        """End its readers; they look elsewhere."""
        self._closed.set()
        try:
            await self._log.aclose()
        except WalError as error:
            logger.warning("%s is not closed in order: %s", self.name, error)


class StoredLogs:
    """The logs that are read at this machine now. Belongs to the event loop of its member."""

    def __init__(
        self, view: ClusterView, open_log: Callable[[str], Awaitable[SourceLog]] | None
    ) -> None:
        """Open what ``view`` names with ``open_log``, of a URL."""
        self._view = view
        self._open_log = open_log
        self._held: dict[str, StoredLog] = {}
        self._locks = KeyedLocks(1)

    @property
    def names(self) -> list[str]:
        """Of the logs that are open."""
        return sorted(self._held)

    async def use(self, name: str) -> StoredLog | None:
        """Return a log as it is now, for one client; :meth:`StoredLog.release` when that is gone.

        None if the log is not read from a store. InvalidSettingsError if this machine opens none, and what
        opening and looking raise.
        """
        spec = self._view.specs.get(name)
        if spec is None or not spec.source:
            return None
        async with self._locks.pass_through(name):
            held = self._held.get(name)
            if held is None or held.url != spec.source:
                await self._close(held)
                log = await self._open(name, spec.source)
                held = self._held[name] = StoredLog(self, name, spec.source, log)
            held.users += 1
            try:
                await held.refresh()
            except BaseException:
                held.users -= 1
                await self._close_unused(held)
                raise
            return held

    async def release(self, held: StoredLog) -> None:
        """Note that a client is gone; the last one closes the log."""
        held.users -= 1  # at once, also if the caller is cancelled while it waits
        async with self._locks.pass_through(held.name):
            await self._close_unused(held)

    async def run(self) -> None:
        """Close those that the cluster does not read from that store any more; until cancelled."""
        changed = self._view.subscribe()
        try:
            while True:
                changed.clear()
                await self._close_all_but(self._is_wanted)
                await changed.wait()
        finally:
            self._view.unsubscribe(changed)

    async def aclose(self) -> None:
        """Close all, whoever reads them."""
        await self._close_all_but(lambda _: False)

    def _is_wanted(self, held: StoredLog) -> bool:
        spec = self._view.specs.get(held.name)
        return spec is not None and spec.source == held.url and not spec.suspended

    async def _open(self, name: str, url: str) -> SourceLog:
        if self._open_log is None:
            raise InvalidSettingsError(f"{name} is read from a store; this machine has no stored=")
        try:
            return await self._open_log(url)
        except WalError:
            raise
        except Exception as error:  # the caller's function: its mistake is no defect of the server
            raise InvalidSettingsError(f"stored= opened no log for {name}: {error!r}") from error

    async def _close_all_but(self, is_wanted: Callable[[StoredLog], bool]) -> None:
        for held in list(self._held.values()):
            if not is_wanted(held):
                async with self._locks.pass_through(held.name):
                    await self._close(held)

    async def _close_unused(self, held: StoredLog) -> None:
        if not held.users:
            await self._close(held)

    async def _close(self, held: StoredLog | None) -> None:
        if held is not None and not held.is_closing:
            if self._held.get(held.name) is held:
                del self._held[held.name]
            await held.aclose()
