"""The frames of a segment file. Blocking; memory for one batch and one chunk.

:func:`walk_file` stops at the first damage, as opening and reading do. Verifying and repairing continue
after it with a :class:`~walstore.core.format.frame_scan.FrameScan`.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Final

from walstore.core.files.segment_file import peek_frame, read_header, unreadable_batch
from walstore.core.format import frame, recovery, segment
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.recovery import Chain
from walstore.core.format.segment import SegmentHeader, SegmentIndex
from walstore.core.ports import File, FileSystem

_ZEROES_BYTES: Final = 256 << 10
"""Read size of the search for zeroes: fits a processor's cache, which makes it twenty times as fast."""
_MOST_SALTS: Final = 1000
"""Most frames examined to find the salt of a segment whose header is lost."""


def walk_file(
    file: File,
    path: Path,
    chain: Chain,
    salt: int | None,
    position: int = segment.HEADER_BYTES,
    *,
    index: SegmentIndex | None = None,
    end: int | None = None,
) -> int:
    """Follow the frames of a file from byte ``position`` to at most ``end``; return where they end.

    ``salt`` is that of the segment's header; ``index`` gets the frames. Nothing at or behind ``end`` is read.
    Raises CorruptionError for a whole frame whose content is malformed, and FormatVersionError for one that
    uses a feature that this version lacks.
    """
    scan = FrameScan(file.pread, sys.maxsize if end is None else end, salt)
    try:
        return recovery.follow(scan, chain, SegmentIndex() if index is None else index, position)
    except ValueError as error:
        raise unreadable_batch(error, path, chain.next_offset) from None


def used_limit(file: File, position: int, end: int | None = None) -> int:
    """Return the place behind the last byte below ``end`` that is not zero, at least ``position``."""
    used, size = position, file.size() if end is None else end
    for at in range(position, size, _ZEROES_BYTES):
        data = file.pread(min(_ZEROES_BYTES, size - at), at)
        if recovery.any_nonzero(memoryview(data)):
            used = at + len(data.rstrip(b"\0"))
    return used


def unfinished_bytes(
    file: File, position: int, end: int, header: SegmentHeader | None, previous_crc: int
) -> int:
    """Return how many used bytes from ``position`` to ``end`` may be of an unfinished batch.

    In a recycled segment that is at most the length that the batch claims. 0 if it was not begun.
    """
    limit = used_limit(file, position, end)
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
        scan = FrameScan(file.pread, file.size(), header.salt)
        found: list[tuple[int, int]] = []
        position: int | None = segment.HEADER_BYTES
        crc: int | None = header.previous_crc
        if begin > segment.HEADER_BYTES:
            position, crc = scan.next_whole(begin), None
        for at, one, _ in scan.frames(scan.end if position is None else position):
            if crc not in (None, one.previous_crc):
                break
            crc = one.crc
            found.append((at + one.length, crc))
        return found


def find_salt(file: File, end: int, start: int) -> int | None:
    """Return the salt of a segment whose header is lost, by its frames; None also for version 1.

    From any frame follows the salt with which it would be whole. If two frames agree, it is the segment's.
    Frames of offsets before ``start``, that of the segment, are of an earlier use of the file.
    """
    scan = FrameScan(file.pread, end, None)
    named: set[int] = set()
    for at in scan.candidates(segment.HEADER_BYTES):
        found = scan.frame_at(at)
        if found is None or found[0].version == frame.UNPLACED_VERSION or found[0].start < start:
            continue
        header, view = found
        salt = frame.salt_of(view, header, at)
        if salt in named:
            return salt
        named.add(salt)
        if len(named) == _MOST_SALTS:
            break
    return None
