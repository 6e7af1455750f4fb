"""Batch frames: the records of one commit, in columns, as bytes. Pure: no I/O, no asyncio.

The layout is specified in docs/format.md ("Batch frame"); tests/walstore/core/format/test_frame.py compares
the constants here with the tables there. All integers are little-endian.

    header 80 | column directory 8 each | columns back to back | padding to 8 | trailer 8

Reasons for this layout:
  * The CRC covers everything after itself, including lengths and offsets, so any flipped bit is
    detected. It covers the columns first and the header last: a frame whose columns are on disk already
    gets its offset and its place in the chain by rewriting 80 bytes (large transactions, ``spill.py``).
  * ``previous_crc`` chains the frames of a log across files: a lost, reordered or foreign one is detected.
  * ``synced_limit`` is the limit of the offsets already synced when the frame was written. A damaged
    frame below it was once durable (corruption); one above it was never acknowledged (a torn tail). So
    recovery needs no checkpoint to distinguish the two.
  * The CRC also covers a number that is not stored, made of the segment's salt and the frame's position
    (:func:`place`). Bytes of another segment, of an earlier use of the same blocks, or inside a value
    are never taken for a frame.
  * ``synced_position`` is the same evidence as ``synced_limit`` in bytes of the segment. It also covers
    frames without records, which share one offset.
  * The trailer repeats the length, so that "cut short" and "damaged inside" can be distinguished.
  * Columns have kinds: readers refuse unknown kinds below 128 and skip unknown kinds above, which
    lets features be added without a new format version.
  * A frame without records (count 0) contains only marks: changes of the log's ledger (``ledger.py``).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from crc32c import crc32c

from walstore.core.format import codec
from walstore.core.format.codec import BodyError
from walstore.core.format.packed import MOST_OFFSET, MOST_TIMESTAMP_US, unpack_names

FRAME_MAGIC: Final = 0x3146_4257  # b"WBF1"
TRAILER_MAGIC: Final = 0x646E_4557  # b"WEnd"
ALIGNMENT: Final = 8

HEADER: Final = struct.Struct("<IIIIQIHBBQQQQIIII")
DIRECTORY_ENTRY: Final = struct.Struct("<BBHI")
TRAILER: Final = struct.Struct("<II")
HEADER_BYTES: Final = HEADER.size
CRC_FROM: Final = 8
"""The two fields before this byte are magic and CRC; the CRC covers all others and the rest of the
frame."""
FRAME_VERSION: Final = 2
"""Version 1 can be read, too: its CRC does not cover the place, and it has no ``synced_position``."""
UNPLACED_VERSION: Final = 1
MAX_FRAME_BYTES: Final = (1 << 32) - ALIGNMENT
CRITICAL_FLAGS: Final = 0xFFFF
"""Flag bits that a reader must understand."""
HAS_MARKS: Final = 1
"""Flag: the frame has a column of marks."""
KNOWN_FLAGS: Final = HAS_MARKS
_UNKNOWN_FLAGS: Final = CRITICAL_FLAGS & ~KNOWN_FLAGS
IGNORABLE_KINDS_FROM: Final = 128


class ColumnKind(IntEnum):
    """Columns of a batch. Numbers are part of the format and never re-used."""

    VALUE_LENGTHS = 1
    TIMESTAMP_DELTAS = 2
    STREAM_IDS = 3
    STREAM_NAMES = 4
    KEY_LENGTHS = 5
    KEYS = 6
    HEADER_LENGTHS = 7
    HEADERS = 8
    MARKS = 9
    VALUES = 15


KNOWN_KINDS: Final = frozenset(ColumnKind)
_PAIRS: Final = (
    (ColumnKind.STREAM_IDS, ColumnKind.STREAM_NAMES),
    (ColumnKind.KEY_LENGTHS, ColumnKind.KEYS),
    (ColumnKind.HEADER_LENGTHS, ColumnKind.HEADERS),
)
_INTEGERS: Final = frozenset(
    (ColumnKind.VALUE_LENGTHS, ColumnKind.TIMESTAMP_DELTAS, *(lengths for lengths, _ in _PAIRS))
)
MOST_RECORDS: Final = 1 << 24
"""Maximum records of a frame. Records without a value take no bytes, so nothing else would bound them."""

CONSTANT: Final = 0
"""Encoding of an integer column whose entries are all equal: one u32."""
BLOB: Final = 255
"""Encoding of a column of plain bytes."""
_ONE_VALUE: Final = struct.Struct("<BBHIBBHII")
"""The two entries of the directory of a frame of one plain record, and the column of its length."""
_TWO_ENTRIES: Final = struct.Struct("<BBHIBBHI")
_JOINED_PIECES: Final = 1 << 16
_VALUE_AT: Final = HEADER_BYTES + _ONE_VALUE.size
_BLANK_HEADER: Final = bytes(HEADER_BYTES)
_U32: Final = struct.Struct("<I")
_MASK: Final = (1 << 32) - 1
NOWHERE: Final = b""
"""The place of a frame of version 1, and of one without a position yet."""
_TYPECODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_ENCODINGS: Final = frozenset((CONSTANT, *_TYPECODES))
_NO_COLUMN: Final = (BLOB, memoryview(b""))
_SWAP: Final = sys.byteorder == "big"


class Column(NamedTuple):
    """One encoded column: its kind, its encoding and its bytes (in pieces)."""

    kind: int
    encoding: int
    pieces: Sequence[bytes | memoryview]
    size_bytes: int


@dataclass(slots=True)  # one per commit: a frozen one takes four times as long to make
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
    synced_position: int = 0
    """Bytes of the segment that were on disk when the frame was made. Version 1: 0."""

    @property
    def limit(self) -> int:
        """First offset after the batch."""
        return self.start + self.count

    @property
    def end(self) -> int:
        """Byte position right after the frame, in the same buffer."""
        return self.position + self.length


def uint_column(kind: ColumnKind, values: Sequence[int]) -> Column:
    """Encode integers in the narrowest sufficient width, or once if they are all equal."""
    highest = max(values)
    if highest < 1 << 32 and (len(values) == 1 or min(values) == highest):
        return Column(kind, CONSTANT, (struct.pack("<I", highest),), 4)
    width = next(w for w in _TYPECODES if highest < 1 << (8 * w))
    packed = array(_TYPECODES[width], values)
    if _SWAP:
        packed.byteswap()
    data = packed.tobytes()
    return Column(kind, width, (data,), len(data))


def blob_column(kind: ColumnKind, pieces: Sequence[bytes | memoryview], size_bytes: int) -> Column:
    """Wrap plain bytes, in pieces with a total of ``size_bytes``, without joining them."""
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


@dataclass(slots=True)
class Body:
    """The part of a frame that does not depend on its position in the log."""

    length: int
    count: int
    column_count: int
    codec: int
    flags: int
    stored_bytes: int
    body_bytes: int
    crc: int
    """CRC of everything after the header, from which the frame's CRC is computed."""


def encode_body(columns: Sequence[Column], *, count: int, compress: bool) -> tuple[bytearray, Body]:
    """Build a frame with a blank header. The values are copied exactly once, into it.

    Marks, if there are any, are the first column.

    With ``compress`` the columns are stored compressed if that makes them smaller. ValueError if they
    do not fit a frame.
    """
    pieces = [piece for column in columns for piece in column.pieces]
    stored = body_bytes = sum(column.size_bytes for column in columns)
    used = codec.NONE
    if compress and body_bytes >= codec.LEAST_BYTES:
        packed = codec.compress(pieces)
        if len(packed) < body_bytes:
            pieces, stored, used = [packed], len(packed), codec.ZSTD
    unpadded = HEADER_BYTES + DIRECTORY_ENTRY.size * len(columns) + stored
    padding = -unpadded % ALIGNMENT
    length = unpadded + padding + TRAILER.size
    if length > MAX_FRAME_BYTES or body_bytes > MAX_FRAME_BYTES:
        raise ValueError(f"a batch of {length} bytes does not fit a frame")
    flags = HAS_MARKS if columns and columns[0].kind == ColumnKind.MARKS else 0
    directory_pieces = [
        DIRECTORY_ENTRY.pack(kind, encoding, 0, size_bytes)
        for kind, encoding, _, size_bytes in columns
    ]
    ending = bytes(padding) + TRAILER.pack(length, TRAILER_MAGIC)
    frame = _join([bytes(HEADER_BYTES), *directory_pieces, *pieces, ending])
    crc = crc32c(memoryview(frame)[HEADER_BYTES:])
    return frame, Body(length, count, len(columns), used, flags, stored, body_bytes, crc)


def place(salt: int | None, position: int) -> bytes:
    """Return what the CRC of a frame at ``position`` of its file covers in addition to the frame.

    ``salt`` is that of the segment. None: a segment of version 1, whose frames do not depend on it.
    As it is a sum, a copy at another position is valid in a segment whose salt differs by the same amount.
    """
    return NOWHERE if salt is None else _U32.pack((salt + position) & _MASK)


def _join(pieces: Sequence[bytes | memoryview]) -> bytearray:
    """Join pieces with one copy; very many of them in slices, each of which holds the GIL for a
    millisecond. Three million at once took 0.4 s and blocked the event loop."""
    if len(pieces) <= _JOINED_PIECES:
        return bytearray().join(pieces)
    joined = bytearray()
    for low in range(0, len(pieces), _JOINED_PIECES):
        joined += b"".join(pieces[low : low + _JOINED_PIECES])
    return joined


def encode_header(
    body: Body,
    *,
    start: int,
    base_timestamp_us: int,
    max_timestamp_us: int,
    epoch: int,
    previous_crc: int,
    synced_limit: int,
    synced_position: int = 0,
    at: bytes = NOWHERE,
) -> tuple[bytes, int]:
    """Return the header that places a body in the log, and the frame's CRC.

    ``at`` is its :func:`place` in a segment; without one it is a frame of version 1.
    """
    fields = HEADER.pack(
        FRAME_MAGIC,
        0,
        body.length,
        previous_crc,
        start,
        body.count,
        body.column_count,
        FRAME_VERSION if at else UNPLACED_VERSION,
        body.codec,
        base_timestamp_us,
        max_timestamp_us,
        epoch,
        synced_limit,
        body.flags,
        body.stored_bytes,
        body.body_bytes,
        synced_position,
    )
    crc = crc32c(fields[CRC_FROM:] + at, body.crc)
    return fields[:4] + crc.to_bytes(4, "little") + fields[CRC_FROM:], crc


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
    synced_position: int = 0,
    at: bytes = NOWHERE,
    compress: bool = False,
) -> tuple[bytearray, int]:
    """Build one frame. Return its bytes and its CRC (the next frame's ``previous_crc``)."""
    frame, body = encode_body(columns, count=count, compress=compress)
    header, crc = encode_header(
        body,
        start=start,
        base_timestamp_us=base_timestamp_us,
        max_timestamp_us=max_timestamp_us,
        epoch=epoch,
        previous_crc=previous_crc,
        synced_limit=synced_limit,
        synced_position=synced_position,
        at=at,
    )
    frame[:HEADER_BYTES] = header
    return frame, crc


def encode_value(
    value: bytes,
    *,
    start: int,
    timestamp_us: int,
    epoch: int,
    previous_crc: int,
    synced_limit: int,
    synced_position: int = 0,
    at: bytes = NOWHERE,
) -> tuple[bytearray, int]:
    """Build the frame of one record with only a value: the same bytes and CRC as :func:`encode`.

    For callers that await each append before the next, and so wait for this, too: it takes a third of
    the time.
    """
    size = len(value)
    unpadded = _VALUE_AT + size
    length = unpadded + -unpadded % ALIGNMENT + TRAILER.size
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a batch of {length} bytes does not fit a frame")
    directory_and_length = _ONE_VALUE.pack(
        ColumnKind.VALUE_LENGTHS, CONSTANT, 0, 4, ColumnKind.VALUES, BLOB, 0, size, size
    )
    ending = bytes(length - unpadded - TRAILER.size) + TRAILER.pack(length, TRAILER_MAGIC)
    frame = bytearray().join((_BLANK_HEADER, directory_and_length, value, ending))
    body_crc = crc32c(memoryview(frame)[HEADER_BYTES:])
    HEADER.pack_into(
        frame,
        0,
        FRAME_MAGIC,
        0,
        length,
        previous_crc,
        start,
        1,
        2,
        FRAME_VERSION if at else UNPLACED_VERSION,
        codec.NONE,
        timestamp_us,
        timestamp_us,
        epoch,
        synced_limit,
        0,
        size + 4,
        size + 4,
        synced_position,
    )
    crc = crc32c(frame[CRC_FROM:HEADER_BYTES] + at, body_crc)
    frame[4:CRC_FROM] = crc.to_bytes(4, "little")
    return frame, crc


def parse_header(buffer: memoryview, position: int) -> FrameHeader | None:
    """Return the header at ``position``, or None if there is no room or no magic.

    Only the shape is checked (magic, length, and numbers within the limits of a log), not the CRC.
    """
    if position + HEADER_BYTES > len(buffer):
        return None
    magic, *fields = HEADER.unpack_from(buffer, position)
    header = FrameHeader(position, *fields)
    length = header.length
    if magic != FRAME_MAGIC or length % ALIGNMENT or length < HEADER_BYTES + TRAILER.size:
        return None
    if (header.start + header.count) | header.epoch > MOST_OFFSET:  # 2**n - 1
        return None
    return header if header.max_timestamp_us <= MOST_TIMESTAMP_US else None


def is_compressed(data: bytearray) -> bool:
    """Return whether the columns of a frame of :func:`encode` are stored compressed."""
    header = parse_header(memoryview(data), 0)
    return header is not None and bool(header.codec)


def is_whole(buffer: memoryview, header: FrameHeader, at: bytes = NOWHERE) -> bool:
    """Return whether ``buffer`` contains the whole frame, and its CRC and trailer are right.

    ``at`` is the :func:`place` at which the frame was found.
    """
    end = header.end
    if end > len(buffer):
        return False
    if not has_trailer(buffer, header):
        return False
    body = header.position + HEADER_BYTES
    crc = crc32c(buffer[header.position + CRC_FROM : body], crc32c(buffer[body:end]))
    return (crc32c(at, crc) if at else crc) == header.crc


def salt_of(buffer: memoryview, header: FrameHeader, position: int) -> int:
    """Return the salt with which a frame at ``position`` of its file would be whole; see :func:`place`.

    A CRC over four more bytes is a bijection of these bytes, so it can be inverted.
    """
    body = header.position + HEADER_BYTES
    before = crc32c(buffer[header.position + CRC_FROM : body], crc32c(buffer[body : header.end]))
    register = header.crc ^ _MASK
    for _ in range(4):
        entry = next(at for at in range(256) if _crc_entry(at) >> 24 == register >> 24)
        register = ((register ^ _crc_entry(entry)) << 8 & _MASK) | entry
    return ((register ^ before ^ _MASK) - position) & _MASK


@lru_cache(maxsize=256)
def _crc_entry(byte: int) -> int:
    """Return an entry of the table for bytewise CRC-32C."""
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F6_3B78 if byte & 1 else 0)
    return byte


def directory(buffer: memoryview, header: FrameHeader) -> dict[int, tuple[int, memoryview]]:
    """Return the columns of a verified frame: kind → (encoding, bytes).

    Raises ValueError naming an unknown feature: a newer version, codec, flag or column kind. BodyError
    if no version writes such columns: each returned column is inside the frame, integers have an entry
    for each record, and columns that belong together are present.
    """
    if (
        not UNPLACED_VERSION <= header.version <= FRAME_VERSION
        or header.codec not in codec.KNOWN
        or header.flags & _UNKNOWN_FLAGS
    ):
        raise ValueError(_newer_than_this(header))
    entry = header.position + HEADER_BYTES
    data = entry + DIRECTORY_ENTRY.size * header.column_count
    if header.column_count == 2 and not header.codec:
        plain = _plain_columns(buffer, header, entry)
        if plain is not None:
            return plain
    body, data = _body(buffer, header, data)
    limit = data + header.body_bytes
    columns: dict[int, tuple[int, memoryview]] = {}
    for _ in range(header.column_count):
        kind, encoding, _, size = DIRECTORY_ENTRY.unpack_from(buffer, entry)
        if kind in KNOWN_KINDS:
            is_right = (
                encoding in _ENCODINGS and size == (encoding * header.count or 4)
                if kind in _INTEGERS
                else encoding == BLOB
            )
            if not is_right:
                raise BodyError(f"a column {kind} of {size} bytes and encoding {encoding}")
        elif kind < IGNORABLE_KINDS_FROM:
            raise ValueError(f"column kind {kind}")
        columns[kind] = (encoding, body[data : data + size])
        entry += DIRECTORY_ENTRY.size
        data += size
    if data != limit or len(columns) != header.column_count:
        raise BodyError("columns that do not fill their frame, each once")
    _check_columns(columns, header)
    return columns


def _newer_than_this(header: FrameHeader) -> str:
    """Return the feature of a frame that this version does not support."""
    if not UNPLACED_VERSION <= header.version <= FRAME_VERSION:
        return f"frame version {header.version}"
    if header.codec not in codec.KNOWN:
        return f"codec {header.codec}"
    return f"frame flags {header.flags:#x}"


def _plain_columns(
    buffer: memoryview, header: FrameHeader, entry: int
) -> dict[int, tuple[int, memoryview]] | None:
    """Return the columns of a valid frame with only values; None for any other.

    Most frames are of this kind; this takes half the time of the general loop.
    """
    kind, encoding, _, size, other, blob, _, values = _TWO_ENTRIES.unpack_from(buffer, entry)
    count, data, stored = header.count, entry + _TWO_ENTRIES.size, header.stored_bytes
    if (
        kind != ColumnKind.VALUE_LENGTHS
        or other != ColumnKind.VALUES
        or blob != BLOB
        or encoding not in _ENCODINGS
        or size != (encoding * count or 4)
        or not 0 < count <= MOST_RECORDS
        or size + values != stored
        or stored != header.body_bytes
        or not 7 < entry + header.length - HEADER_BYTES - data - stored < 16
    ):
        return None
    limit = data + size
    lengths = buffer[data:limit]
    if not encoding and _U32.unpack(lengths)[0] * count != values:
        return None
    return {
        ColumnKind.VALUE_LENGTHS: (encoding, lengths),
        ColumnKind.VALUES: (BLOB, buffer[limit : limit + values]),
    }


def _body(buffer: memoryview, header: FrameHeader, at: int) -> tuple[memoryview, int]:
    """Return the buffer with the columns of a frame, and where they begin in it; ``at`` is their stored
    position."""
    unpadded = at - header.position + header.stored_bytes
    if unpadded + -unpadded % ALIGNMENT + TRAILER.size != header.length:
        raise BodyError("a frame of another length than its columns")
    if header.count > MOST_RECORDS:
        raise BodyError(f"a frame of {header.count} records; the maximum is {MOST_RECORDS}")
    if header.codec:
        stored = buffer[at : at + header.stored_bytes]
        return codec.decompress(stored, header.body_bytes), 0
    if header.stored_bytes != header.body_bytes:
        raise BodyError("columns of two lengths")
    return buffer, at


def _check_columns(columns: dict[int, tuple[int, memoryview]], header: FrameHeader) -> None:
    """Check that columns that belong together are present: BodyError."""
    values = columns.get(ColumnKind.VALUES)
    if values is not None:
        encoding, lengths = columns.get(ColumnKind.VALUE_LENGTHS, _NO_COLUMN)
        if encoding == CONSTANT:
            if _U32.unpack(lengths)[0] * header.count != len(values[1]):
                raise BodyError("lengths that are not those of the values")
        elif encoding == BLOB:
            raise BodyError("values without lengths")
    elif header.count or ColumnKind.VALUE_LENGTHS in columns:
        raise BodyError("records without values")
    if len(columns) > 2:
        for one, other in _PAIRS:
            if (one in columns) != (other in columns):
                raise BodyError(f"column {one} or {other} without the other")


def stream_names(buffer: memoryview, header: FrameHeader) -> list[str]:
    """Return the streams with records in a verified frame; ValueError as :func:`directory`."""
    found = directory(buffer, header).get(ColumnKind.STREAM_NAMES)
    return [] if found is None else unpack_names(found[1])


def marks_of(buffer: memoryview, header: FrameHeader) -> memoryview | None:
    """Return the marks of a verified frame, if it has any; ValueError as :func:`directory`."""
    if not header.flags & HAS_MARKS:
        return None
    found = directory(buffer, header).get(ColumnKind.MARKS)
    if found is None:
        raise BodyError("no marks, although the header says so")
    return found[1]


def has_trailer(buffer: memoryview, header: FrameHeader) -> bool:
    """Return whether a frame, whose length is in ``buffer``, ends with its trailer there."""
    trailer = TRAILER.unpack_from(buffer, header.end - TRAILER.size)
    return trailer == (header.length, TRAILER_MAGIC)
