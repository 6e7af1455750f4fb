"""OwnSource: the files of the primary, as other copies are made of them. Belongs to the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeVar

from walstore.cluster.replication.position import Place, SegmentExtent
from walstore.cluster.replication.written import WrittenBytes
from walstore.core.format.segment import HEADER_BYTES, decode_header
from walstore.core.replication_port import ReplicatedLog
from walstore.errors import CorruptionError, StorageUnavailableError

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
        return await self._look(start, self.log.frames(start, begin))

    async def read(self, place: Place, size: int) -> bytes:
        """As of :class:`SourceCopy`."""
        start, created_us, position = place
        found = await self._look(start, self.log.read(start, created_us, position, size))
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
        return await self._look(extent.start, self.log.check(extent, begin, most_bytes), begin)

    async def mend(self, place: Place, data: bytes) -> int:
        """As of :class:`ReplicatedLog`."""
        return await self._look(place.segment, self.log.mend(*place, data))

    async def _look(self, start: int, call: Awaitable[_T], begin: int = 0) -> _T:
        """Return what a call returns; CorruptionError at ``begin`` if the segment should be there.

        Retention tells what it deletes before it does.
        """
        try:
            return await call
        except OSError as error:
            extent = self.written.extents.get(start)
            if isinstance(error, FileNotFoundError) and extent is not None and extent.is_sealed:
                path = str(error.filename or self.name)
                text = "the segment's file is missing"
                raise CorruptionError(text, path=path, position=begin) from error
            text = f"the log cannot be read for its copies: {error}"
            raise StorageUnavailableError(text) from error
