"""Segment files: header, sealed footer, index, names. Pure, except for :func:`make_salt`.

The layout is specified in docs/format.md ("Segment"). A segment is a header, adjacent frames, and once
it is sealed a footer whose last bytes contain its position. The footer's index is sparse: at most one
entry per :data:`INDEX_INTERVAL_BYTES`, so looking up an offset costs one binary search and a scan over
at most that much. After the index the footer may list the streams of the segment.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from operator import ge
from typing import Final, Self

from crc32c import crc32c

from walstore.core.format.packed import MOST_OFFSET, MOST_TIMESTAMP_US, MalformedError
from walstore.errors import CorruptionError, FormatVersionError

HEADER_MAGIC: Final = b"WALSEG\r\n"
FOOTER_MAGIC: Final = b"WALIDX\r\n"
SEAL_MAGIC: Final = b"WALEND\r\n"
FORMAT_VERSION: Final = 2
"""Version 1 can be read, too: its segments have no salt."""
UNSALTED_VERSION: Final = 1
REUSES_BLOCKS: Final = 1
"""Flag: the frames are followed by bytes of an earlier use of the file's blocks, not zeroes."""
CRITICAL_FLAGS: Final = 0xFF
"""Flag bits that a reader must understand."""
HEADER: Final = struct.Struct("<8sIHH16sQQQII")
HEADER_BYTES: Final = HEADER.size
FOOTER: Final = struct.Struct("<8sIIQQQII")
SEAL: Final = struct.Struct("<Q8s")
INDEX_INTERVAL_BYTES: Final = 16384
SUFFIX: Final = ".wal"
MOST_STREAMS: Final = 16384
"""A segment with more streams does not list them."""
_CRC_FROM: Final = 12
_SWAP: Final = sys.byteorder == "big"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment."""

    log_id: bytes
    start: int
    """Offset of its first record."""
    epoch: int
    """Epoch of the writer that made it; grows by one with each opening of the log."""
    created_us: int
    previous_crc: int
    """CRC of the last frame before it; 0 for the first segment of a log."""
    salt: int | None = None
    """Random number that the CRCs of its frames depend on; None in a segment of version 1."""
    flags: int = 0

    @property
    def reuses_blocks(self) -> bool:
        """Whether bytes after the frames may be left from an earlier use of the file."""
        return bool(self.flags & REUSES_BLOCKS)


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What is known about a sealed segment without reading it."""

    start: int
    limit: int
    data_bytes: int
    """Position of the footer: the frames are in ``[HEADER_BYTES, data_bytes)``."""
    last_crc: int
    """CRC of its last frame, to which the next segment is chained."""
    max_timestamp_us: int


class SegmentStreams:
    """Answers whether records of a stream may be in a segment, small enough for its footer.

    Names are stored as their CRC-32C. If two names have the same CRC, one may be reported as present
    although it is not, which costs a read. A stream reported as absent is always absent.

    Only the appending thread adds names, and only to an object that began empty.
    """

    __slots__ = ("_hashes",)

    ENTRY_BYTES: Final = 4

    def __init__(self) -> None:
        """Begin empty: the segment has no record of any stream yet."""
        self._hashes: set[int] | array[int] | None = set()

    @classmethod
    def unknown(cls) -> Self:
        """Return one that excludes no stream, for a segment whose streams are not known."""
        found = cls()
        found._hashes = None
        return found

    @property
    def is_known(self) -> bool:
        """Whether any stream can be excluded."""
        return self._hashes is not None

    def __len__(self) -> int:
        return 0 if self._hashes is None else len(self._hashes)

    def add(self, names: Collection[str]) -> None:
        """Add streams that have records in the segment."""
        hashes = self._hashes
        if not names or not isinstance(hashes, set):
            return
        hashes.update(map(_hash, names))
        if len(hashes) > MOST_STREAMS:
            self._hashes = None

    def may_hold(self, name: str) -> bool:
        """Return False only if the segment has no record of the stream."""
        hashes = self._hashes
        if hashes is None:
            return True
        if isinstance(hashes, set):
            return _hash(name) in hashes
        wanted = _hash(name)
        at = bisect_left(hashes, wanted)
        return at < len(hashes) and hashes[at] == wanted

    def to_bytes(self) -> bytes:
        """Return the hashes in ascending order, as little-endian u32."""
        hashes: Iterable[int] = () if self._hashes is None else self._hashes
        column = array("I", sorted(hashes))
        if _SWAP:
            column.byteswap()
        return column.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Rebuild from :meth:`to_bytes` of one that was known; MalformedError for anything else."""
        if len(data) % cls.ENTRY_BYTES or len(data) > MOST_STREAMS * cls.ENTRY_BYTES:
            raise MalformedError(f"a list of streams of {len(data)} bytes")
        column = array("I")
        column.frombytes(data)
        if _SWAP:
            column.byteswap()
        if any(map(ge, column, islice(column, 1, None))):
            raise MalformedError("a list of streams that does not ascend")
        found = cls()
        found._hashes = column
        return found


def _hash(name: str) -> int:
    return int(crc32c(name.encode()))


class SegmentIndex:
    """Sparse map offset → position and time → position of one segment, and its streams.

    Only the appending thread adds entries; other threads may look up meanwhile, because the positions,
    which every look-up reads last, are extended first.
    """

    __slots__ = ("positions", "starts", "streams", "timestamps_us")

    ENTRY_BYTES: Final = 24

    def __init__(self, streams: SegmentStreams | None = None) -> None:
        """Begin empty. Pass ``streams`` only if those of all frames are added, from the first on."""
        self.starts = array("Q")
        self.positions = array("Q")
        self.timestamps_us = array("Q")
        self.streams = SegmentStreams.unknown() if streams is None else streams

    def add(self, start: int, position: int, timestamp_us: int) -> None:
        """Add a frame, unless one close before it is in the index already."""
        if self.positions and position - self.positions[-1] < INDEX_INTERVAL_BYTES:
            return
        self.positions.append(position)
        self.timestamps_us.append(timestamp_us)
        self.starts.append(start)

    def locate(self, offset: int) -> int:
        """Return the position of a frame at or before the one that contains ``offset``."""
        at = bisect_right(self.starts, offset) - 1
        return self.positions[at] if at >= 0 else HEADER_BYTES

    def locate_time(self, timestamp_us: int) -> int:
        """Return a position before which every record is older than ``timestamp_us``."""
        at = bisect_left(self.timestamps_us, timestamp_us) - 1
        return self.positions[at] if at >= 0 else HEADER_BYTES

    def to_bytes(self) -> bytes:
        """Return the entries as little-endian columns: starts, positions, timestamps."""
        columns = [
            array("Q", column) for column in (self.starts, self.positions, self.timestamps_us)
        ]
        if _SWAP:
            for column in columns:
                column.byteswap()
        return b"".join(column.tobytes() for column in columns)

    @classmethod
    def from_bytes(cls, data: memoryview, entries: int) -> SegmentIndex:
        """Rebuild from :meth:`to_bytes`; MalformedError unless the columns ascend."""
        if len(data) != cls.ENTRY_BYTES * entries:
            raise MalformedError(f"an index of {len(data)} bytes")
        index = cls()
        size = 8 * entries
        for at, column in enumerate((index.starts, index.positions, index.timestamps_us)):
            column.frombytes(data[at * size : (at + 1) * size])
            if _SWAP:
                column.byteswap()
            entries_in_order = column.tolist()
            if sorted(entries_in_order) != entries_in_order:  # a fifth of a pairwise check
                raise MalformedError("an index that does not ascend")
        if entries and (index.positions[0] < HEADER_BYTES or index.starts[-1] > MOST_OFFSET):
            raise MalformedError("an index with impossible positions")
        return index


def file_name(start: int) -> str:
    """Return the name of the segment whose first record is ``start``; names sort like offsets."""
    return f"{start:020d}{SUFFIX}"


def parse_file_name(name: str) -> int | None:
    """Return the first offset in a segment's name, or None for any other name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 20 or not stem.isascii() or not stem.isdigit():
        return None
    return int(stem)


def make_salt() -> int:
    """Return a random salt for a new segment."""
    return int.from_bytes(os.urandom(4), "little")


def encode_header(header: SegmentHeader) -> bytes:
    """Return the :data:`HEADER_BYTES` that begin a segment."""
    fields = (
        UNSALTED_VERSION if header.salt is None else FORMAT_VERSION,
        header.flags,
        header.log_id,
        header.start,
        header.epoch,
        header.created_us,
        header.previous_crc,
        header.salt or 0,
    )
    crc = crc32c(HEADER.pack(HEADER_MAGIC, 0, *fields)[_CRC_FROM:])
    return HEADER.pack(HEADER_MAGIC, crc, *fields)


def decode_header(data: bytes, path: str) -> SegmentHeader:
    """Parse a header; CorruptionError if it is not one, FormatVersionError if it is newer."""
    if len(data) < HEADER_BYTES or data[:8] != HEADER_MAGIC:
        raise CorruptionError(
            "not a walstore segment", path=path, position=0, expected=HEADER_MAGIC, found=data[:8]
        )
    _, crc, version, flags, log_id, start, epoch, created_us, previous_crc, salt = (
        HEADER.unpack_from(data)
    )
    found = crc32c(data[_CRC_FROM:HEADER_BYTES])
    if found != crc:
        raise CorruptionError(
            "segment header is damaged", path=path, position=0, expected=crc, found=found
        )
    if version > FORMAT_VERSION:
        raise FormatVersionError(
            "segment was written by a newer version",
            path=path,
            found=version,
            supported=FORMAT_VERSION,
        )
    if (
        version < UNSALTED_VERSION
        or not 1 <= start <= MOST_OFFSET
        or epoch > MOST_OFFSET
        or created_us > MOST_TIMESTAMP_US
    ):
        raise CorruptionError(
            "segment header contains impossible values",
            path=path,
            position=0,
            found=(start, epoch),
        )
    if version == UNSALTED_VERSION:
        return SegmentHeader(log_id, start, epoch, created_us, previous_crc)
    if flags & CRITICAL_FLAGS & ~REUSES_BLOCKS:
        raise FormatVersionError(
            "segment uses a feature of a newer version",
            path=path,
            found=f"flags {flags:#x}",
            supported=f"{REUSES_BLOCKS:#x}",
        )
    return SegmentHeader(log_id, start, epoch, created_us, previous_crc, salt, flags)


def encode_footer(summary: SegmentSummary, index: SegmentIndex) -> bytes:
    """Return the bytes that seal a segment, to be written at ``summary.data_bytes``."""
    entries = index.to_bytes() + index.streams.to_bytes()
    fields = (
        len(index.starts),
        summary.limit,
        summary.data_bytes,
        summary.max_timestamp_us,
        summary.last_crc,
        len(index.streams) + 1 if index.streams.is_known else 0,
    )
    body = FOOTER.pack(FOOTER_MAGIC, 0, *fields)[_CRC_FROM:] + entries
    body += SEAL.pack(summary.data_bytes, SEAL_MAGIC)
    return FOOTER_MAGIC + struct.pack("<I", crc32c(body)) + body


def parse_seal(data: bytes) -> int | None:
    """Return the footer's position from a file's last ``SEAL.size`` bytes, or None: not sealed."""
    if len(data) != SEAL.size:
        return None
    position, magic = SEAL.unpack(data)
    return position if magic == SEAL_MAGIC else None


def decode_footer(data: bytes, start: int, path: str) -> tuple[SegmentSummary, SegmentIndex]:
    """Parse a footer with its index; CorruptionError if it is damaged."""
    if len(data) < FOOTER.size + SEAL.size or data[:8] != FOOTER_MAGIC:
        raise CorruptionError("segment footer is missing", path=path, expected=FOOTER_MAGIC)
    _, crc, entries, limit, data_bytes, max_timestamp_us, last_crc, streams = FOOTER.unpack_from(
        data
    )
    found = crc32c(data[_CRC_FROM:])
    behind = FOOTER.size + SegmentIndex.ENTRY_BYTES * entries
    end = behind + SegmentStreams.ENTRY_BYTES * max(streams - 1, 0)
    if found != crc or len(data) != end + SEAL.size:
        raise CorruptionError("segment footer is damaged", path=path, expected=crc, found=found)
    summary = SegmentSummary(start, limit, data_bytes, last_crc, max_timestamp_us)
    try:
        index = SegmentIndex.from_bytes(memoryview(data)[FOOTER.size : behind], entries)
        if streams:
            index.streams = SegmentStreams.from_bytes(data[behind:end])
        _check_summary(summary, index, data)
    except MalformedError as error:
        raise CorruptionError(
            f"segment footer holds {error}", path=path, position=data_bytes
        ) from None
    return summary, index


def _check_summary(summary: SegmentSummary, index: SegmentIndex, data: bytes) -> None:
    """Check a footer's numbers against each other: MalformedError."""
    if parse_seal(data[-SEAL.size :]) != summary.data_bytes:
        raise MalformedError("two places for the footer")
    if not summary.start <= summary.limit <= MOST_OFFSET:
        raise MalformedError(f"offsets up to {summary.limit}")
    if summary.max_timestamp_us > MOST_TIMESTAMP_US:
        raise MalformedError(f"the time {summary.max_timestamp_us}")
    if index.positions and (
        index.positions[-1] >= summary.data_bytes or index.starts[-1] > summary.limit
    ):
        raise MalformedError("an index with batches after its end")
