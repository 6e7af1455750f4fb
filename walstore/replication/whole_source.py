"""WholeSource: a copy as others are made of it, with the frames of other copies where it is damaged."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from walstore.errors import CorruptionError, WalError
from walstore.format.frame import ALIGNMENT
from walstore.replication.copies import READ_BYTES, SourceCopy
from walstore.replication.position import Place, SegmentExtent, common_frames

logger = logging.getLogger("walstore")


class WholeSource:
    """Implements :class:`SourceCopy`. Belongs to the event loop."""

    def __init__(self, best: SourceCopy, others: Sequence[SourceCopy]) -> None:
        """``best`` says which history of the log it is."""
        self._best = best
        self._others = others

    async def extents(self) -> Sequence[SegmentExtent]:
        """As of :class:`SourceCopy`."""
        return await self._best.extents()

    async def frames(self, start: int, begin: int = 0) -> Sequence[Sequence[int]]:
        """As of :class:`SourceCopy`."""
        return await self._best.frames(start, begin)

    async def read(self, place: Place, size: int) -> bytes:
        """As of :func:`read_whole`; CorruptionError if no other copy has what is damaged."""
        try:
            return await read_whole(self._best, place, size)
        except CorruptionError as error:
            at = place._replace(position=error.position or 0)
            for other in self._others:
                try:
                    if await is_same_there(self._best, other, at):
                        found = await read_whole(other, place, size)
                        logger.warning("%s; another copy has what was there", error)
                        return found
                except WalError as worse:
                    logger.info("no help for %s: %s", error, worse)
            raise


async def read_whole(source: SourceCopy, place: Place, size: int) -> bytes:
    """Return bytes of a segment, at most :data:`READ_BYTES` of them, and none behind the next damage.

    So two copies help each other that are damaged at different frames. CorruptionError if the frame at the
    place is damaged itself.
    """
    size = min(READ_BYTES, size)
    try:
        return await source.read(place, size)
    except CorruptionError as error:
        whole_bytes = (error.position or 0) - place.position
        if not 0 < whole_bytes < size:
            raise
    return await source.read(place, whole_bytes)


async def is_same_there(damaged: SourceCopy, other: SourceCopy, place: Place) -> bool:
    """Return whether two copies of a segment have the same history at a byte that is damaged in one.

    They do if they share a frame behind it, or the footer: their CRCs are chained to all before. Two
    primaries may have begun the same segment, and gone on with frames of their own.
    """
    start, _, position = place
    ours = await damaged.frames(start, position + ALIGNMENT)
    theirs = await other.frames(start, position)
    if not {tuple(one) for one in ours}.isdisjoint(tuple(one) for one in theirs):
        return True
    if theirs:  # it is the last frame, whose CRC the footer has
        end = place._replace(position=theirs[-1][0])
        footer = await other.read(end, READ_BYTES)
        return bool(footer) and footer == await damaged.read(end, READ_BYTES)
    before = await damaged.frames(start)  # it is the footer, which says what the frames are
    same = common_frames(before, await other.frames(start))
    return bool(before) and before[-1][0] == same == position
