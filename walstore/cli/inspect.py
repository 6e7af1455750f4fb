"""walstore inspect: the state of a log on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from walstore.cli.holder import find_holder
from walstore.cli.location import is_url, to_directory
from walstore.cli.options import AsJson, Location
from walstore.cli.output import format_bytes, format_count, print_fields, print_json
from walstore.cli.running import run_async
from walstore.files.log_bounds import find_missing
from walstore.files.log_files import LogSnapshot
from walstore.records import from_timestamp_us

EXAMPLES = """\b
Examples:
  walstore inspect data/orders
  walstore inspect 's3://bucket/orders?region=eu-west-1' --json
"""

_SHOWN_SEGMENTS = 8


def inspect(location: Location, *, as_json: AsJson = False) -> None:
    """Show the state of a log on one screen. Takes no lock and may run next to the writer.

    A directory: offsets, segments, bytes, epoch, who has it open, where it is shipped to. A store: what
    the manifest contains.
    """
    if is_url(location):
        found = run_async(_inspect_store(location))
        fields = _store_fields
    else:
        found = _inspect_directory(to_directory(location, "inspect"))
        fields = _directory_fields
    if as_json:
        print_json(found)
    else:
        print_fields(fields(found))


def _inspect_directory(path: Path) -> dict[str, Any]:
    view = LogSnapshot.open(path)
    holder = find_holder(path)
    segments = []
    for segment in view.segments:
        summary = segment.summary
        try:
            size_bytes = segment.path.stat().st_size
        except FileNotFoundError:
            continue  # deleted by retention just now
        segments.append(
            {
                "name": segment.path.name,
                "start": segment.start,
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
        "bytes": sum(segment["bytes"] for segment in segments),
        "segments": segments,
        "missing_from": find_missing(view.fs, path),
        "uploaded_limit": view.uploaded_limit or None,
        "tier_url": view.tier_url,
        "writer": None if holder is None else {"pid": holder.pid, "note": holder.note},
    }


def _directory_fields(found: dict[str, Any]) -> list[tuple[str, Any]]:
    segments = found["segments"]
    writer = found["writer"]
    fields = [
        ("location", found["location"]),
        ("log id", found["log_id"]),
        ("offsets", f"[{found['head']}, {found['durable_limit']})"),
        ("records", format_count(found["records"])),
        ("size", format_bytes(found["bytes"])),
        ("epoch", found["epoch"]),
        *_missing_fields(found["missing_from"]),
        ("writer", "none" if writer is None else writer["note"]),
        ("shipped to", found["tier_url"] or "nowhere"),
    ]
    if found["tier_url"]:
        fields.append(("uploaded limit", f"{found['uploaded_limit']} at the last checkpoint"))
    fields.append(("segments", len(segments)))
    hidden = len(segments) - _SHOWN_SEGMENTS
    if hidden > 0:
        fields.append(("", f"({hidden} older ones are not shown)"))
    for segment in segments[-_SHOWN_SEGMENTS:]:
        state = "active"
        if segment["sealed"]:
            last = from_timestamp_us(segment["max_timestamp_us"])
            state = f"sealed, until {last:%Y-%m-%d %H:%M:%S}Z"
        span = f"[{segment['start']}, {segment['limit']})"
        fields.append(("", f"{span}  {format_bytes(segment['bytes'])}  {state}"))
    return fields


def _missing_fields(missing_from: int | None) -> list[tuple[str, Any]]:
    if missing_from is None:
        return []
    return [("missing from", f"{missing_from}: the files end before what had been synced")]


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
            "bytes": sum(entry.num_bytes for entry in manifest.snapshots)
            + sum(entry.num_bytes for entry in manifest.fragments),
            "appended_bytes": manifest.acc_bytes,
            "snapshots": len(manifest.snapshots),
            "fragments": len(manifest.fragments),
            "next_fragment": manifest.next_seq_no,
            "setsum": manifest.setsum.hexdigest(),
            "collected": manifest.collected.hexdigest(),
            "writer": manifest.writer,
            "sealed": manifest.is_sealed,
        }


def _store_fields(found: dict[str, Any]) -> list[tuple[str, Any]]:
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
