"""JournalWriter: writes what a group notes to its journal, many notes with one sync."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.tasks import start_task
from walstore.core.runtime.watermark import Watermark
from walstore.errors import LimitExceededError, WalError
from walstore.positions.groups.journal import Journal, Remembered

logger = logging.getLogger("walstore.groups")

_BYTES_PER_JOB: Final = 24


class JournalWriter:
    """What waits to be written, and how much of what was noted is durable. Belongs to the event loop."""

    def __init__(
        self,
        journal: Journal,
        name: str,
        *,
        present: Callable[[], Remembered],
        unsettled: Callable[[], int],
        on_failure: Callable[[WalError], None],
    ) -> None:
        """Write to a journal that is loaded before the first note.

        ``present`` returns what a short journal would say now, ``unsettled`` how many jobs that is about.
        """
        self.is_stuck = False
        """Whether the last notes could not be written, though they may be later."""
        self._journal = journal
        self._name = name
        self._present, self._unsettled = present, unsettled
        self._on_failure = on_failure
        self._entries = bytearray()
        self._asked = 0
        self._written = Watermark(0, asyncio.get_running_loop())
        self._durable = Watermark(0, asyncio.get_running_loop())
        self._writing: asyncio.Task[None] | None = None
        self._wants_sync = False

    def note(self, packed: bytes) -> None:
        """Add an entry to what is written next."""
        self._entries += packed
        self._asked += 1

    async def sync(self) -> None:
        """Return when everything noted so far is durable."""
        self.write(syncs=True)
        await self._durable.wait(self._asked)

    async def wait_written(self) -> None:
        """Return when everything noted so far is in the journal, where the next owner finds it."""
        self.write()
        await self._written.wait(self._asked)

    def write(self, *, syncs: bool = False) -> None:
        """Begin to write what was noted; with ``syncs`` it becomes durable."""
        self._wants_sync |= syncs
        if self._writing is None:
            self._writing = start_task(
                self._write_all(), name=f"walstore journal of group {self._name}"
            )

    def fail(self, failure: WalError) -> None:
        """Let those who wait, now or later, get an error."""
        for watermark in (self._written, self._durable):
            watermark.fail(lambda _: copy_error(failure))

    async def ended(self) -> None:
        """Return when nothing is being written."""
        while self._writing is not None:  # burying may have begun another
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        """Write what was noted, all of it with one sync, until nothing is left."""
        try:
            while self._entries or (self._wants_sync and self._durable.value < self._asked):
                entries, self._entries = bytes(self._entries), bytearray()
                asked, syncs, self._wants_sync = self._asked, self._wants_sync, False
                try:
                    size = await self._journal.append(entries, syncs=syncs)
                except WalError as error:
                    if not may_pass(error):
                        raise
                    # What could not be written is written with what comes next.
                    self._entries[:0] = entries
                    if isinstance(error, LimitExceededError) and await self.try_rewrite():
                        continue
                    self.is_stuck = True
                    for watermark in (self._written, self._durable):
                        watermark.fail_waiting(partial(_twin, error))
                    return
                self.is_stuck = False
                self._written.advance(asked)
                if syncs:
                    self._durable.advance(asked)
                most_bytes = self._journal.most_bytes
                if size > most_bytes and size > 4 * _BYTES_PER_JOB * self._unsettled():
                    await self.try_rewrite()
        except WalError as error:
            self._on_failure(error)
        finally:
            self._writing = None

    async def try_rewrite(self) -> bool:
        """Replace the journal by a short one; False if that cannot be now: the long one goes on."""
        try:
            await self._rewrite()
        except WalError as error:
            if not may_pass(error):
                raise
            logger.warning("the journal of group %s stays long: %s", self._name, error)
            return False
        return True

    async def _rewrite(self) -> None:
        """Replace the journal by one that says what is so now; entries noted meanwhile follow."""
        present = self._present()
        asked = self._asked
        noted, self._entries = self._entries, bytearray()  # they are in the state that is written
        try:
            await self._journal.rewrite(present.entries())
        except WalError:
            self._entries[:0] = noted  # the old one goes on
            raise
        self._written.advance(asked)
        self._durable.advance(asked)


def may_pass(error: WalError) -> bool:
    """Whether the same may succeed later: a store that is away or full may have room again."""
    return error.retriable or isinstance(error, LimitExceededError)


def _twin(error: WalError, _: int) -> WalError:
    return copy_error(error)
