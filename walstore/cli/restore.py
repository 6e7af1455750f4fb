"""walstore restore: a log directory made again from object storage."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walstore.cli.errors import UsageError
from walstore.cli.location import to_directory, to_url
from walstore.cli.options import AsJson, StoredAt
from walstore.cli.output import complain, format_bytes, format_count, print_fields, print_json
from walstore.cli.progress import progress_bar
from walstore.cli.running import run_async
from walstore.cli.start import parse_place
from walstore.records import from_timestamp_us

if TYPE_CHECKING:
    from uploader import RestoreProgress

EXAMPLES = """\b
Examples:
  walstore restore s3://bucket/orders data/orders
  walstore restore s3://bucket/orders data/before-the-bug --to-time 2025-06-01T12:00
  walstore restore file:///srv/bucket/orders data/orders --to-offset 5000 --json
"""


def restore(
    url: StoredAt,
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY",
            help="Where to make the log; empty or not there yet.",
            show_default=False,
        ),
    ],
    *,
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset", metavar="OFFSET", help="Restore the records before this offset."
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option("--to-time", metavar="TIME", help="Restore the records before this time."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rebuild a log directory from URL, whole or up to an offset or time.

    Whole, the directory becomes the log's own: opened with its tier, it continues where the lost one ended.
    Fragments that a crash left unpublished are published first. Up to an offset or time it is a log of its
    own, which cannot ship to URL, and the store is only read. Every record is checked. After an
    interruption the directory has no log, and the same command continues.
    """
    if to_offset is not None and to_time is not None:
        raise UsageError("give --to-offset or --to-time, not both")
    stop = to_offset if to_time is None else _parse_time(to_time)
    source, path = to_url(url, "restore"), to_directory(directory, "restore")
    done = run_async(_restore(source, path, stop))
    if as_json:
        print_json(done)
    else:
        _print(done)
    if not done["owns_prefix"]:
        complain(f"this is a log of its own; it cannot ship to {done['url']}")


def _parse_time(text: str) -> datetime:
    timestamp_us = parse_place(text).timestamp_us
    if timestamp_us is None:
        raise UsageError(f"--to-time takes a time such as 2025-06-01T12:00:00Z, not {text!r}")
    return from_timestamp_us(timestamp_us)


async def _restore(url: str, path: Path, stop: int | datetime | None) -> dict[str, Any]:
    from uploader import restore

    with progress_bar("restoring") as show:

        def on_progress(at: RestoreProgress) -> None:
            done, total = at.position - at.head, at.limit - at.head
            show(done, total, f"{format_count(done)} of {format_count(total)} records")

        restored = await restore(url, path, stop=stop, progress=on_progress)
    found = asdict(restored)
    found["directory"] = str(found.pop("path"))
    found["bytes"] = found.pop("size_bytes")
    found["records"] = restored.limit - restored.head
    return found


def _print(done: dict[str, Any]) -> None:
    fields = [
        ("directory", done["directory"]),
        ("url", done["url"]),
        ("log id", done["log_id"]),
        ("offsets", f"[{done['head']}, {done['limit']})"),
        ("records", format_count(done["records"])),
        ("segments", f"{done['segments']}, {format_bytes(done['bytes'])}"),
        ("fragments", f"{done['fragments']}, {format_bytes(done['fragment_bytes'])}"),
    ]
    if done["adopted_fragments"]:
        fields.append(("adopted", f"{done['adopted_fragments']} fragments that were unpublished"))
    if done["resumed_at"] > done["head"]:
        fields.append(("went on at", done["resumed_at"]))
    print_fields(fields)
