"""walstore segments: the files of a log, one a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from walstore.cli.location import to_directory
from walstore.cli.options import AsJson, Directory
from walstore.cli.output import format_bytes, print_json, print_table
from walstore.errors import CorruptionError
from walstore.files.log_files import LogSnapshot
from walstore.files.segment_file import Segment
from walstore.format import frame, segment
from walstore.ports import File
from walstore.records import from_timestamp_us

EXAMPLES = """\b
Examples:
  walstore segments data/orders
  walstore segments data/orders --json | jq '.segments[] | select(.sealed) | .name'
  walstore segments data/orders | tail -3
"""

_CHUNK_BYTES = 1 << 18


def segments(directory: Directory, *, as_json: AsJson = False) -> None:
    """List the segments of a log. Takes no lock and may run next to the writer.

    Batches are counted by their headers; 'walstore verify' checks their content. Of the active
    segment only what is durable is shown. Times are UTC.
    """
    path = to_directory(directory, "segments")
    view = LogSnapshot.open(path)
    found = [entry for one in view.segments if (entry := _describe(view, one)) is not None]
    if as_json:
        print_json(
            {
                "location": str(path),
                "head": view.head,
                "durable_limit": view.durable_limit,
                "segments": found,
            }
        )
        return
    print_table(
        ("start", "limit", "records", "batches", "bytes", "first", "last", "state"),
        [
            (
                entry["start"],
                entry["limit"],
                entry["records"],
                entry["batches"],
                format_bytes(entry["bytes"]),
                _time(entry["min_timestamp_us"]),
                _time(entry["max_timestamp_us"]),
                "sealed" if entry["sealed"] else "active",
            )
            for entry in found
        ],
    )


def _describe(view: LogSnapshot, source: Segment) -> dict[str, Any] | None:
    """Return what is known of a segment; None if retention deleted it just now."""
    try:
        file = view.fs.open(source.path, "r")
    except FileNotFoundError:
        return None
    try:
        summary = source.summary
        limit = view.durable_limit if summary is None else summary.limit
        batches, first_us, last_us = _count(file, source.path, source.start, limit)
        return {
            "name": source.path.name,
            "start": source.start,
            "limit": limit,
            "records": limit - source.start,
            "batches": batches,
            "bytes": file.size(),
            "min_timestamp_us": first_us,
            "max_timestamp_us": last_us,
            "sealed": summary is not None,
        }
    finally:
        file.close()


def _count(file: File, path: Path, start: int, limit: int) -> tuple[int, int | None, int | None]:
    """Return the batches with records below ``limit``, and the times of their first and last record."""
    at, batches = segment.HEADER_BYTES, 0
    first_us = last_us = None
    offset, chunk, begin = start, memoryview(b""), 0
    while offset < limit:
        if not begin <= at <= begin + len(chunk) - frame.HEADER_BYTES:
            chunk, begin = memoryview(file.pread(_CHUNK_BYTES, at)), at
        header = frame.parse_header(chunk, at - begin)
        if header is None or header.start != offset:
            raise CorruptionError(
                "no batch where one was written; see 'walstore verify'", path=str(path), position=at
            )
        if header.count:
            batches += 1
            last_us = header.max_timestamp_us
            first_us = header.base_timestamp_us if first_us is None else first_us
        offset = header.limit
        at += header.length
    return batches, first_us, last_us


def _time(timestamp_us: int | None) -> str:
    return "-" if timestamp_us is None else f"{from_timestamp_us(timestamp_us):%Y-%m-%d %H:%M:%S}"
