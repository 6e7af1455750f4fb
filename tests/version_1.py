"""Logs of format version 1, which walstore reads but does not write, made from logs of version 2.

The records, the marks and the positions of all frames stay. What changes is the versions, the salts, what
version 1 does not know (``synced_position``, the new fields of the checkpoint), and all CRCs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
from crc32c import crc32c

from walstore.core.format import checkpoint, frame, segment
from walstore.core.format.frame import Body, FrameHeader

_NEW_KEYS = ("tail_salt", "own_epoch", "is_closed")


def make_version_1(directory: Path) -> None:
    """Rewrite the log in a directory: its segments, and its checkpoint and durable cell if they are there."""
    crcs = {0: 0}
    for path in sorted(directory.glob("*.wal")):
        path.write_bytes(_segment(path.read_bytes(), str(path), crcs))
    if (path := directory / checkpoint.FILE_NAME).exists():
        path.write_bytes(_checkpoint(path.read_bytes(), crcs))
    path = directory / checkpoint.CELL_FILE_NAME
    if path.exists() and (cell := checkpoint.decode_cell(path.read_bytes())) is not None:
        path.write_bytes(checkpoint.encode_cell(cell._replace(tail_salt=None)))


def versions_of(directory: Path) -> list[int]:
    """Return the format version of each segment, oldest first."""
    return [
        int.from_bytes(path.read_bytes()[12:14], "little")
        for path in sorted(directory.glob("*.wal"))
    ]


def seal(path: Path) -> None:
    """Add the footer to an active segment of version 1, as a process does that dies right behind it."""
    data = path.read_bytes()
    header = segment.decode_header(data, str(path))
    found = list(_frames(data, header.salt))
    index = segment.SegmentIndex()
    for one in found:
        index.add(one.start, one.position, one.base_timestamp_us)
    end, last = found[-1].end, found[-1]
    summary = segment.SegmentSummary(header.start, last.limit, end, last.crc, last.max_timestamp_us)
    path.write_bytes(data[:end] + segment.encode_footer(summary, index))


def _frames(data: bytes, salt: int | None) -> Iterator[FrameHeader]:
    position, view = segment.HEADER_BYTES, memoryview(data)
    while (header := frame.parse_header(view, position)) is not None:
        if not frame.is_whole(view, header, frame.place(salt, position)):
            return
        yield header
        position = header.end


def _segment(data: bytes, path: str, crcs: dict[int, int]) -> bytes:
    """Return a segment as version 1 has it; note for the CRC of each frame which it has now."""
    header = segment.decode_header(data, path)
    assert header.salt is not None
    made = bytearray(data)
    for one in _frames(data, header.salt):
        body = Body(
            one.length,
            one.count,
            one.column_count,
            one.codec,
            one.flags,
            one.stored_bytes,
            one.body_bytes,
            crc32c(data[one.position + frame.HEADER_BYTES : one.end]),
        )
        fields, crcs[one.crc] = frame.encode_header(
            body,
            start=one.start,
            base_timestamp_us=one.base_timestamp_us,
            max_timestamp_us=one.max_timestamp_us,
            epoch=one.epoch,
            previous_crc=crcs[one.previous_crc],
            synced_limit=one.synced_limit,
        )
        made[one.position : one.position + frame.HEADER_BYTES] = fields
    old = replace(header, salt=None, flags=0, previous_crc=crcs[header.previous_crc])
    made[: segment.HEADER_BYTES] = segment.encode_header(old)
    at = segment.parse_seal(data[-segment.SEAL.size :])
    if at is not None:
        summary, index = segment.decode_footer(data[at:], header.start, path)
        footer = segment.encode_footer(replace(summary, last_crc=crcs[summary.last_crc]), index)
        made[at:] = footer
    return bytes(made)


def _checkpoint(data: bytes, crcs: dict[int, int]) -> bytes:
    size = checkpoint.PREFIX.unpack_from(data)[2]
    fields = msgpack.unpackb(data[checkpoint.PREFIX.size :][:size])
    for key in _NEW_KEYS:
        fields.pop(key)
    fields["previous_crc"] = crcs[fields["previous_crc"]]
    for row in fields["sealed"]:
        row[3] = crcs[row[3]]
    body = msgpack.packb(fields)
    crc = crc32c(body, crc32c(struct.pack("<II", 1, len(body))))
    return checkpoint.PREFIX.pack(checkpoint.MAGIC, 1, len(body), crc) + body
