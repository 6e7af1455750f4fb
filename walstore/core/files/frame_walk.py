"""Walking the frames of a segment file. Blocking; memory for one batch and one chunk.

:func:`walk_file` stops at the first damage, as opening and reading do. Verifying and repairing continue
after it with a :class:`FrameScan`: the next whole frame is found by its magic, its trailer and its CRC.
"""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from walstore.core.files.segment_file import peek_frame, read_header, unreadable_batch
from walstore.core.format import frame, recovery, segment
from walstore.core.format.frame import FrameHeader
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentIndex
from walstore.core.ports import File, FileSystem

_CHUNK_BYTES: Final = 8 << 20
_SCAN_CHUNK_BYTES: Final = 4 << 20
_ZEROES_BYTES: Final = 256 << 10
"""Read size of the search for zeroes: fits a processor's cache, which makes it twenty times as fast."""
_MOST_FAILED_BYTES: Final = 64 << 20
_MOST_FAILED_TIMES: Final = 4
"""A search gives up after hashing so many bytes, and the range this many times, without finding a frame."""
_MOST_SALTS: Final = 1000
"""Most frames examined to find the salt of a segment whose header is lost."""
_MAGIC: Final = struct.pack("<I", frame.FRAME_MAGIC)
_TRAILER_MAGIC: Final = struct.pack("<I", frame.TRAILER_MAGIC)


def walk_file(
    file: File,
    path: Path,
    chain: Chain,
    index: SegmentIndex,
    position: int,
    salt: int | None,
    end: int | None = None,
) -> int:
    """Follow the frames of a file from byte ``position`` to at most ``end``; return where they end.

    ``salt`` is that of the segment's header. Raises CorruptionError for a whole frame whose content is
    malformed, and FormatVersionError for one that uses a feature that this version lacks.
    """

    def follow(view: memoryview, at: int) -> int:
        try:
            return recovery.walk(view, chain, index, at, salt)
        except ValueError as error:
            raise unreadable_batch(error, path, chain.next_offset) from None

    return walk_chunks(file, follow, position, end)


def walk_chunks(
    file: File, follow: Callable[[memoryview, int], int], position: int, end: int | None
) -> int:
    """Follow the frames of a file from byte ``position`` in chunks; return where they end.

    ``follow(view, at)`` follows the whole frames that begin the bytes at ``at``, and returns their size.
    Nothing at or behind byte ``end`` is read; None: the whole file.
    """
    wanted, limit = _CHUNK_BYTES, sys.maxsize if end is None else end
    while True:
        view = memoryview(file.pread(max(min(wanted, limit - position), 0), position))
        used = follow(view, position)
        position += used
        if used:
            wanted = _CHUNK_BYTES
            continue
        needed = recovery.needed_bytes(view)
        if needed <= len(view) or position + needed > min(limit, file.size()):
            return position
        wanted = needed


def used_limit(file: File, position: int, end: int | None = None) -> int:
    """Return the place behind the last byte below ``end`` that is not zero, at least ``position``."""
    used, size = position, file.size() if end is None else end
    for at in range(position, size, _ZEROES_BYTES):
        data = file.pread(min(_ZEROES_BYTES, size - at), at)
        if recovery.any_nonzero(memoryview(data)):
            used = at + len(data.rstrip(b"\0"))
    return used


def unfinished_bytes(
    file: File, position: int, limit: int, header: SegmentHeader | None, previous_crc: int
) -> int:
    """Return how many bytes from ``position`` to ``limit``, the last used one, may be of an unfinished batch.

    In a recycled segment that is at most the length that the batch claims. 0 if it was not begun.
    """
    if header is None or not header.reuses_blocks:
        return limit - position
    first = peek_frame(file, position)
    if first is None or first.previous_crc != previous_crc:
        return 0
    return min(first.length, limit - position)


def frames_of(fs: FileSystem, path: Path, begin: int = 0) -> list[tuple[int, int]]:
    """Return the ends of the frames of a segment file, and their CRCs. OSError, CorruptionError.

    Those that begin at or behind byte ``begin``: the first of them is found by its magic, CRC and place.
    """
    with contextlib.closing(fs.open(path, "r")) as file:
        header = read_header(file, path)
        scan = FrameScan(file, file.size(), header.salt)
        found: list[tuple[int, int]] = []
        position: int | None = segment.HEADER_BYTES
        crc: int | None = header.previous_crc
        if begin > segment.HEADER_BYTES:
            position, crc = scan.next_whole(begin), None
        while position is not None and (frame := scan.whole_at(position)) is not None:
            if crc is not None and frame[0].previous_crc != crc:
                break
            position, crc = position + frame[0].length, frame[0].crc
            found.append((position, crc))
        return found


class FrameScan:
    """The bytes of a file below ``end``, as frames."""

    def __init__(self, file: File, end: int, salt: int | None) -> None:
        """Scan ``file`` up to byte ``end``; ``salt`` is that of the segment's header."""
        self._file = file
        self.salt = salt
        """Salt of the segment; None for one of version 1."""
        self.end = end
        self._data = b""
        self._view = memoryview(self._data)
        self._at = 0
        self._failed_bytes = 0

    def whole_at(self, position: int) -> tuple[FrameHeader, memoryview] | None:
        """Return the frame that begins at byte ``position`` with its bytes, if there is a whole one.

        Does not check that it continues the log.
        """
        header, view = self.frame_at(position)
        if header is None:
            return None
        if not frame.is_whole(view, header, frame.place(self.salt, position)):
            self._failed_bytes += len(view)
            return None
        return header, view

    def frame_at(self, position: int) -> tuple[FrameHeader | None, memoryview]:
        """Return what looks like a frame at byte ``position`` and has a trailer, with its bytes."""
        header = frame.parse_header(self._bytes(position, frame.HEADER_BYTES), 0)
        if header is None or not self._has_trailer(position, header):
            return None, memoryview(b"")
        view = self._bytes(position, header.length)
        return frame.parse_header(view, 0), view

    def next_whole(self, position: int) -> int | None:
        """Return the position of the first whole frame at or after ``position``, or None.

        Gives up after so many bytes that only look like frames that they must have been put there on purpose.
        """
        for at in self.candidates(position):
            if self._failed_bytes > _MOST_FAILED_BYTES + _MOST_FAILED_TIMES * self.end:
                return None
            if self.whole_at(at) is not None:
                return at
        return None

    def used_limit(self, position: int) -> int:
        """Return the position after the last byte that is not zero, at least ``position``."""
        return used_limit(self._file, position, self.end)

    def begins_with(self, magic: bytes, position: int) -> bool:
        """Return whether the bytes at ``position`` are ``magic``."""
        return bytes(self._bytes(position, len(magic))) == magic

    def forget(self) -> None:
        """Read the file again: a writer may have changed the bytes after the durable limit."""
        self._data = b""
        self._view = memoryview(self._data)

    def trailer_limits(self, position: int) -> Iterator[int]:
        """Yield the ends of the trailers whose frame began at ``position``, by their length."""
        for at in self._find(_TRAILER_MAGIC, position + frame.HEADER_BYTES):
            data = self._bytes(at - 4, 4)
            if int.from_bytes(data, "little") == at + 4 - position:
                yield at + 4

    def candidates(self, position: int) -> Iterator[int]:
        """Yield the aligned positions at which there is the magic of a frame."""
        for at in self._find(_MAGIC, position):
            if (at - position) % frame.ALIGNMENT == 0:
                yield at

    def _find(self, magic: bytes, position: int) -> Iterator[int]:
        """Yield the positions of four bytes at or after ``position``."""
        at = position
        while at + len(magic) <= self.end:
            if not self._bytes(at, len(magic)):
                return  # the file became shorter
            found = self._data.find(magic, at - self._at)
            if found >= 0:
                at = self._at + found
                yield at
            else:  # the chunks overlap, so that no magic falls between two of them
                at = max(self._at + len(self._data) - len(magic), at)
            at += 1

    def _has_trailer(self, position: int, header: FrameHeader) -> bool:
        """Return whether a trailer is where the header says; avoids reading a damaged length."""
        at = position + header.length - frame.TRAILER.size
        if at + frame.TRAILER.size > self.end:
            return False
        data: bytes | memoryview
        if self._at <= at and at + frame.TRAILER.size <= self._at + len(self._view):
            data = self._view[at - self._at :][: frame.TRAILER.size]
        else:
            data = self._file.pread(frame.TRAILER.size, at)
        expected = (header.length, frame.TRAILER_MAGIC)
        return len(data) == frame.TRAILER.size and frame.TRAILER.unpack(data) == expected

    def _bytes(self, position: int, size: int) -> memoryview:
        """Return up to ``size`` bytes at ``position``, read ahead in chunks."""
        size = max(min(size, self.end - position), 0)
        if position < self._at or position + size > self._at + len(self._view):
            wanted = min(max(size, _SCAN_CHUNK_BYTES), self.end - position)
            self._data = self._file.pread(wanted, position)
            self._view = memoryview(self._data)
            self._at = position
        low = position - self._at
        return self._view[low : low + size]


def find_salt(file: File, end: int, start: int) -> int | None:
    """Return the salt of a segment whose header is lost, by its frames; None also for version 1.

    From any frame follows the salt with which it would be whole. If two frames agree, it is the segment's.
    Frames of offsets before ``start``, that of the segment, are of an earlier use of the file.
    """
    scan = FrameScan(file, end, None)
    named: set[int] = set()
    for at in scan.candidates(segment.HEADER_BYTES):
        header, view = scan.frame_at(at)
        if header is None or header.version == frame.UNPLACED_VERSION or header.start < start:
            continue
        salt = frame.salt_of(view, header, at)
        if salt in named:
            return salt
        named.add(salt)
        if len(named) == _MOST_SALTS:
            break
    return None
