"""FrameScan: the walk over the frames of a segment: frame, damage, end. Pure: a function gives the bytes.

Whoever goes over a segment takes its frames from here and decides what they mean: recovery follows those that
continue the log (``recovery.py``); verifying and repairing continue behind damage, where the next whole frame
is found by its magic, its trailer and its CRC. Needs memory for one batch and one chunk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from walstore.core.format import frame
from walstore.core.format.frame import FrameHeader

_AHEAD_BYTES: Final = 4 << 20
"""Default read size."""
_MOST_FAILED_BYTES: Final = 64 << 20
_MOST_FAILED_TIMES: Final = 4
"""A search gives up after hashing so many bytes, and the range this many times, without finding a frame."""
_MAGIC: Final = struct.pack("<I", frame.FRAME_MAGIC)
_TRAILER_MAGIC: Final = struct.pack("<I", frame.TRAILER_MAGIC)
_U64: Final = struct.Struct("<Q")
_START_AT: Final = struct.calcsize("<IIII")


class LookalikesError(ValueError):
    """A search for frames found too many bytes that only look like frames."""


class FrameScan:
    """The bytes of a segment below ``end``, as frames. Frames come with the bytes that hold them: the
    header's position is that in these bytes."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        end: int,
        salt: int | None,
        *,
        begin: int = 0,
        ahead_bytes: int = _AHEAD_BYTES,
    ) -> None:
        """``read(size, position)`` returns bytes of the segment from ``begin`` on, less only at its end.

        ``salt`` is that of the segment's header; at least ``ahead_bytes`` are read at once.
        """
        self._read = read
        self._ahead_bytes = ahead_bytes
        self.salt = salt
        """Salt of the segment; None for one of version 1."""
        self.end = end
        self._data = b""
        self._view = memoryview(self._data)
        self._at = 0
        self._may_fail_bytes = _MOST_FAILED_BYTES + _MOST_FAILED_TIMES * (end - begin)

    @classmethod
    def of(cls, data: memoryview, position: int, salt: int | None) -> FrameScan:
        """Scan bytes in memory, which begin at byte ``position`` of their segment."""
        whole = bytes(data)
        return cls(
            lambda size, at: whole[at - position : at - position + size],
            position + len(whole),
            salt,
            begin=position,
            ahead_bytes=len(whole),
        )

    def frames(
        self, position: int, behind: Callable[[int], int | None] | None = None
    ) -> Iterator[tuple[int, FrameHeader, memoryview]]:
        """Yield the place of each whole frame from byte ``position`` on, its header, and bytes with it.

        Does not check that a frame continues the one before. Where there is no whole frame, ``behind(at)``
        says at which byte to continue; at None, and without it, the walk ends.
        """
        while position < self.end:
            view = self._view
            if position >= self._at:  # most frames are in what was read
                header = frame.parse_header(view, position - self._at)
                place = frame.place(self.salt, position)
                if header is not None and frame.is_whole(view, header, place):
                    yield position, header, view
                    position += header.length
                    continue
            if self._at < position:
                self.forget()  # a writer may have finished it since
            found = self.whole_at(position)
            if found is not None:
                yield position, *found
                position += found[0].length
            elif behind is None or (resumed := behind(position)) is None:
                return
            else:
                position = resumed

    def claimed(self, position: int) -> Iterator[tuple[int, FrameHeader]]:
        """Yield places and headers of what looks like frames from byte ``position`` on, each where the one
        before ends by its length. Nothing of them is checked."""
        while True:
            header = frame.parse_header(
                self._load(position, frame.HEADER_BYTES), position - self._at
            )
            if header is None:
                return
            yield position, header
            position += header.length

    def claimed_limit(self, position: int, limit: int) -> int:
        """Return the end of the last of :meth:`claimed` that ends at or before byte ``limit``."""
        for at, header in self.claimed(position):
            if at + header.length > limit:
                break
            position = at + header.length
        return position

    def whole_at(self, position: int) -> tuple[FrameHeader, memoryview] | None:
        """Return the frame that begins at byte ``position``, if there is a whole one."""
        found = self.frame_at(position)
        if found is None or frame.is_whole(found[1], found[0], frame.place(self.salt, position)):
            return found
        self._may_fail_bytes -= found[0].length
        return None

    def frame_at(self, position: int) -> tuple[FrameHeader, memoryview] | None:
        """Return what looks like a frame at byte ``position`` and has a trailer."""
        view = self._load(position, frame.HEADER_BYTES)
        header = frame.parse_header(view, position - self._at)
        if header is not None and header.end > len(view) and self._has_trailer(position, header):
            view = self._load(position, header.length)
            header = frame.parse_header(view, position - self._at)
        if header is None or header.end > len(view) or not frame.has_trailer(view, header):
            return None
        return header, view

    def next_whole(self, position: int) -> int | None:
        """Return the position of the first of :meth:`whole_frames`; None also after too many lookalikes."""
        try:
            return next((at for at, _ in self.whole_frames(position)), None)
        except LookalikesError:
            return None

    def whole_frames(
        self, position: int, least_start: int = 0
    ) -> Iterator[tuple[int, FrameHeader]]:
        """Yield the whole frames at or after ``position``, at any aligned position, none within another.

        Frames of offsets before ``least_start`` are passed over without a look at their bytes. Candidates are
        found by their magic, in one pass: the cost is a search over the bytes, and a CRC for each candidate
        with a trailer at the end given by its header. LookalikesError after so many of them that they must
        have been put there on purpose.
        """
        for at in self.candidates(position, least_start):
            if at < position:
                continue
            found = self.whole_at(at) if self._may_fail_bytes >= 0 else None
            if self._may_fail_bytes < 0:
                raise LookalikesError("too many bytes look like batches")
            if found is not None:
                yield at, found[0]
                position = at + found[0].length

    def forget(self) -> None:
        """Read the bytes again: a writer may have changed those after the durable limit."""
        self._data = b""
        self._view = memoryview(self._data)

    def trailer_limits(self, position: int) -> Iterator[int]:
        """Yield the ends of the trailers whose frame began at ``position``, by their length.

        Then the frame was completely written, so damage inside it is not a cut-off write.
        """
        for at in self._find(_TRAILER_MAGIC, position + frame.TRAILER.size - len(_TRAILER_MAGIC)):
            data = self._bytes(at - 4, 4)
            if int.from_bytes(data, "little") == at + 4 - position:
                yield at + 4

    def candidates(self, position: int, least_start: int = 0) -> Iterator[int]:
        """Yield the aligned positions at which there is the magic of a frame, and no earlier offset."""
        for at in self._find(_MAGIC, position):
            if (at - position) % frame.ALIGNMENT == 0:
                low = at + _START_AT - self._at
                is_read = 0 <= low <= len(self._view) - _U64.size
                if not is_read or _U64.unpack_from(self._view, low)[0] >= least_start:
                    yield at

    def _find(self, magic: bytes, position: int) -> Iterator[int]:
        """Yield the positions of four bytes at or after ``position``."""
        while position + len(magic) <= self.end:
            if not self._bytes(position, len(magic)):
                return  # the file became shorter
            data, begin = self._data, self._at
            at = data.find(magic, position - begin)
            while at >= 0:
                yield begin + at
                at = data.find(magic, at + 1)
            # The chunks overlap, so that no magic falls between two of them.
            position = max(begin + len(data) - len(magic), position) + 1

    def _has_trailer(self, position: int, header: FrameHeader) -> bool:
        """Return whether a trailer is where the header says; avoids reading a damaged length."""
        at = position + header.length - frame.TRAILER.size
        expected = frame.TRAILER.pack(header.length, frame.TRAILER_MAGIC)
        return at + len(expected) <= self.end and self._read(len(expected), at) == expected

    def _bytes(self, position: int, size: int) -> memoryview:
        """Return up to ``size`` bytes at ``position``."""
        view = self._load(position, size)
        low = position - self._at
        return view[low : low + size]

    def _load(self, position: int, size: int) -> memoryview:
        """Return the bytes that were read last, which contain up to ``size`` at ``position``."""
        size = max(min(size, self.end - position), 0)
        if position < self._at or position + size > self._at + len(self._view):
            wanted = min(max(size, self._ahead_bytes), self.end - position)
            self._data = self._read(max(wanted, 0), position)
            self._view = memoryview(self._data)
            self._at = position
        return self._view
