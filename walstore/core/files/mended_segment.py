"""mend_segment: puts whole frames of another copy where a segment is damaged, or makes it again. Blocking.

Of a file that is there only bytes that differ are written, and what is behind its footer is cut off, so a
crash in between leaves what was there, or what should be. One that is missing is made under another name, and
gets its own once it is complete.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Final

from walstore.core.files.frame_stream import UNREADABLE, check_same
from walstore.core.files.segment_file import read_header
from walstore.core.format import segment
from walstore.core.ports import Buffer, FileSystem

NAME: Final = "mended.tmp"
"""Name of a segment that is made again, until it is complete."""


def mend_segment(fs: FileSystem, path: Path, created_us: int, position: int, data: Buffer) -> int:
    """Write what a segment should contain at a byte, durably; return how many bytes were different.

    ``data`` are whole frames, with the segment's header if ``position`` is 0. Of a file that is missing they
    come in order, from 0 on; with the footer, which the last of them end with, it is there again. What a file
    has behind the footer is cut off, and counts as different. OSError, also if it is not the segment that was
    made at that time.
    """
    try:
        file = fs.open(path, "r+")
    except FileNotFoundError:
        return _make_part(fs, path, created_us, position, data)
    with contextlib.closing(file):
        if position:
            check_same(file, path, created_us)
        wanted = memoryview(data)
        try:
            found = file.pread(len(wanted), position)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            found = b""
        begin, end, count = _difference(wanted, found)
        if count:
            file.pwrite([wanted[begin:end]], position + begin)
        extra = file.size() - position - len(wanted) if _ends_segment(wanted) else 0
        if extra > 0:
            file.truncate(position + len(wanted))
            count += extra
        if count:
            file.datasync()
        return count


def segment_salt(fs: FileSystem, path: Path) -> int | None:
    """Return the salt of a segment, also of one that is not complete yet. OSError, CorruptionError."""
    try:
        file = fs.open(path, "r")
    except FileNotFoundError:
        file = fs.open(path.parent / NAME, "r")
    with contextlib.closing(file):
        return read_header(file, path).salt


def drop_unfinished(fs: FileSystem, directory: Path) -> None:
    """Delete what is left of a segment that was not completed. OSError."""
    if NAME in fs.list(directory):
        fs.remove(directory / NAME)


def _make_part(fs: FileSystem, path: Path, created_us: int, position: int, data: Buffer) -> int:
    """Write a part of a segment that is missing, and give it its name, durably, with the last one."""
    unfinished = path.parent / NAME
    if not position:
        with contextlib.suppress(FileNotFoundError):
            fs.remove(unfinished)
    with contextlib.closing(fs.open(unfinished, "r+" if position else "x")) as file:
        if position and (
            file.size() != position
            or check_same(file, path, created_us).start != segment.parse_file_name(path.name)
        ):
            raise OSError(errno.ESTALE, "another segment is made again")
        file.pwrite([data], position)
        if not _ends_segment(data):
            return len(data)
        file.datasync()
    fs.replace(unfinished, path)
    fs.sync_directory(path.parent)
    return len(data)


def _ends_segment(data: Buffer) -> bool:
    """Return whether whole frames end with the footer of their segment."""
    return segment.parse_seal(bytes(data[-segment.SEAL.size :])) is not None


def _difference(wanted: memoryview, found: Buffer) -> tuple[int, int, int]:
    """Return from where to where the wanted bytes differ from those found, and how many do.

    What was not found differs.
    """
    size = len(found)
    # Numbers, since Python compares them eight bytes at a time.
    bits = int.from_bytes(wanted[:size], "little") ^ int.from_bytes(found, "little")
    different = bits.to_bytes(size, "little")
    count = size - different.count(0) + len(wanted) - size
    begin = size - len(different.lstrip(b"\0"))
    end = len(wanted) if size < len(wanted) else len(different.rstrip(b"\0"))
    return begin, end, count
