"""A log as values that can be changed and written again with right checksums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from crc32c import crc32c

from walstore.core.format import codec, frame, segment

FRAME_FIELDS: Final = (
    *("magic", "crc", "length", "previous_crc", "start", "count", "column_count", "version"),
    *("codec", "base_timestamp_us", "max_timestamp_us", "epoch", "synced_limit", "flags"),
    *("stored_bytes", "body_bytes", "synced_position"),
)
FRAME_BITS: Final = (32, 32, 32, 32, 64, 32, 16, 8, 8, 64, 64, 64, 64, 32, 32, 32, 32)
HEADER_BITS: Final = (64, 32, 16, 16, 128, 64, 64, 64, 32, 32)
FOOTER_BITS: Final = (64, 32, 32, 64, 64, 64, 32, 32)
_DERIVED: Final = ("crc", "length", "previous_crc", "column_count", "stored_bytes", "body_bytes")


@dataclass
class Column:
    """A column; ``size`` is what its entry says, by default the truth."""

    kind: int
    encoding: int
    data: bytes
    size: int | None = None


@dataclass
class Frame:
    """A frame: what its header says, and its columns before compression."""

    fields: dict[str, int]
    columns: list[Column]
    forced: dict[str, int] = field(default_factory=dict)
    """Fields that get this value whatever would be right."""
    stored: bytes | None = None
    """What lies behind the directory, instead of the columns."""


@dataclass
class Segment:
    """A segment; ``header`` and ``footer`` are the fields of their structs."""

    name: str
    header: list[Any]
    frames: list[Frame]
    footer: list[Any] | None
    index: bytes = b""
    streams: bytes = b""
    forced_header: dict[int, Any] = field(default_factory=dict)
    forced_footer: dict[int, int] = field(default_factory=dict)
    seal: int | None = None
    behind: bytes = b""


def place_of(header: list[Any], position: int) -> bytes:
    """Return what the CRC of a frame at ``position`` of a segment covers beside the frame."""
    salt = header[9] if header[2] != segment.UNSALTED_VERSION else None
    return frame.place(salt, position)


def parse(files: dict[str, bytes]) -> list[Segment]:
    """Return the segments of a log that nobody damaged."""
    return [
        _parse_segment(name, files[name])
        for name in sorted(files)
        if segment.parse_file_name(name) is not None
    ]


def _parse_segment(name: str, data: bytes) -> Segment:
    header = list(segment.HEADER.unpack_from(data))
    view = memoryview(data)
    frames, at = [], segment.HEADER_BYTES
    while (found := frame.parse_header(view, at)) is not None:
        fields = dict(zip(FRAME_FIELDS, frame.HEADER.unpack_from(data, at), strict=True))
        columns = [
            Column(kind, encoding, bytes(part))
            for kind, (encoding, part) in frame.directory(view, found).items()
        ]
        frames.append(Frame(fields, columns))
        at = found.end
    made = Segment(name, header, frames, None)
    if data[-8:] == segment.SEAL_MAGIC:
        made.footer = list(segment.FOOTER.unpack_from(data, at))
        low = at + segment.FOOTER.size
        high = low + 24 * made.footer[2]
        made.index, made.streams = data[low:high], data[high : -segment.SEAL.size]
    return made


def write(segments: list[Segment], *, is_chained: bool) -> dict[str, bytes]:
    """Return the files of segments, with right checksums, and with a right chain if that is wanted."""
    files = {}
    previous: int | None = None
    for one in segments:
        data, last_crc = _write_segment(one, previous)
        files[one.name] = data
        previous = last_crc if is_chained else None
    return files


def _write_segment(one: Segment, previous: int | None) -> tuple[bytes, int]:
    fields = list(one.header)
    if previous is not None:
        fields[8] = previous
    for at, value in one.forced_header.items():
        fields[at] = value
    fields[1] = 0
    if 1 not in one.forced_header:
        fields[1] = crc32c(segment.HEADER.pack(*fields)[12:])
    data = segment.HEADER.pack(*fields)
    last_crc = fields[8]
    for each in one.frames:
        packed = pack_frame(each, last_crc, place_of(fields, len(data)))
        last_crc = int.from_bytes(packed[4:8], "little")
        data += packed
    if one.footer is not None:
        data += _pack_footer(one, len(data), last_crc)
    return data + one.behind, last_crc


def _pack_footer(one: Segment, position: int, last_crc: int) -> bytes:
    assert one.footer is not None
    fields = list(one.footer)
    fields[2] = len(one.index) // 24
    fields[4] = position
    fields[6] = last_crc
    for at, value in one.forced_footer.items():
        fields[at] = value
    seal = fields[4] if one.seal is None else one.seal
    body = segment.FOOTER.pack(*fields)[12:] + one.index + one.streams
    body += segment.SEAL.pack(seal, segment.SEAL_MAGIC)
    return segment.FOOTER_MAGIC + crc32c(body).to_bytes(4, "little") + body


def pack_frame(one: Frame, previous_crc: int, place: bytes) -> bytes:
    """Return a frame as bytes."""
    body = b"".join(column.data for column in one.columns)
    stored = one.stored
    if stored is None:
        stored = codec.compress([body]) if one.fields["codec"] == codec.ZSTD else body
    fields = dict(one.fields)
    unpadded = frame.HEADER_BYTES + 8 * len(one.columns) + len(stored)
    padding = -unpadded % 8
    fields["length"] = unpadded + padding + frame.TRAILER.size
    fields["previous_crc"] = previous_crc
    fields["column_count"] = len(one.columns)
    fields["stored_bytes"], fields["body_bytes"] = len(stored), len(body)
    if fields["codec"] == codec.ZSTD and stored == body:
        fields["codec"] = codec.NONE
    fields |= one.forced
    directory = b"".join(
        frame.DIRECTORY_ENTRY.pack(
            column.kind,
            column.encoding,
            0,
            len(column.data) if column.size is None else column.size,
        )
        for column in one.columns
    )
    trailer = frame.TRAILER.pack(fields["length"], frame.TRAILER_MAGIC)
    rest = directory + stored + bytes(padding) + trailer
    header = frame.HEADER.pack(*(fields[name] for name in FRAME_FIELDS))
    if "crc" in one.forced:
        return header + rest
    crc = crc32c(header[8:] + place, crc32c(rest))
    return header[:4] + crc.to_bytes(4, "little") + header[8:] + rest
