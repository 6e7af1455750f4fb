"""Links: whether whole frames behind damage are records of the log, or bytes of a value. Blocking.

In a segment of format version 1 a frame inside a value is whole wherever it is found. So whole frames behind
damage count only if something outside of them links them to the log: what is left of the damaged frames
before them, or what says where the log stood behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from walstore.format import frame
from walstore.format.frame import FrameHeader
from walstore.ports import File
from walstore.verify.frames import FrameScan

_CRC_AT: Final = 4


class Mark(NamedTuple):
    """Where a frame of a segment is known to end. What is not known is None."""

    position: int | None
    limit: int
    crc: int | None


class Links:
    """What is known of the places of a segment where frames begin and end."""

    def __init__(self, file: File, scan: FrameScan, marks: list[Mark]) -> None:
        self._file = file
        self._scan = scan
        self._marks = marks

    def claimed_limits(self, damage: int) -> Iterator[int]:
        """Yield where the damaged frame at ``damage`` ends, as its header and its trailer say."""
        header = frame.parse_header(memoryview(self._file.pread(frame.HEADER_BYTES, damage)), 0)
        if header is not None and damage + header.length < self._scan.end:
            yield damage + header.length
        yield from self._scan.trailer_limits(damage)

    def run_limit(self, position: int) -> tuple[int, list[FrameHeader]]:
        """Return where the whole frames from ``position`` on that continue each other end, and which."""
        headers: list[FrameHeader] = []
        whole = self._scan.whole_at(position)
        while whole is not None:
            header = whole[0]
            last = headers[-1] if headers else None
            if last is not None and (
                header.previous_crc != last.crc
                or header.start != last.limit
                or header.epoch < last.epoch
            ):
                break
            headers.append(header)
            position += header.length
            whole = self._scan.whole_at(position)
        return position, headers

    def is_linked(self, damage: int, position: int, headers: list[FrameHeader]) -> bool:
        """Return whether the frames at ``position`` are records, given the damage at ``damage``.

        In a segment with a salt they are: no bytes of a value are whole there.
        """
        return (
            self._scan.salt is not None
            or self._stored_crc(damage) == headers[0].previous_crc
            or self._trailers_reach(damage, position)
            or self._is_marked(position, headers)
        )

    def _stored_crc(self, position: int) -> int:
        """Return the CRC that the damaged frame at ``position`` says of itself."""
        return int.from_bytes(self._file.pread(4, position + _CRC_AT), "little")

    def _trailers_reach(self, damage: int, position: int) -> bool:
        """Return whether the bytes between are frames by their trailers, whatever is inside."""
        while position > damage:
            at = position - frame.TRAILER.size
            data = self._file.pread(frame.TRAILER.size, at)
            if at < damage or len(data) != frame.TRAILER.size:
                return False
            length, magic = frame.TRAILER.unpack(data)
            if magic != frame.TRAILER_MAGIC or not 0 < length <= position - damage:
                return False
            position -= length
        return True

    def _is_marked(self, position: int, headers: list[FrameHeader]) -> bool:
        """Return whether one of the frames ends where the log is known to have stood."""
        for header in headers:
            position += header.length
            for mark in self._marks:
                if (
                    mark.limit == header.limit
                    and mark.position in (None, position)
                    and mark.crc in (None, header.crc)
                ):
                    return True
        return False
