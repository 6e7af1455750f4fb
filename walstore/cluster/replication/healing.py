"""Healer: puts the frames of whole copies where a copy is damaged. Belongs to the event loop.

A copy that is present has been compared with the primary, so what it has is what the primary should have.
Of another one a frame behind the damage has to prove that. Only bytes that differ are written, and only
whole frames are taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from walstore.cluster.replication.known_copy import KnownCopy
from walstore.cluster.replication.own_source import OwnSource
from walstore.cluster.replication.position import Place, SegmentExtent
from walstore.cluster.replication.remote_copy import RemoteCopy
from walstore.cluster.replication.whole_source import damaged_place, is_same_there, whole_frames
from walstore.core.runtime.tasks import start_task
from walstore.errors import CorruptionError, StorageUnavailableError, WalError

logger = logging.getLogger("walstore.replication")

PART_BYTES: Final = 1 << 20
"""What is read at once: the calls of a copy run one after the other, and others wait meanwhile."""
_MOST_ROUNDS: Final = 3
"""How often what was replaced is read again, and replaced if it still is damaged."""


class Healer:
    """The log as a source of copies, repaired where it is damaged. Implements :class:`SourceCopy`."""

    def __init__(self, own: OwnSource, followers: Sequence[KnownCopy]) -> None:
        self.own = own
        """Its files as they are."""
        self._followers = followers
        self._tasks: dict[int, asyncio.Task[bool]] = {}
        self.hopeless: dict[int, str] = {}
        """Segments here that could not be repaired, and why."""
        self.mended: dict[str, int] = {}
        """Bytes that were replaced, by the address of the copy; here by no address."""
        self._is_closed = False

    @property
    def mended_bytes(self) -> int:
        """Bytes that were replaced, here and at the copies. May be called on any thread."""
        return sum(self.mended.copy().values())

    async def extents(self) -> Sequence[SegmentExtent]:
        """As of :class:`SourceCopy`."""
        try:
            return await self.own.extents()
        except CorruptionError:  # a header
            for start in list(self.own.written.extents):
                await self.heal(start)
            return await self.own.extents()

    async def frames(self, start: int, begin: int = 0) -> Sequence[Sequence[int]]:
        """As of :class:`SourceCopy`."""
        return await self.own.frames(start, begin)

    async def read(self, place: Place, size: int) -> bytes:
        """As of :class:`SourceCopy`; CorruptionError for damage that no other copy can help with."""
        try:
            return await self.own.read(place, size)
        except CorruptionError:
            if not await self.heal(place.segment):
                raise
        return await self.own.read(place, size)

    async def heal(self, start: int) -> bool:
        """Repair a segment here, if it is damaged; return whether it is whole then. Not with an error."""
        if self._is_closed:
            return False
        task = self._tasks.get(start)
        if task is None:
            task = self._tasks[start] = start_task(
                self._heal(start), name=f"walstore repair of {self.own.name}"
            )
            task.add_done_callback(lambda _: self._tasks.pop(start, None))
        await asyncio.wait((task,))
        return not task.cancelled() and task.result()

    async def aclose(self) -> None:
        """End the repairs that are under way, and begin none; what they have replaced is whole."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _heal(self, start: int) -> bool:
        begin = 0
        try:
            for _ in range(_MOST_ROUNDS):
                mended = await self._heal_from(start, begin)
                if mended is None:
                    self.hopeless.pop(start, None)
                    return start in self.own.written.extents
                begin = mended  # what the disk has now may be no better, and what was missing is in one piece
            raise StorageUnavailableError(
                f"the disk does not keep what is written to segment {start}"
            )
        except WalError as error:
            self._give_up(start, error)
            return False

    async def _heal_from(self, start: int, begin: int) -> int | None:
        """Check a segment here from a byte on, and repair it; return the first place that was damaged."""
        mended: int | None = None
        while (extent := self.own.written.extents.get(start)) is not None:
            try:
                begin = await self.own.check(extent, begin, PART_BYTES)
            except CorruptionError as error:
                place = damaged_place(error, extent)
                begin = await self._mend_own(extent, place, error)
                mended = place.position if mended is None else min(mended, place.position)
            if begin >= extent.size:
                break
        return mended

    def _give_up(self, start: int, error: WalError) -> None:
        """Note that a segment stays damaged, and log why unless that was said already."""
        known = self.own.written.extents
        self.hopeless = {one: why for one, why in self.hopeless.items() if one in known}
        if start in known and self.hopeless.get(start) != str(error):
            self.hopeless[start] = str(error)
            logger.warning("no copy of %s can help: %s", self.own.name, error)

    async def _mend_own(self, extent: SegmentExtent, place: Place, error: CorruptionError) -> int:
        """Replace the frames at a damaged place; return where they end. Raises ``error`` if it cannot."""
        async for follower, copy in self._helpers(place):
            try:
                data = await whole_frames(copy, extent, place)
            except WalError as worse:
                logger.info("the copy at %s cannot help: %s", follower.address, worse)
                continue
            count = await self.own.mend(place, data)
            self._note("", count, error, f"the copy at {follower.address}")
            return place.position + len(data)
        raise error

    async def _helpers(self, place: Place) -> AsyncIterator[tuple[KnownCopy, RemoteCopy]]:
        """Yield the copies that should have what is damaged here."""
        for follower in sorted(self._followers, key=lambda one: not one.is_present):
            copy = follower.reached
            if copy is None:
                continue
            try:
                is_same = follower.is_present or await is_same_there(self.own, copy, place)
            except WalError:
                continue
            if is_same:
                yield follower, copy

    async def check_copy(
        self,
        follower: KnownCopy,
        copy: RemoteCopy,
        start: int,
        begin: int = 0,
        most_bytes: int | None = None,
    ) -> int:
        """Check a segment at a copy, as :meth:`Replica.check`; put the frames from here where it is damaged.

        CorruptionError if that does not help, or they are damaged here, too, and everywhere else.
        """
        try:
            return await copy.check(start, begin, most_bytes)
        except CorruptionError:
            async with (
                follower.repairing
            ):  # what is missing comes in parts, and two would begin it in turn
                return await self._repair_copy(follower, copy, start, begin, most_bytes)

    async def _repair_copy(
        self,
        follower: KnownCopy,
        copy: RemoteCopy,
        start: int,
        begin: int,
        most_bytes: int | None,
    ) -> int:
        first, is_read_again = -1, False
        while True:
            try:
                begin = await copy.check(start, begin, most_bytes)
            except CorruptionError as error:
                extent = self.own.written.extents.get(start)
                if extent is None or is_read_again:
                    raise
                place = damaged_place(error, extent)
                begin = place.position + await self._mend_copy(follower, copy, extent, place, error)
                first = place.position if first < 0 else first
                if begin < extent.size:  # what is missing comes in parts
                    continue
            if first < 0 or is_read_again:
                return begin
            begin, is_read_again = first, True  # what the disk has now may be no better

    async def _mend_copy(
        self,
        follower: KnownCopy,
        copy: RemoteCopy,
        extent: SegmentExtent,
        place: Place,
        error: CorruptionError,
    ) -> int:
        """Put the next frames from here where a copy is damaged; return how many bytes they have."""
        data = await whole_frames(self, extent, place)
        try:
            count = await copy.mend(place, data)
        except ValueError:  # a node of an earlier version
            raise error from None
        address = str(follower.address)
        self._note(address, count, error, f"this machine, into the copy at {address}")
        return len(data)

    def _note(self, address: str, count: int, error: CorruptionError, source: str) -> None:
        self.mended[address] = self.mended.get(address, 0) + count
        logger.warning("%s; %d bytes were replaced, from %s", error, count, source)
