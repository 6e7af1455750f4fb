"""Follower: keeps the copy at one node equal to the primary's log. One task for each node."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from walstore.errors import FencedError, StorageUnavailableError, WalError
from walstore.replication.copies import catch_up
from walstore.replication.position import Place
from walstore.replication.remote_copy import RemoteCopy
from walstore.wire.address import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from walstore.ports import Buffer
    from walstore.replication.primary import Primary

logger = logging.getLogger("walstore")

_CREDIT_BYTES: Final = 8 << 20
"""What may be under way to one node."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0


class Follower:
    """The copy at one node, as its primary sees it. Belongs to the event loop."""

    def __init__(self, primary: Primary, address: Address) -> None:
        self.address = address
        """Of the node."""
        self.serial = 0
        """What was written up to it is durable there."""
        self.is_present = False
        """Whether the node is connected, and its copy is no further behind than what is under way."""
        self.head = 0
        """Segments wholly below it can be removed there."""
        self._primary = primary
        self._wake = asyncio.Event()
        self._under_way = 0
        self._place = Place(0, 0, 0)
        self._copy: RemoteCopy | None = None
        """While it counts."""

    def wake(self) -> None:
        """There is something to copy."""
        self._wake.set()

    async def run(self) -> None:
        """Copy until the primary ends, or a newer one has taken over. A node that fails is tried again."""
        pause = _FIRST_PAUSE_SECONDS
        was_told = False
        while True:
            error = await self._try_to_follow()
            was_present, self.is_present = self.is_present, False
            # A newer primary that did not win takes its copy from this one, and no more.
            if isinstance(error, FencedError) and self._primary.is_passed_over(error):
                return
            if was_present or not was_told:
                logger.warning("the copy at %s is behind: %s", self.address, error)
                was_told = True
            pause = _FIRST_PAUSE_SECONDS if was_present else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            await self._primary.clock.sleep(pause * (0.5 + self._primary.make_tag()[0] / 256))

    async def _try_to_follow(self) -> WalError:
        """Copy until that fails, and return why."""
        try:
            await self._follow()
        except WalError as error:
            return error
        except BaseExceptionGroup as group:
            return _first(group)
        raise AssertionError("copying has no end")

    async def _follow(self) -> None:
        primary, self.serial = self._primary, 0
        client = primary.client_of(self.address)
        try:
            await client.connect()
            copy = primary.copy_at(client, primary.epoch)
            end, is_whole = await copy.obey(is_elected=True)
            self._place = await catch_up(
                primary, copy, end, log_id=primary.log_id, replaces=is_whole
            )
            if not is_whole:
                await primary.admit(copy)
            self._copy = copy
            self._note(self._place)
            self.is_present = True
            async with asyncio.TaskGroup() as tasks:
                await self._stream(copy, tasks)
        finally:
            self._under_way, self._copy = 0, None
            await client.aclose()

    async def confirm(self) -> bool:
        """Return whether the copy counts, and obeys this primary now."""
        try:
            return self._copy is not None and await self._copy.confirm()
        except WalError:
            return False

    async def _stream(self, copy: RemoteCopy, tasks: asyncio.TaskGroup) -> None:
        """Send what is written as it is written; answers come while more is sent."""
        primary, head = self._primary, self.head
        while True:
            self._wake.clear()
            if self.head > head:
                head = self.head
                tasks.create_task(copy.trim(head))
            found = primary.written.next_piece(self._place)
            if found is None or self._under_way >= _CREDIT_BYTES:
                await self._wake.wait()
                continue
            place, size, pieces, seals = found
            if pieces is None:
                pieces = [await primary.read(place, size)]
                if sum(map(len, pieces)) != size:
                    raise StorageUnavailableError("the log changed; its copy is continued anew")
            self._place = place._replace(position=place.position + size)
            self._under_way += size
            tasks.create_task(self._send(copy, place, pieces, size, seals=seals))

    async def _send(
        self, copy: RemoteCopy, place: Place, pieces: Sequence[Buffer], size: int, *, seals: bool
    ) -> None:
        durable = await copy.write(place, list(pieces), seals=seals)
        self._under_way -= size
        self._note(durable)
        self._wake.set()

    def _note(self, durable: Place) -> None:
        self.serial = max(self.serial, self._primary.written.serial_at(durable))
        self._primary.count()


def _first(group: BaseExceptionGroup[BaseException]) -> WalError:
    """Return the first error of a group; raises it if it is none of a log's."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, WalError):
        raise error
    return error
