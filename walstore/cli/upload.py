"""walstore upload: ship what is durable in a directory to object storage."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from walstore import Wal
from walstore.cli.layout import Alpha, LayoutOption, Shards, layout_arguments
from walstore.cli.location import to_directory, to_url
from walstore.cli.options import AsJson, Directory, StoreUrl, TakeOver
from walstore.cli.output import format_bytes, print_fields, print_json, terminal
from walstore.cli.running import run_async
from walstore.files.log_files import LogSnapshot
from walstore.runtime.clock import SystemClock

EXAMPLES = """\b
Examples:
  walstore upload data/orders s3://bucket/orders
  walstore upload data/orders file:///srv/bucket/orders --json
  walstore upload data/orders s3://bucket/orders --layout chain --shards 4
  walstore upload data/orders s3://bucket/orders --take-over
"""

_PROGRESS_SECONDS = 0.2


def upload(
    directory: Directory,
    url: StoreUrl,
    *,
    layout: LayoutOption = None,
    alpha: Alpha = None,
    shards: Shards = None,
    take_over: TakeOver = False,
    as_json: AsJson = False,
) -> None:
    """Ship everything durable in DIRECTORY that is not at URL yet, then end.

    Opens the log for writing, so it takes the lock; exit code 4 if a writer has it. After an interruption
    URL has a prefix of the log, and the next run continues from there. Exit code 4, too, if another directory
    took the prefix over: see --take-over.
    """
    options = {**layout_arguments(layout, alpha, shards), "take_over": take_over}
    shipped = run_async(_upload(to_directory(directory, "upload"), to_url(url, "upload"), options))
    if as_json:
        print_json(shipped)
        return
    print_fields(
        [
            ("directory", shipped["directory"]),
            ("url", shipped["url"]),
            ("shipped", f"[{shipped['start']}, {shipped['limit']})"),
            ("records", shipped["records"]),
            ("fragments", shipped["fragments"]),
            ("size", format_bytes(shipped["bytes"])),
        ]
    )


async def _upload(path: Path, url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    from uploader import CloudTier

    await asyncio.to_thread(LogSnapshot.open, path)  # refuses to create a log by mistake
    tier = CloudTier(url, **options)
    async with Wal.open(path, tier=tier) as wal:
        start, limit = wal.uploaded_limit, wal.durable_limit
        async with asyncio.TaskGroup() as group:
            progress = group.create_task(_show_progress(wal, start, limit))
            if limit > start:
                await wal.wait_durable(limit - 1, "cloud")
            progress.cancel()
        counters = tier.uploader
        return {
            "directory": str(path),
            "url": tier.url,
            "start": start,
            "limit": wal.uploaded_limit,
            "records": wal.uploaded_limit - start,
            "fragments": counters.uploaded_fragments + counters.adopted_fragments,
            "bytes": counters.uploaded_bytes,
        }


async def _show_progress(wal: Wal, start: int, limit: int) -> None:
    clock = SystemClock()
    with terminal().status("shipping") as status:
        while True:
            status.update(f"shipped {wal.uploaded_limit - start} of {limit - start} records")
            await clock.sleep(_PROGRESS_SECONDS)
