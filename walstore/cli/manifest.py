"""walstore manifest: the root of a stored log."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from walstore.cli.errors import UsageError
from walstore.cli.location import to_url
from walstore.cli.options import AsJson, StoredAt
from walstore.cli.output import (
    format_bytes,
    format_count,
    print_fields,
    print_json,
    print_table,
    write_bytes,
)
from walstore.cli.running import run_async

if TYPE_CHECKING:
    from uploader.format.manifest import Manifest

EXAMPLES = """\b
Examples:
  walstore manifest s3://bucket/orders
  walstore manifest s3://bucket/orders --json
  walstore manifest file:///srv/bucket/orders --raw > MANIFEST
"""


def manifest(
    url: StoredAt,
    *,
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the manifest itself: its JSON, byte for byte.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the manifest of a stored log: totals, snapshots, newest fragments.

    It names older fragments through snapshots; 'walstore fragments' lists all of them.
    """
    if raw and as_json:
        raise UsageError("give --raw or --json, not both")
    location, found = run_async(_load(to_url(url, "manifest")))
    if raw:
        write_bytes(found.serialise())
    elif as_json:
        print_json(_to_json(location, found))
    else:
        _print(location, found)


async def _load(url: str) -> tuple[str, Manifest]:
    from uploader.layouts.log_session import open_session

    async with open_session(url) as opened:
        opened.check_found()
        return opened.store.url, opened.root.manifest


def _to_json(location: str, found: Manifest) -> dict[str, Any]:
    return {
        "location": location,
        "writer": found.writer,
        "sealed": found.is_sealed,
        "head": found.oldest_offset,
        "tail": found.next_offset,
        "next_fragment": found.next_seq_no,
        "setsum": found.setsum.hexdigest(),
        "collected": found.collected.hexdigest(),
        "appended_bytes": found.acc_bytes,
        "snapshots": [
            {
                "path": one.path_to_snapshot,
                "depth": one.depth,
                "start": one.start,
                "limit": one.limit,
                "bytes": one.num_bytes,
                "setsum": one.setsum.hexdigest(),
            }
            for one in found.snapshots
        ],
        "fragments": [
            {
                "path": one.path,
                "seq_no": one.seq_no,
                "start": one.start,
                "limit": one.limit,
                "bytes": one.num_bytes,
                "setsum": one.setsum.hexdigest(),
            }
            for one in found.fragments
        ],
    }


def _print(location: str, found: Manifest) -> None:
    live_bytes = sum(one.num_bytes for one in found.snapshots)
    live_bytes += sum(one.num_bytes for one in found.fragments)
    print_fields(
        [
            ("location", location),
            ("offsets", f"[{found.oldest_offset}, {found.next_offset})"),
            ("records", format_count(found.next_offset - found.oldest_offset)),
            ("size", f"{format_bytes(live_bytes)}, {format_bytes(found.acc_bytes)} ever added"),
            ("next fragment", found.next_seq_no),
            ("setsum", found.setsum.hexdigest()),
            ("collected", found.collected.hexdigest()),
            ("writer", found.writer),
            ("sealed", "yes" if found.is_sealed else "no"),
        ]
    )
    rows = [
        (f"snapshot, depth {one.depth}", one.start, one.limit, one.num_bytes, one.path_to_snapshot)
        for one in found.snapshots
    ]
    rows += [("fragment", one.start, one.limit, one.num_bytes, one.path) for one in found.fragments]
    if rows:
        sys.stdout.write("\n")
        print_table(("entry", "start", "limit", "bytes", "path"), rows)
