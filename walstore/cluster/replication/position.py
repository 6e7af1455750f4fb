"""Where a copy of a log ends, and which copies agree how far. Pure.

The unit of replication is bytes of segment files, so two copies agree up to a place if the chained CRC
there is the same: the frame before it proves all that comes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from walstore.core.format.segment import HEADER_BYTES


class Place(NamedTuple):
    """A byte of a log. Places of a writer's log grow, also when a segment without records is begun again."""

    segment: int
    """First offset of the segment."""
    created_us: int
    """When the segment's file was made: a segment that is begun again has a later one."""
    position: int
    """Byte of the file."""


class CopyEnd(NamedTuple):
    """Where a copy ends. Of two, the greater one has more (Raft's comparison of last epochs and lengths)."""

    epoch: int
    """Of its last frame or segment; 0 if it is empty."""
    place: Place
    limit: int
    """Offset after its last record."""
    log_id: bytes
    """Identity of the log; empty if there is none yet."""
    first: int = 0
    """First offset of its oldest segment; 0 if there is none."""

    def pack(self) -> list[Any]:
        """Return it as values of msgpack."""
        return [self.epoch, list(self.place), self.limit, self.log_id, self.first]

    @classmethod
    def unpack(cls, packed: Any) -> CopyEnd:
        """Return what was packed; ValueError if it is malformed."""
        match packed:
            case [
                int(epoch),
                [int(start), int(created), int(position)],
                int(limit),
                bytes(log),
                int(first),
            ]:
                return cls(epoch, Place(start, created, position), limit, log, first)
        raise ValueError("the end of a copy that is none")


NOTHING = CopyEnd(0, Place(0, 0, 0), 0, b"")
"""The end of an empty copy."""


class SegmentExtent(NamedTuple):
    """One segment file of a copy."""

    start: int
    salt: int
    """Differs for two files of the same name, unless one is a copy of the other."""
    created_us: int
    size: int
    """Bytes of frames, and of the footer if it is sealed."""
    is_sealed: bool


def common_frames(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> int:
    """Return the end of the last frame that two copies of a segment have in common.

    Each is a list of the ends of frames and their CRCs. :data:`HEADER_BYTES` if there is none.
    """
    end = HEADER_BYTES
    for (at, crc), (other_at, other_crc) in zip(ours, theirs, strict=False):
        if (at, crc) != (other_at, other_crc):
            break
        end = at
    return end


def newest_common(
    source: Sequence[SegmentExtent], target: Sequence[SegmentExtent]
) -> SegmentExtent | None:
    """Return the newest segment of the target that the source has, too; None if there is none.

    What comes before it is the same in both: its header, which they share, continues that.
    """
    known = {(extent.start, extent.salt) for extent in source}
    return next((one for one in reversed(target) if (one.start, one.salt) in known), None)


def quorum_value(values: Sequence[int], quorum: int) -> int:
    """Return what at least ``quorum`` of the copies have reached."""
    return sorted(values, reverse=True)[quorum - 1] if len(values) >= quorum else 0
