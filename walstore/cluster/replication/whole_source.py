"""WholeSource: a copy as others are made of it, with what other copies have where it is damaged.

``complete`` puts what a copy lacks, or has damaged, back in place from one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from walstore.cluster.replication.copies import READ_BYTES, LocalCopy, SourceCopy
from walstore.cluster.replication.position import Place, SegmentExtent, common_frames, newest_common
from walstore.core.files.frame_stream import FrameStream
from walstore.core.format.frame import ALIGNMENT
from walstore.core.format.segment import HEADER_BYTES, decode_header
from walstore.errors import CorruptionError, StorageUnavailableError, WalError

logger = logging.getLogger("walstore.replication")


class WholeSource:
    """Implements :class:`SourceCopy`. Belongs to the event loop."""

    def __init__(self, best: SourceCopy, others: Sequence[SourceCopy]) -> None:
        """``best`` says which history of the log it is."""
        self._best = best
        self._others = others
        self._taken: dict[int, SourceCopy] = {}
        """Segments that the best copy lacks, and which one has them."""

    async def extents(self) -> Sequence[SegmentExtent]:
        """As of :class:`SourceCopy`; what is missing inside, or damaged, is that of another copy.

        A later segment that both have proves that they have the same history before it.
        """
        ours = await self._best.extents()
        found = {one.start: one for one in ours}
        for other in self._others:
            theirs: Sequence[SegmentExtent] = ()
            with contextlib.suppress(WalError):
                theirs = await other.extents()
            common = newest_common(theirs, ours)
            for one in theirs:
                is_inside = common is not None and ours[0].start < one.start < common.start
                if is_inside and one.start not in found:
                    found[one.start], self._taken[one.start] = one, other
        return [found[start] for start in sorted(found)]

    async def frames(self, start: int, begin: int = 0) -> Sequence[Sequence[int]]:
        """As of :class:`SourceCopy`."""
        return await self._taken.get(start, self._best).frames(start, begin)

    async def read(self, place: Place, size: int) -> bytes:
        """As of :func:`read_whole`; CorruptionError if no other copy has what is damaged."""
        best = self._taken.get(place.segment, self._best)
        try:
            return await read_whole(best, place, size)
        except CorruptionError as error:
            at = place._replace(position=error.position or 0)
            for other in self._others:
                try:
                    if other is not best and await is_same_there(best, other, at):
                        found = await read_whole(other, place, size)
                        logger.warning("%s; another copy has what was there", error)
                        return found
                except WalError as worse:
                    logger.info("no help for %s: %s", error, worse)
            raise


async def complete(source: SourceCopy, target: LocalCopy) -> None:
    """Copy the segments that the target lacks, or has damaged, the newest of them first.

    They come before one that both have, which proves that it is the same history. What retention deleted
    there, and not here yet, comes back, and is deleted again.
    """
    ours, theirs = await target.extents(), await source.extents()
    common, known = newest_common(theirs, ours), set(ours)
    for extent in reversed(theirs):
        if common is not None and extent.start < common.start and extent not in known:
            await _mend(source, target, extent)


async def _mend(source: SourceCopy, target: LocalCopy, extent: SegmentExtent) -> None:
    """Put the frames of a sealed segment where the target's is damaged or missing."""
    begin = 0
    while begin < extent.size:
        try:
            begin = await target.check(extent.start, begin, READ_BYTES)
        except CorruptionError as error:
            place = damaged_place(error, extent)
            data = await whole_frames(source, extent, place)
            await target.mend(place, data)
            begin = place.position + len(data)


def damaged_place(error: CorruptionError, extent: SegmentExtent) -> Place:
    """Return where the frame begins that an error of a check of a segment is about."""
    position = error.position or 0
    return Place(extent.start, extent.created_us, position if position >= HEADER_BYTES else 0)


async def whole_frames(source: SourceCopy, extent: SegmentExtent, place: Place) -> bytes:
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
        found = await read_whole(source, place._replace(position=at), extent.size - at)
        if not found:
            break
        stream.feed(found)
        data += found
        if stream.is_inside and stream.position == extent.size and extent.is_sealed:
            stream.finish()
    if stream.boundary <= begin:
        raise StorageUnavailableError("the copy has less of the segment")
    return bytes(data[: stream.boundary - begin])


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

    They do if they share a later segment, a frame behind it, or the footer: the CRCs are chained to all
    before. Two primaries may have begun the same segment, and gone on with frames of their own.
    """
    start, _, position = place
    with contextlib.suppress(WalError):  # one of another segment
        common = newest_common(await other.extents(), await damaged.extents())
        if common is not None and common.start > start:
            return True
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
