"""Healer: puts the frames of whole copies where a copy is damaged. Belongs to the event loop.

A copy that is present has been compared with the primary, so what it has is what the primary should have.
Of another one a frame behind the damage has to prove that. Only bytes that differ are written, and only
whole frames are taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from walstore.errors import CorruptionError, StorageUnavailableError, WalError
from walstore.files.frame_stream import FrameStream
from walstore.format.segment import HEADER_BYTES, decode_header
from walstore.ports import ReplicatedLog
from walstore.replication.copies import READ_BYTES, SourceCopy
from walstore.replication.position import Place, SegmentExtent
from walstore.replication.remote_copy import RemoteCopy
from walstore.replication.whole_source import is_same_there
from walstore.replication.written import WrittenBytes
from walstore.runtime.tasks import start_task

if TYPE_CHECKING:
    from walstore.replication.follower import Follower

logger = logging.getLogger("walstore")

_T = TypeVar("_T")


class OwnSource:
    """The files of the primary. Implements :class:`SourceCopy`."""

    def __init__(self, log: ReplicatedLog, written: WrittenBytes, name: str) -> None:
        self.log = log
        self.written = written
        self.name = name

    async def extents(self) -> Sequence[SegmentExtent]:
        """As of :class:`SourceCopy`."""
        known = self.written.extents
        found = []
        for extent in sorted(known.values()):
            start = extent.start
            if not extent.salt:  # the writer's thread did not tell it
                header = await self.read(Place(start, extent.created_us, 0), HEADER_BYTES)
                if start not in known:
                    continue  # retention deleted it meanwhile, so the header may be gone, too
                salt = decode_header(header, self.name).salt or 0
                now = known[start]
                if now.created_us == extent.created_us:
                    known[start] = now._replace(salt=salt)
                extent = extent._replace(salt=salt)
            if start in known:
                found.append(extent)
        return found

    async def frames(self, start: int, begin: int = 0) -> Sequence[Sequence[int]]:
        """As of :class:`SourceCopy`."""
        return await self._look(self.log.frames(start, begin))

    async def read(self, place: Place, size: int) -> bytes:
        """As of :class:`SourceCopy`."""
        start, created_us, position = place
        found = await self._look(self.log.read(start, created_us, position, size))
        extent = self.written.extents.get(start)
        is_same = extent is not None and extent.created_us == created_us
        end = position + len(found)
        if is_same and extent is not None and end < min(position + size, extent.size):
            raise CorruptionError("the segment ends early", path=self.name, position=end)
        return found

    async def check(
        self, extent: SegmentExtent, begin: int = 0, most_bytes: int | None = None
    ) -> int:
        """As of :class:`ReplicatedLog`."""
        return await self._look(self.log.check(extent, begin, most_bytes))

    async def mend(self, place: Place, data: bytes) -> int:
        """As of :class:`ReplicatedLog`."""
        return await self._look(self.log.mend(*place, data))

    async def _look(self, call: Awaitable[_T]) -> _T:
        try:
            return await call
        except OSError as error:
            text = f"the log cannot be read for its copies: {error}"
            raise StorageUnavailableError(text) from error


class Healer:
    """The log as a source of copies, repaired where it is damaged. Implements :class:`SourceCopy`."""

    def __init__(self, own: OwnSource, followers: Sequence[Follower]) -> None:
        self.own = own
        """Its files as they are."""
        self._followers = followers
        self._tasks: dict[int, asyncio.Task[bool]] = {}
        self._told: set[str] = set()
        """What could not be repaired: one message for each."""
        self.mended_bytes = 0
        """Bytes that were replaced, here and at the copies."""

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
        task = self._tasks.get(start)
        if task is None:
            task = self._tasks[start] = start_task(
                self._heal(start), name=f"walstore repair of {self.own.name}"
            )
            task.add_done_callback(lambda _: self._tasks.pop(start, None))
        await asyncio.wait((task,))
        return not task.cancelled() and task.result()

    async def aclose(self) -> None:
        """End the repairs that are under way; what they have replaced is whole."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _heal(self, start: int) -> bool:
        begin = 0
        try:
            while True:
                extent = self.own.written.extents.get(start)
                if extent is None:
                    return False
                try:
                    if begin < extent.size or not extent.is_sealed:
                        await self.own.check(extent, begin)
                except CorruptionError as error:
                    place = _place_of(error, extent)
                    begin = await self._mend_own(extent, place, error)
                else:
                    return True
        except WalError as error:
            if str(error) not in self._told:
                self._told.add(str(error))
                logger.warning("no copy of %s can help: %s", self.own.name, error)
            return False

    async def _mend_own(self, extent: SegmentExtent, place: Place, error: CorruptionError) -> int:
        """Replace the frames at a damaged place; return where they end. Raises ``error`` if it cannot."""
        async for follower, copy in self._helpers(place):
            try:
                data = await _whole_frames(copy, extent, place)
            except WalError as worse:
                logger.info("the copy at %s cannot help: %s", follower.address, worse)
                continue
            self._note(await self.own.mend(place, data), error, f"the copy at {follower.address}")
            return place.position + len(data)
        raise error

    async def _helpers(self, place: Place) -> AsyncIterator[tuple[Follower, RemoteCopy]]:
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
        follower: Follower,
        copy: RemoteCopy,
        start: int,
        begin: int = 0,
        most_bytes: int | None = None,
    ) -> int:
        """Check a segment at a copy, as :meth:`Replica.check`; put the frames from here where it is damaged.

        CorruptionError if that does not help, or they are damaged here, too, and everywhere else.
        """
        mended = -1
        while True:
            try:
                return await copy.check(start, begin, most_bytes)
            except CorruptionError as error:
                extent = self.own.written.extents.get(start)
                if extent is None or (place := _place_of(error, extent)).position <= mended:
                    raise
                mended = place.position
                data = await _whole_frames(self, extent, place)
                try:
                    count = await copy.mend(place, data)
                except ValueError:  # a node of an earlier version
                    raise error from None
                self._note(count, error, f"this machine, into the copy at {follower.address}")

    def _note(self, count: int, error: CorruptionError, source: str) -> None:
        self.mended_bytes += count
        logger.warning("%s; %d bytes were replaced, from %s", error, count, source)


def _place_of(error: CorruptionError, extent: SegmentExtent) -> Place:
    position = error.position or 0
    return Place(extent.start, extent.created_us, position if position >= HEADER_BYTES else 0)


async def _whole_frames(source: SourceCopy, extent: SegmentExtent, place: Place) -> bytes:
    """Return the next frames of a segment, at least one, or all that is left of it with its footer.

    CorruptionError if they are not whole, StorageUnavailableError if the source has less.
    """
    begin, data = place.position, bytearray()
    stream = FrameStream("a copy", extent.start)
    if begin:
        header = decode_header(
            await source.read(place._replace(position=0), HEADER_BYTES), "a copy"
        )
        stream = FrameStream.behind("a copy", extent.start, header.salt, begin)
    while stream.boundary <= max(begin, HEADER_BYTES):
        at = begin + len(data)
        found = await source.read(place._replace(position=at), min(READ_BYTES, extent.size - at))
        if not found:
            break
        stream.feed(found)
        data += found
        if stream.is_inside and stream.position == extent.size and extent.is_sealed:
            stream.finish()
    if stream.boundary <= begin:
        raise StorageUnavailableError("the copy has less of the segment")
    return bytes(data[: stream.boundary - begin])
