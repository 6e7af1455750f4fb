"""Golden frames: what is in ``frame_v1`` and ``frame_v2``, and the program that wrote them.

Each ``.frame`` contains one frame, each ``.json`` of the same name what a reader must find there. They are
chained: each frame continues the one listed before it. Those of version 2 are bound to a place: together they
are the frames of a segment whose salt is ``SALT``. All versions must stay readable for good, so the files are
never written again. To add one, append it to ``_contents`` (for both versions) and run, from the root of the
repository::

    python -m tests.golden.regenerate

It writes only files that are missing and fails if one that is there would change.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.frames import build, header_of, values_only
from walstore.core.format import frame
from walstore.core.format.frame import BLOB, Column
from walstore.core.format.segment import HEADER_BYTES
from walstore.records import Record

DIRECTORIES: Final = {version: Path(__file__).parent / f"frame_v{version}" for version in (1, 2)}
SALT: Final = 0xFFFF_FF00
"""Of the segment that the frames of version 2 are in; with their positions it exceeds 32 bits."""
TIME_US: Final = 1_760_000_000_000_000


def place_of(version: int, position: int) -> bytes:
    """Return the place of the frame of a version that begins at a position of the segment."""
    return frame.place(None if version == 1 else SALT, position)


def frames(version: int) -> Iterator[tuple[str, bytes, bytes, Sequence[Record]]]:
    """Return name, place, bytes and records of every golden frame, in the order of their chain."""
    previous_crc, position, synced_position = 0, HEADER_BYTES, HEADER_BYTES
    for name, records, extra in _contents():
        at = place_of(version, position)
        data = build(
            records,
            previous_crc=previous_crc,
            epoch=2,
            synced_limit=max(1, records[0].offset - 1),
            synced_position=0 if version == 1 else synced_position,
            at=at,
            extra=extra,
        )
        previous_crc = header_of(data, at=at).crc
        synced_position, position = position, position + len(data)
        yield name, at, data, records


def describe(data: bytes, at: bytes, records: Sequence[Record]) -> dict[str, Any]:
    """Return what a reader must find in a frame at a place, as JSON."""
    header = header_of(data, at=at)
    found = {
        "crc": header.crc,
        "previous_crc": header.previous_crc,
        "epoch": header.epoch,
        "synced_limit": header.synced_limit,
        "start": header.start,
        "limit": header.limit,
        "max_timestamp_us": header.max_timestamp_us,
        "records": [_describe_record(record) for record in records],
    }
    if at:
        found |= {"version": header.version, "synced_position": header.synced_position}
    return found


def _describe_record(record: Record) -> list[Any]:
    return [
        record.offset,
        _describe_bytes(record.value),
        None if record.key is None else _describe_bytes(record.key),
        record.stream,
        {name: _describe_bytes(value) for name, value in record.headers.items()},
        record.timestamp_us,
    ]


def _describe_bytes(value: bytes) -> str:
    if len(value) <= 64:
        return value.hex()
    return f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}"


def _contents() -> Iterator[tuple[str, list[Record], Sequence[Column]]]:
    yield "01-plain", values_only(b"first", b"2nd", b"", start=1, timestamp_us=TIME_US), ()
    yield "02-equal-lengths", values_only(b"aaaa", b"bbbb", start=4, timestamp_us=TIME_US), ()
    yield "03-empty-values", values_only(b"", b"", b"", start=6, timestamp_us=TIME_US), ()
    yield "04-single", values_only(b"alone", start=9, timestamp_us=TIME_US + 1), ()
    yield "05-every-column", _every_column(10), ()
    yield "06-wide-integers", _wide_integers(14), ()
    skipped = Column(200, BLOB, (b"a column of some later version",), 30)
    yield "07-unknown-column", values_only(b"known", start=18, timestamp_us=_LATE_US), (skipped,)


_LATE_US: Final = TIME_US + (1 << 33)


def _every_column(start: int) -> list[Record]:
    headers = {"trace": b"\x00\xff", "häder": b""}
    return [
        Record(start, b"with all", b"key", "eu", headers, TIME_US + 1),
        Record(start + 1, b"with none", timestamp_us=TIME_US + 1),
        Record(start + 2, b"with an empty key", b"", "us", timestamp_us=TIME_US + 2),
        Record(start + 3, b"", b"k" * 300, "eu", {"h": b"1"}, TIME_US + 300),
    ]


def _wide_integers(start: int) -> list[Record]:
    return [
        Record(start, b"a" * 300, timestamp_us=TIME_US + 400),
        Record(start + 1, b"b" * 70_000, timestamp_us=TIME_US + 70_000),
        Record(start + 2, b"c", timestamp_us=_LATE_US),
        Record(start + 3, b"", timestamp_us=_LATE_US),
    ]


def main() -> None:
    """Write the files that are missing; exit with an error if one that is there would change."""
    for version, directory in DIRECTORIES.items():
        directory.mkdir(exist_ok=True)
        for name, at, data, records in frames(version):
            text = json.dumps(describe(data, at, records), indent=1) + "\n"
            for suffix, content in ((".frame", data), (".json", text.encode())):
                path = directory / (name + suffix)
                if not path.exists():
                    path.write_bytes(content)
                elif path.read_bytes() != content:
                    sys.exit(f"{path} would change, and with it a format that must not")


if __name__ == "__main__":
    main()
