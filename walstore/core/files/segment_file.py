"""Reading segment files: headers, footers, batches, and records by time. Blocking; runs on executor threads.

Timestamps never decrease within a log, so a segment is found by binary search over the times of the
segments' last records, and the place within it by its index. The cost is one read of a footer per step of
the search, unless the summary is known already, and then one read of at most :data:`SEARCH_BYTES`.
"""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from walstore.core.batches.batch import Batch
from walstore.core.batches.frame_batch import FrameBatch
from walstore.core.format import frame, segment
from walstore.core.format.frame import FrameHeader
from walstore.core.format.frame_scan import FrameScan
from walstore.core.format.packed import MalformedError
from walstore.core.format.segment import SegmentHeader, SegmentIndex, SegmentStreams, SegmentSummary
from walstore.core.ports import File, FileSystem
from walstore.errors import CorruptionError, FormatVersionError

CHUNK_BYTES: Final = 1 << 20
"""Default read size."""
SEARCH_BYTES: Final = 1 << 16
"""Read size of a search for one record: more than the distance between two entries of an index."""


@dataclass(slots=True)
class Segment:
    """A segment as readers see it. Replaced as a whole when it is sealed; ``index`` is filled lazily."""

    path: Path
    start: int
    summary: SegmentSummary | None = None
    """What sealing recorded; None for the active segment."""
    index: SegmentIndex | None = None
    """Of the active segment, or of a sealed one that was read before."""
    streams: SegmentStreams | None = None
    """Streams of a sealed segment, once read without the index."""
    header: SegmentHeader | None = None
    """Once read."""

    @property
    def known_streams(self) -> SegmentStreams | None:
        """Streams of a sealed segment; None if they have not been read yet."""
        return self.streams if self.index is None else self.index.streams


def read_header(file: File, path: Path) -> SegmentHeader:
    """Read and check a segment's header."""
    return segment.decode_header(file.pread(segment.HEADER_BYTES, 0), str(path))


def peek_frame(file: File, position: int) -> FrameHeader | None:
    """Return what looks like a frame header at byte ``position``, not verified; None if nothing does."""
    return frame.parse_header(memoryview(file.pread(frame.HEADER_BYTES, position)), 0)


def trailer_length(file: File, end: int) -> int | None:
    """Return the frame length that the trailer before byte ``end`` gives; None if there is no trailer."""
    data = file.pread(frame.TRAILER.size, end - frame.TRAILER.size)
    if len(data) < frame.TRAILER.size:
        return None
    length, magic = frame.TRAILER.unpack(data)
    return int(length) if magic == frame.TRAILER_MAGIC else None


def seal_of(file: File) -> int | None:
    """Return where the footer of a file begins, as its last bytes say; None if they do not."""
    size = file.size()
    if size < segment.HEADER_BYTES + segment.SEAL.size:
        return None
    return segment.parse_seal(file.pread(segment.SEAL.size, size - segment.SEAL.size))


def read_footer(file: File, start: int, path: Path) -> tuple[SegmentSummary, SegmentIndex] | None:
    """Read a sealed segment's footer; None if the file does not end like a sealed one."""
    size, at = file.size(), seal_of(file)
    if at is None:
        return None
    if not segment.HEADER_BYTES <= at < size:
        raise CorruptionError("segment seal is damaged", path=str(path), position=size, found=at)
    return segment.decode_footer(file.pread(size - at, at), start, str(path))


def read_last_footer(
    file: File, start: int, path: Path
) -> tuple[SegmentSummary, SegmentIndex] | None:
    """Read the footer of a log's last segment; None also if it is damaged.

    A crash during sealing may keep any sectors of the footer, including the seal at its end. The frames
    before it were synced by then, and themselves show where they end.
    """
    try:
        return read_footer(file, start, path)
    except CorruptionError:
        return None


def read_batches(
    fs: FileSystem, source: Segment, position: int, limit: int, max_bytes: int
) -> list[Batch]:
    """Return consecutive batches from exactly ``position`` up to ``limit`` or about ``max_bytes``.

    At least one record, and more only if they fit one read. Every frame is checked: its CRC, its
    trailer, and that it continues the one before. Raises CorruptionError, FileNotFoundError if the file is
    gone, and FormatVersionError for features of newer versions.
    """
    with contextlib.closing(fs.open(source.path, "r")) as file:
        at = load_index(file, source).locate(position)
        for chunk in iter_chunks(file, source, at, limit, max_bytes):
            found: list[Batch] = [
                batch.slice(max(position, batch.start), min(limit, batch.limit))
                for batch in chunk
                if batch.limit > position and len(batch)
            ]
            if found and found[0].start == position:
                return found
            if found:
                break
        raise CorruptionError(
            f"offset {position} is not where the log says", path=str(source.path), position=at
        )


def stored_bytes(fs: FileSystem, source: Segment, position: int) -> int:
    """Return what the batch at an offset takes once it is read, of which only the header is read here.

    0 if there is none: reading it raises the right error. Raises as :func:`read_batches`.
    """
    with contextlib.closing(fs.open(source.path, "r")) as file:
        at = load_index(file, source).locate(position)
        scan = FrameScan(file.pread, sys.maxsize, None, ahead_bytes=frame.HEADER_BYTES)
        for _, header in scan.claimed(at):
            if position < header.limit:
                return header.length + (header.body_bytes if header.codec else 0)
    return 0


def find_offset(
    fs: FileSystem, segments: Sequence[Segment], timestamp_us: int, limit: int
) -> int | None:
    """Return the first offset below ``limit`` that is not older than a time; None if all are older.

    ``segments`` are those of a log in order; all but the last one are sealed. Raises CorruptionError, and
    FileNotFoundError if a segment that must be looked at is gone.
    """
    first = bisect_left(
        segments,
        timestamp_us,
        0,
        max(len(segments) - 1, 0),
        key=lambda source: load_summary(fs, source).max_timestamp_us,
    )
    for source in segments[first:]:
        if source.start >= limit:
            break
        if source.summary is None or source.summary.max_timestamp_us >= timestamp_us:
            found = find_time(fs, source, timestamp_us, limit)
            if found is not None:
                return found if found < limit else None
    return None


def load_summary(fs: FileSystem, source: Segment) -> SegmentSummary:
    """Return the summary of a sealed segment, read from its footer on first use.

    Raises CorruptionError if it has none, and FileNotFoundError if the file is gone.
    """
    if source.summary is None:
        with contextlib.closing(fs.open(source.path, "r")) as file:
            footer = read_footer(file, source.start, source.path)
        if footer is None:
            raise CorruptionError("sealed segment has lost its footer", path=str(source.path))
        source.summary = footer[0]
    return source.summary


def find_time(fs: FileSystem, source: Segment, timestamp_us: int, limit: int) -> int | None:
    """Return the first offset below ``limit`` that is not older than a time, or None."""
    with contextlib.closing(fs.open(source.path, "r")) as file:
        at = load_index(file, source).locate_time(timestamp_us)
        for chunk in iter_chunks(file, source, at, limit, SEARCH_BYTES):
            for batch in chunk:
                if batch.header.max_timestamp_us >= timestamp_us:
                    return batch.start + bisect_left(batch.timestamps_us, timestamp_us)
    return None


def iter_chunks(
    file: File,
    source: Segment,
    at: int,
    limit: int,
    chunk_bytes: int,
    end_position: int | None = None,
) -> Iterator[list[FrameBatch]]:
    """Yield the checked batches of a segment from byte ``at`` up to offset ``limit``.

    Reads nothing at or behind byte ``end_position``, which may be reserved space.

    One list per read of about ``chunk_bytes``; a larger batch is read by itself. Includes frames without
    records, as empty batches: not for users.
    """
    end = source.summary.data_bytes if source.summary is not None else file.size()
    end = end if end_position is None else min(end, end_position)
    salt = load_header(file, source).salt
    least = wanted = max(chunk_bytes, frame.HEADER_BYTES)
    expected: int | None = None
    reached = False
    while at < end and not reached:
        view = memoryview(file.pread(min(wanted, end - at), at))
        batches: list[FrameBatch] = []
        used = 0
        while not reached:
            header = frame.parse_header(view, used)
            if header is not None and expected is None and header.start >= limit:
                reached = True
            elif header is None or header.end > len(view):
                break
            else:
                try:
                    check(view, header, expected, source.path, at + used, salt)
                except CorruptionError:
                    if not batches:
                        raise
                    break  # met again once the batches before it are delivered
                expected = header.limit
                used = header.end
                batches.append(decode(view, header, source.path, at))
                reached = expected >= limit
        if batches:
            yield batches
        elif not reached:
            wanted = _grow(view, wanted, source.path, at, end)
            continue
        wanted = least
        at += used


def load_header(file: File, source: Segment) -> SegmentHeader:
    """Return the segment's header, read on first use."""
    if source.header is None:
        source.header = read_header(file, source.path)
    return source.header


def load_index(file: File, source: Segment) -> SegmentIndex:
    """Return the segment's index, read from its footer on first use; checks the header too."""
    if source.index is None:
        found = _read_own_footer(file, source)
        source.index = found[1] if found else SegmentIndex()
    return source.index


def _read_own_footer(file: File, source: Segment) -> tuple[SegmentSummary, SegmentIndex] | None:
    """Read header and footer; CorruptionError if they are not what is known of the segment."""
    load_header(file, source)
    found = read_footer(file, source.start, source.path)
    if found and source.summary and found[0] != source.summary:
        raise CorruptionError(
            "segment is not the one that was sealed",
            path=str(source.path),
            expected=source.summary,
            found=found[0],
        )
    return found


def load_streams(fs: FileSystem, source: Segment) -> SegmentStreams:
    """Return the streams of a sealed segment, read from its footer on first use.

    Keeps nothing else of the footer. Raises as :func:`read_batches`.
    """
    known = source.known_streams
    if known is None:
        with contextlib.closing(fs.open(source.path, "r")) as file:
            found = _read_own_footer(file, source)
        known = source.streams = found[1].streams if found else SegmentStreams.unknown()
    return known


def _grow(view: memoryview, wanted: int, path: Path, at: int, end: int) -> int:
    """Return how much to read so that the frame at ``at`` fits; CorruptionError if it is damaged."""
    header = frame.parse_header(view, 0)
    if header is None or at + header.length > end or header.length <= wanted:
        raise CorruptionError("no batch where one was written", path=str(path), position=at)
    return header.length


def check(
    view: memoryview,
    header: FrameHeader,
    expected: int | None,
    path: Path,
    at: int,
    salt: int | None,
) -> None:
    """Raise CorruptionError unless the frame is whole and begins where the last one ended."""
    if not frame.is_whole(view, header, frame.place(salt, at)):
        raise CorruptionError(
            "batch is damaged", path=str(path), position=at, expected="its CRC32C"
        )
    if expected is not None and header.start != expected:
        raise CorruptionError(
            "batch does not continue the log",
            path=str(path),
            position=at,
            expected=expected,
            found=header.start,
        )


def decode(view: memoryview, header: FrameHeader, path: Path, at: int) -> FrameBatch:
    """Wrap a checked frame as a batch; CorruptionError if it is malformed, FormatVersionError if this
    version cannot read it."""
    try:
        return FrameBatch(view, header, (path, at))
    except ValueError as error:
        raise unreadable_batch(error, path, header.start, at + header.position) from None


def unreadable_batch(
    error: ValueError, path: Path, offset: int, position: int | None = None
) -> CorruptionError | FormatVersionError:
    """Return the error for a whole batch that cannot be read: malformed, or of a newer version.

    ``error`` says what it contains, or what this version lacks. ``position`` is its byte in the file, if
    that is known.
    """
    if isinstance(error, MalformedError):
        position = error.position if position is None else position
        return CorruptionError(
            f"batch at offset {offset} holds {error}", path=str(path), position=position
        )
    return FormatVersionError(
        "batch uses a feature of a newer version",
        path=str(path) if position is None else f"{path} at byte {position}",
        found=str(error),
        supported=frame.FRAME_VERSION,
    )
