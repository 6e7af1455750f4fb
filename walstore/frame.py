"""Batch frames: the records of one commit, in columns, as bytes. Pure: no I/O, no asyncio.

The layout is specified in docs/format.md ("Batch frame"); tests/walstore/test_frame.py compares the
constants here with the tables there. All integers are little-endian.

    header 80 | column directory 8 each | columns back to back | padding to 8 | trailer 8

Why it looks so:
  * The CRC covers everything behind itself, lengths and offsets included, so any flipped bit shows.
  * ``previous_crc`` chains the frames of a log across files: a lost, reordered or foreign one shows.
  * ``synced_limit`` tells recovery which earlier offsets were already synced when the frame was
    written. A damaged frame below it was once durable (corruption); one above it was never
    acknowledged (a torn tail). No checkpoint is needed to tell the two apart.
  * The trailer repeats the length, so that "cut short" and "damaged inside" can be told apart.
  * Columns have kinds: readers refuse unknown kinds below 128 and skip unknown kinds above, which
    leaves room for transactions, producers and registers without a new format version.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from crc32c import crc32c

FRAME_MAGIC: Final = 0x3146_4257  # b"WBF1"
TRAILER_MAGIC: Final = 0x646E_4557  # b"WEnd"
ALIGNMENT: Final = 8

HEADER: Final = struct.Struct("<IIIIQIHBBQQQQIIII")
DIRECTORY_ENTRY: Final = struct.Struct("<BBHI")
TRAILER: Final = struct.Struct("<II")
HEADER_BYTES: Final = HEADER.size
CRC_FROM: Final = 8
"""The CRC covers the frame from this byte to its end; the two fields before it are magic and CRC."""
FRAME_VERSION: Final = 1
MAX_FRAME_BYTES: Final = (1 << 32) - ALIGNMENT
CRITICAL_FLAGS: Final = 0xFFFF
"""Flag bits that a reader must understand; none is defined in version 1."""
IGNORABLE_KINDS_FROM: Final = 128


class Kind(IntEnum):
    """Columns of a batch. Numbers are part of the format and never re-used."""

    VALUE_LENGTHS = 1
    TIMESTAMP_DELTAS = 2
    STREAM_IDS = 3
    STREAM_NAMES = 4
    KEY_LENGTHS = 5
    KEYS = 6
    HEADER_LENGTHS = 7
    HEADERS = 8
    VALUES = 15


KNOWN_KINDS: Final = frozenset(Kind)

CONSTANT: Final = 0
"""Encoding of an integer column whose entries are all alike: one u32."""
BLOB: Final = 255
"""Encoding of a column that is plain bytes."""
_TYPECODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_SWAP: Final = sys.byteorder == "big"


@dataclass(frozen=True, slots=True)
class Column:
    """One column ready to be written: its kind, its encoding and its bytes (in pieces)."""

    kind: int
    encoding: int
    pieces: Sequence[bytes | memoryview]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The fixed part of a frame, as found in the file. Not yet verified against its CRC."""

    position: int
    """Byte position of the frame in the buffer it was parsed from."""
    crc: int
    length: int
    previous_crc: int
    start: int
    count: int
    column_count: int
    version: int
    codec: int
    base_timestamp_us: int
    max_timestamp_us: int
    epoch: int
    synced_limit: int
    flags: int
    stored_bytes: int
    body_bytes: int

    @property
    def limit(self) -> int:
        """First offset after the batch."""
        return self.start + self.count

    @property
    def end(self) -> int:
        """Byte position just behind the frame, in the same buffer."""
        return self.position + self.length


def uint_column(kind: Kind, values: Sequence[int]) -> Column:
    """Encode integers in the narrowest width that holds them, or once if they are all alike."""
    highest = max(values)
    if highest < 1 << 32 and min(values) == highest:
        return Column(kind, CONSTANT, (struct.pack("<I", highest),), 4)
    width = next(w for w in _TYPECODES if highest < 1 << (8 * w))
    packed = array(_TYPECODES[width], values)
    if _SWAP:
        packed.byteswap()
    data = packed.tobytes()
    return Column(kind, width, (data,), len(data))


def blob_column(kind: Kind, pieces: Sequence[bytes | memoryview], size_bytes: int) -> Column:
    """Wrap plain bytes, given in pieces of ``size_bytes`` together, without joining them."""
    return Column(kind, BLOB, pieces, size_bytes)


def decode_uints(data: memoryview, encoding: int, count: int) -> Sequence[int]:
    """Decode an integer column of ``count`` entries; ValueError if its size does not fit."""
    if encoding == CONSTANT and len(data) == 4:
        (value,) = struct.unpack("<I", data)
        return [value] * count
    typecode = _TYPECODES.get(encoding)
    if typecode is None or len(data) != encoding * count:
        raise ValueError(f"integer column of {len(data)} bytes, encoding {encoding}, {count} rows")
    values = array(typecode)
    values.frombytes(data)
    if _SWAP:
        values.byteswap()
    return values


def encode(
    columns: Sequence[Column],
    *,
    start: int,
    count: int,
    base_timestamp_us: int,
    max_timestamp_us: int,
    epoch: int,
    previous_crc: int,
    synced_limit: int,
) -> tuple[bytearray, int]:
    """Build one frame. Return its bytes and its CRC (the next frame's ``previous_crc``).

    The values are copied exactly once, into the frame.
    """
    stored = sum(column.size_bytes for column in columns)
    unpadded = HEADER_BYTES + DIRECTORY_ENTRY.size * len(columns) + stored
    padding = -unpadded % ALIGNMENT
    length = unpadded + padding + TRAILER.size
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a batch of {length} bytes does not fit a frame")
    pieces: list[bytes | memoryview] = [bytes(HEADER_BYTES)]
    for column in columns:
        pieces.append(DIRECTORY_ENTRY.pack(column.kind, column.encoding, 0, column.size_bytes))
    for column in columns:
        pieces.extend(column.pieces)
    pieces.append(bytes(padding) + TRAILER.pack(length, TRAILER_MAGIC))
    frame = bytearray().join(pieces)
    fields = (
        length,
        previous_crc,
        start,
        count,
        len(columns),
        FRAME_VERSION,
        0,
        base_timestamp_us,
        max_timestamp_us,
        epoch,
        synced_limit,
        0,
        stored,
        stored,
        0,
    )
    HEADER.pack_into(frame, 0, FRAME_MAGIC, 0, *fields)
    crc = crc32c(memoryview(frame)[CRC_FROM:])
    struct.pack_into("<I", frame, 4, crc)
    return frame, crc


def parse_header(buffer: memoryview, position: int) -> FrameHeader | None:
    """Return the header at ``position``, or None if there is no room or no magic.

    Only shape is checked (magic, length within a frame's bounds), not the CRC.
    """
    if position + HEADER_BYTES > len(buffer):
        return None
    (
        magic,
        crc,
        length,
        previous_crc,
        start,
        count,
        column_count,
        version,
        codec,
        base_timestamp_us,
        max_timestamp_us,
        epoch,
        synced_limit,
        flags,
        stored_bytes,
        body_bytes,
        _reserved,
    ) = HEADER.unpack_from(buffer, position)
    if magic != FRAME_MAGIC or length % ALIGNMENT or length < HEADER_BYTES + TRAILER.size:
        return None
    return FrameHeader(
        position,
        crc,
        length,
        previous_crc,
        start,
        count,
        column_count,
        version,
        codec,
        base_timestamp_us,
        max_timestamp_us,
        epoch,
        synced_limit,
        flags,
        stored_bytes,
        body_bytes,
    )


def is_whole(buffer: memoryview, header: FrameHeader) -> bool:
    """Return whether all of the frame lies in ``buffer`` and its CRC and trailer agree."""
    end = header.end
    if end > len(buffer):
        return False
    length, magic = TRAILER.unpack_from(buffer, end - TRAILER.size)
    if magic != TRAILER_MAGIC or length != header.length:
        return False
    return crc32c(buffer[header.position + CRC_FROM : end]) == header.crc


def directory(buffer: memoryview, header: FrameHeader) -> dict[int, tuple[int, memoryview]]:
    """Return the columns of a verified frame: kind → (encoding, bytes).

    Raises ValueError naming what is not understood: a newer version, codec, flag or column kind.
    """
    if header.version != FRAME_VERSION:
        raise ValueError(f"frame version {header.version}")
    if header.codec:
        raise ValueError(f"codec {header.codec}")
    if header.flags & CRITICAL_FLAGS:
        raise ValueError(f"frame flags {header.flags:#x}")
    entry = header.position + HEADER_BYTES
    data = entry + DIRECTORY_ENTRY.size * header.column_count
    columns: dict[int, tuple[int, memoryview]] = {}
    for _ in range(header.column_count):
        kind, encoding, _, size = DIRECTORY_ENTRY.unpack_from(buffer, entry)
        if kind not in KNOWN_KINDS and kind < IGNORABLE_KINDS_FROM:
            raise ValueError(f"column kind {kind}")
        columns[kind] = (encoding, buffer[data : data + size])
        entry += DIRECTORY_ENTRY.size
        data += size
    return columns


def find_whole_frame(buffer: memoryview, position: int) -> FrameHeader | None:
    """Return the first whole frame at or behind ``position``, at any aligned place, or None.

    Recovery uses it to look behind a damaged frame. Candidates are found by their magic, so the cost
    is one search over the bytes plus a CRC for each hit.
    """
    data = bytes(buffer)
    magic = struct.pack("<I", FRAME_MAGIC)
    at = data.find(magic, position)
    while at >= 0:
        if at % ALIGNMENT == position % ALIGNMENT:
            header = parse_header(buffer, at)
            if header is not None and is_whole(buffer, header):
                return header
        at = data.find(magic, at + 1)
    return None


def ends_with_trailer(buffer: memoryview, position: int) -> bool:
    """Return whether some trailer behind ``position`` claims the frame that begins there.

    True means that the frame was written to its end, so damage inside is not a cut-off write.
    """
    data = bytes(buffer[position:])
    magic = struct.pack("<I", TRAILER_MAGIC)
    at = data.find(magic)
    while at >= 0:
        if at >= 4 and struct.unpack_from("<I", data, at - 4)[0] == at + 4:
            return True
        at = data.find(magic, at + 1)
    return False
