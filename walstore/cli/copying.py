"""walstore upload, restore and fork: logs copied between directories and stores."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from walstore import Wal
from walstore.cli.errors import UsageError
from walstore.cli.location import StartPlace, parse_place, to_directory, to_url
from walstore.cli.options import (
    Alpha,
    Directory,
    LayoutOption,
    Shards,
    StoredAt,
    StoreUrl,
    TakeOver,
    argument,
    layout_arguments,
    option,
)
from walstore.cli.output import format_bytes, format_count, progress_bar, terminal
from walstore.cli.report import Fields, Report
from walstore.core.files.log_files import LogSnapshot
from walstore.core.runtime.clock import SystemClock
from walstore.records import from_timestamp_us

if TYPE_CHECKING:
    from uploader import Forked, RestoreProgress

UPLOAD_EXAMPLES = """\
  walstore upload data/orders s3://bucket/orders
  walstore upload data/orders file:///srv/bucket/orders --json
  walstore upload data/orders s3://bucket/orders --layout chain --shards 4
  walstore upload data/orders s3://bucket/orders --take-over
"""

_PROGRESS_SECONDS = 0.2


async def upload(
    directory: Directory,
    url: StoreUrl,
    *,
    layout: LayoutOption = None,
    alpha: Alpha = None,
    shards: Shards = None,
    take_over: TakeOver = False,
) -> Report:
    """Ship all durable records of DIRECTORY that are not yet at URL, then end.

    Opens the log for writing and takes the lock; exit code 4 if a writer has it. After an interruption
    URL has a prefix of the log, and the next run continues from there. The exit code is also 4 if another
    directory took the prefix over: see --take-over.
    """
    placing = layout_arguments(layout, alpha, shards)
    path, place = to_directory(directory, "upload"), to_url(url, "upload")
    from uploader import CloudTier

    await asyncio.to_thread(LogSnapshot.open, path)  # refuses to create a log by mistake
    tier = CloudTier(place, **placing, take_over=take_over)
    async with Wal.open(path, tier=tier) as wal:
        start, limit = wal.uploaded_limit, wal.durable_limit
        async with asyncio.TaskGroup() as group:
            progress = group.create_task(_show_progress(wal, start, limit))
            if limit > start:
                await wal.wait_durable(limit - 1, "cloud")
            progress.cancel()
        limit, counters = wal.uploaded_limit, tier.uploader
        shipped = {
            "directory": str(path),
            "url": tier.url,
            "start": start,
            "limit": limit,
            "records": limit - start,
            "fragments": counters.uploaded_fragments + counters.adopted_fragments,
            "bytes": counters.uploaded_bytes,
        }
    fields = [
        ("directory", path),
        ("url", tier.url),
        ("shipped", f"[{start}, {limit})"),
        ("records", limit - start),
        ("fragments", shipped["fragments"]),
        ("size", format_bytes(counters.uploaded_bytes)),
    ]
    return Report(shipped, fields)


async def _show_progress(wal: Wal, start: int, limit: int) -> None:
    clock = SystemClock()
    with terminal().status("shipping") as status:
        while True:
            status.update(f"shipped {wal.uploaded_limit - start} of {limit - start} records")
            await clock.sleep(_PROGRESS_SECONDS)


RESTORE_EXAMPLES = """\
  walstore restore s3://bucket/orders data/orders
  walstore restore s3://bucket/orders data/before-the-bug --to-time 2025-06-01T12:00
  walstore restore file:///srv/bucket/orders data/orders --to-offset 5000 --json
"""


async def restore(
    url: StoredAt,
    directory: Annotated[str, argument("DIRECTORY", "Where to create the log; empty or missing.")],
    *,
    to_offset: Annotated[
        int | None, option("--to-offset OFFSET", "Restore the records before this offset.")
    ] = None,
    to_time: Annotated[
        str | None, option("--to-time TIME", "Restore the records before this time.")
    ] = None,
) -> Report:
    """Rebuild a log directory from URL, whole or up to an offset or time.

    Restored whole, the directory owns the log: opened with its tier, it continues where the lost one ended.
    Fragments that a crash left unpublished are published first. Up to an offset or time it is a separate
    log, which cannot ship to URL, and the store is only read. Every record is checked. After an
    interruption the directory has no log, and the same command continues.
    """
    if to_offset is not None and to_time is not None:
        raise UsageError("give --to-offset or --to-time, not both")
    stop = to_offset if to_time is None else _parse_time(to_time)
    source, path = to_url(url, "restore"), to_directory(directory, "restore")
    done = await _restore(source, path, stop)
    apart = f"this is a log of its own; it cannot ship to {done['url']}"
    return Report(done, _restored_fields(done), notes=[] if done["owns_prefix"] else [apart])


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


def _restored_fields(done: dict[str, Any]) -> Fields:
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
    return fields


FORK_EXAMPLES = """\
  walstore fork s3://bucket/orders s3://bucket/orders-test
  walstore fork s3://bucket/orders s3://bucket/june --from 2025-06-01 --to 2025-07-01
  walstore fork file:///srv/bucket/orders file:///srv/bucket/copy --to 5000 --json
"""


async def fork(
    source: Annotated[str, argument("SOURCE", "URL of the log to copy.")],
    target: Annotated[str, argument("TARGET", "URL of the new log.")],
    *,
    from_: Annotated[
        str | None, option("--from PLACE", "Begin with the fragment of this record.")
    ] = None,
    to: Annotated[str | None, option("--to PLACE", "End before this record.")] = None,
) -> Report:
    """Copy a stored log, or a part of it, to a new log.

    Offsets and times stay; afterwards the logs are independent. The source may be written during the copy; a
    pin protects the copied records from collection. Every record is checked. After an interruption TARGET
    has no log, and the same command continues. The exit code is 4 if TARGET has anything else.
    """
    places = [None if text is None else parse_place(text) for text in (from_, to)]
    done = await _fork(to_url(source, "fork"), to_url(target, "fork"), *places)
    fields = [
        ("source", done["source"]),
        ("target", done["target"]),
        ("offsets", f"[{done['start']}, {done['limit']})"),
        ("records", format_count(done["records"])),
        ("size", format_bytes(done["fragment_bytes"])),
        ("setsum", done["setsum"]),
    ]
    return Report(done, fields)


async def _fork(
    source: str, target: str, from_: StartPlace | None, to: StartPlace | None
) -> dict[str, Any]:
    from uploader import CloudLog, fork
    from uploader.stores import open_store

    async with CloudLog.open(source) as log:
        start = None if from_ is None else await from_.resolve(log)
        stop = None if to is None else await to.resolve(log)
        low, high = log.head if start is None else start, log.tail if stop is None else stop
        source_url = log.url
    with progress_bar("copying") as show:

        def on_progress(at: Forked) -> None:
            done = at.limit - max(at.start, low)
            show(done, high - low, f"{format_count(done)} of {format_count(high - low)} records")

        found = await fork(source, target, start=start, stop=stop, progress=on_progress)
    records = found.limit - found.start
    urls = {"source": source_url, "target": open_store(target).url}
    return {**urls, **asdict(found), "records": records}
