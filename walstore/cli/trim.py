"""walstore trim: remove the oldest records of a log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from walstore import Wal
from walstore.cli.errors import UsageError
from walstore.cli.location import to_directory
from walstore.cli.options import AsJson, Confirm, Directory
from walstore.cli.output import complain, format_bytes, print_fields, print_json
from walstore.cli.running import run_async
from walstore.cli.source import open_location
from walstore.cli.start import parse_place
from walstore.cursors.directory import list_cursors
from walstore.files.log_files import LogSnapshot
from walstore.log.retention_plan import Pin, plan_trim
from walstore.runtime.clock import SystemClock

EXAMPLES = """\b
Examples:
  walstore trim data/orders --before 100000
  walstore trim data/orders --before 2025-06-01 --confirm
  walstore trim data/orders --before -1000000 --json
"""


def trim(
    directory: Directory,
    *,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="PLACE",
            help="First record to stay: an offset, a time, -N for the last N, latest.",
            show_default=False,
        ),
    ],
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> None:
    """Remove the records before a place. A dry run without --confirm.

    Cursors pin their position and everything after it. Segments wholly before the new head are deleted.
    With --confirm the log is opened for writing, so exit code 4 if a writer has it; the dry run takes no
    lock. A log that is shipped to a store is not trimmed beyond what is known to be there.
    """
    done = run_async(_trim(to_directory(directory, "trim"), before, is_confirmed=confirm))
    if as_json:
        print_json(done)
    else:
        _print(done)
    if not confirm:
        complain("nothing was changed; give --confirm to do this")


async def _trim(path: Path, before: str, *, is_confirmed: bool) -> dict[str, Any]:
    place = parse_place(before)
    view = await asyncio.to_thread(LogSnapshot.open, path)
    async with open_location(str(path)) as log:
        offset = await place.resolve(log)
    done = await asyncio.to_thread(_plan, view, offset)
    if is_confirmed:
        async with Wal.open(path) as wal:
            done["new_head"] = await wal.trim(before=offset)
        done["applied"] = True
    return done


def _plan(view: LogSnapshot, before: int) -> dict[str, Any]:
    if view.tier_url is not None and before > max(view.uploaded_limit, view.head):
        raise UsageError(
            f"{view.tier_url} held offsets below {view.uploaded_limit} at the last checkpoint; "
            f"'walstore upload' the log before trimming it to {before}"
        )
    now_us = SystemClock().now_us()
    cursors = list_cursors(view.fs, view.path, now_us)
    pins = [Pin(one.position, one.name) for one in cursors if not one.is_expired]
    new_head = plan_trim(
        before,
        head=view.head,
        durable_limit=view.durable_limit,
        now_us=now_us,
        uploaded_limit=None,
        pins=pins,
    )
    gone = [
        (one.path.name, one.path.stat().st_size)
        for one in view.segments
        if one.summary is not None and one.summary.limit <= new_head
    ]
    return {
        "location": str(view.path),
        "applied": False,
        "before": before,
        "head": view.head,
        "new_head": new_head,
        "durable_limit": view.durable_limit,
        "records": new_head - view.head,
        "segments": [{"name": name, "bytes": size_bytes} for name, size_bytes in gone],
        "bytes": sum(size_bytes for _, size_bytes in gone),
        "pinned_by": [
            {"name": pin.holder, "position": pin.offset} for pin in pins if pin.offset < before
        ],
    }


def _print(done: dict[str, Any]) -> None:
    fields = [
        ("location", done["location"]),
        ("offsets", f"[{done['head']}, {done['durable_limit']})"),
        ("new head", done["new_head"]),
        ("records", done["new_head"] - done["head"]),
        ("segments", f"{len(done['segments'])}, {format_bytes(done['bytes'])}"),
    ]
    fields += [("", one["name"]) for one in done["segments"]]
    fields += [
        ("pinned by", f"cursor {one['name']} at {one['position']}") for one in done["pinned_by"]
    ]
    print_fields(fields)
