"""walstore inspect and segments: the state of a log, and the files of its directory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from walstore.cli.holder import find_holder
from walstore.cli.location import connect_to, to_directory
from walstore.cli.options import AnyLocation, Directory
from walstore.cli.output import format_bytes, format_count, format_time
from walstore.cli.report import Fields, Listing, Report
from walstore.cli.running import run_async
from walstore.cli.samples import find_logs
from walstore.cli.top import ls
from walstore.core.files.log_bounds import find_missing
from walstore.core.files.log_files import LogSnapshot
from walstore.core.files.segment_file import Segment
from walstore.core.format import segment
from walstore.core.format.frame_scan import FrameScan
from walstore.core.ports import File
from walstore.errors import CorruptionError
from walstore.location import is_address, is_url

INSPECT_EXAMPLES = """\
  walstore inspect data/orders
  walstore inspect unix:///run/orders.sock
  walstore inspect 's3://bucket/orders?region=eu-west-1' --json
"""

_SHOWN_SEGMENTS = 8


def inspect(location: AnyLocation) -> Report:
    """Show the state of a log on one screen. Takes no lock and may run next to the writer.

    For a directory, and for the address of a server: offsets, segments, bytes, epoch, writer and tier; for a
    directory of logs the output of 'walstore ls'. For a store: the content of the manifest.
    """
    if is_address(location):
        found = run_async(_inspect_served(location))
        return Report(found, _directory_fields(found))
    if is_url(location):
        found = run_async(_inspect_store(location))
        return Report(found, _store_fields(found))
    path = to_directory(location, "inspect")
    if find_logs(path) is not None:
        return ls(str(path))
    found = _inspect_directory(path)
    return Report(found, _directory_fields(found))


def _inspect_directory(path: Path) -> dict[str, Any]:
    view = LogSnapshot.open(path)
    holder = find_holder(path)
    segments = []
    for each in view.segments:
        summary = each.summary
        try:
            size_bytes = each.path.stat().st_size
        except FileNotFoundError:
            continue  # deleted by retention just now
        segments.append(
            {
                "name": each.path.name,
                "start": each.start,
                "limit": view.durable_limit if summary is None else summary.limit,
                "sealed": summary is not None,
                "bytes": size_bytes,
                "max_timestamp_us": None if summary is None else summary.max_timestamp_us,
            }
        )
    return {
        "location": str(path),
        "kind": "directory",
        "log_id": view.log_id,
        "head": view.head,
        "durable_limit": view.durable_limit,
        "records": view.durable_limit - view.head,
        "epoch": view.epoch,
        "bytes": sum(each["bytes"] for each in segments),
        "segments": segments,
        "missing_from": find_missing(view.fs, path),
        "uploaded_limit": view.uploaded_limit or None,
        "tier_url": view.tier_url,
        "writer": None if holder is None else {"pid": holder.pid, "note": holder.note},
    }


def _directory_fields(found: dict[str, Any]) -> Fields:
    segments = found["segments"]
    writer = found["writer"]
    fields = [
        ("location", found["location"]),
        ("log id", found["log_id"]),
        ("offsets", f"[{found['head']}, {found['durable_limit']})"),
        ("records", format_count(found["records"])),
        ("size", format_bytes(found["bytes"])),
        ("epoch", found["epoch"]),
    ]
    if found["missing_from"] is not None:
        lost = f"{found['missing_from']}: the files end before what had been synced"
        fields.append(("missing from", lost))
    fields.append(("writer", "none" if writer is None else writer["note"]))
    fields.append(("shipped to", found["tier_url"] or "nowhere"))
    if found["tier_url"]:
        when = "now" if found["kind"] == "server" else "at the last checkpoint"
        fields.append(("uploaded limit", f"{found['uploaded_limit']} {when}"))
    fields.append(("segments", len(segments)))
    hidden = len(segments) - _SHOWN_SEGMENTS
    if hidden > 0:
        fields.append(("", f"({hidden} older ones are not shown)"))
    for one in segments[-_SHOWN_SEGMENTS:]:
        state = "active"
        if one["sealed"]:
            until = one["max_timestamp_us"]
            state = "sealed" if until is None else f"sealed, until {format_time(until)}Z"
        span = f"[{one['start']}, {one['limit']})"
        fields.append(("", f"{span}  {format_bytes(one['bytes'])}  {state}"))
    return fields


async def _inspect_served(location: str) -> dict[str, Any]:
    async with await connect_to(location) as log:
        now, extents = await asyncio.gather(log.statistics(), log.extents())
        segments = [
            {
                "name": one.name,
                "start": one.start,
                "limit": one.limit,
                "sealed": one.kind == "sealed",
                "bytes": one.size_bytes or 0,
                "max_timestamp_us": None,
            }
            for one in extents.segments
        ]
        return {
            "location": location,
            "kind": "server",
            "log_id": log.log_id,
            "head": now.local_head,
            "durable_limit": now.durable_limit,
            "records": now.durable_limit - now.local_head,
            "epoch": now.epoch,
            "bytes": sum(one.size_bytes or 0 for one in extents.segments),
            "segments": segments,
            "missing_from": None,
            "uploaded_limit": now.uploaded_limit if extents.tier_url else None,
            "tier_url": extents.tier_url,
            "writer": {"pid": None, "note": f"the server at {location}"},
        }


async def _inspect_store(url: str) -> dict[str, Any]:
    from uploader import CloudLog

    async with CloudLog.open(url) as log:
        manifest = log.manifest
        return {
            "location": log.url,
            "kind": "store",
            "head": log.head,
            "tail": log.tail,
            "records": log.tail - log.head,
            "bytes": manifest.live_bytes,
            "appended_bytes": manifest.acc_bytes,
            "snapshots": len(manifest.snapshots),
            "fragments": len(manifest.fragments),
            "next_fragment": manifest.next_seq_no,
            "setsum": manifest.setsum.hexdigest(),
            "collected": manifest.collected.hexdigest(),
            "writer": manifest.writer,
            "sealed": manifest.is_sealed,
        }


def _store_fields(found: dict[str, Any]) -> Fields:
    return [
        ("location", found["location"]),
        ("offsets", f"[{found['head']}, {found['tail']})"),
        ("records", format_count(found["records"])),
        ("size", format_bytes(found["bytes"])),
        ("fragments", f"{found['fragments']} in the manifest, next is {found['next_fragment']}"),
        ("snapshots", found["snapshots"]),
        ("setsum", found["setsum"]),
        ("collected", found["collected"]),
        ("writer", found["writer"]),
        ("sealed", "yes" if found["sealed"] else "no"),
    ]


SEGMENTS_EXAMPLES = """\
  walstore segments data/orders
  walstore segments data/orders --json | jq '.segments[] | select(.sealed) | .name'
  walstore segments data/orders | tail -3
"""

_CHUNK_BYTES = 1 << 18


def segments(directory: Directory) -> Report:
    """List the segments of a log. Takes no lock and may run next to the writer.

    Batches are counted by their headers; 'walstore verify' checks their content. For the active
    segment only the durable part is shown. Times are UTC.
    """
    path = to_directory(directory, "segments")
    view = LogSnapshot.open(path)
    found = [entry for one in view.segments if (entry := _describe_segment(view, one)) is not None]
    bounds = {"head": view.head, "durable_limit": view.durable_limit}
    names = ("start", "limit", "records", "batches")
    rows = [
        (
            *(entry[name] for name in names),
            format_bytes(entry["bytes"]),
            format_time(entry["min_timestamp_us"]),
            format_time(entry["max_timestamp_us"]),
            "sealed" if entry["sealed"] else "active",
        )
        for entry in found
    ]
    return Report(
        {"location": str(path), **bounds, "segments": found},
        Listing((*names, "bytes", "first", "last", "state"), rows),
    )


def _describe_segment(view: LogSnapshot, source: Segment) -> dict[str, Any] | None:
    """Return what is known of a segment; None if retention deleted it just now."""
    try:
        file = view.fs.open(source.path, "r")
    except FileNotFoundError:
        return None
    with contextlib.closing(file):
        summary = source.summary
        limit = view.durable_limit if summary is None else summary.limit
        batches, first_us, last_us = _count_batches(file, source.path, source.start, limit)
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


def _count_batches(
    file: File, path: Path, start: int, limit: int
) -> tuple[int, int | None, int | None]:
    """Return the batches with records below ``limit``, and the times of their first and last record."""
    end, offset, batches = segment.HEADER_BYTES, start, 0
    first_us = last_us = None
    scan = FrameScan(file.pread, file.size(), None, ahead_bytes=_CHUNK_BYTES)
    for at, header in scan.claimed(end):
        if offset >= limit or header.start != offset:
            break
        if header.count:
            batches += 1
            last_us = header.max_timestamp_us
            first_us = header.base_timestamp_us if first_us is None else first_us
        end, offset = at + header.length, header.limit
    if offset < limit:
        raise CorruptionError(
            "no batch where one was written; see 'walstore verify'", path=str(path), position=end
        )
    return batches, first_us, last_us
