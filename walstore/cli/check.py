"""walstore check: whether a log is as an operator wants it, for monitoring."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from walstore.cli.cursors import open_cursors
from walstore.cli.errors import FAILED
from walstore.cli.holder import find_holder
from walstore.cli.location import connect_to, open_location
from walstore.cli.options import AnyLocation, AsJson, option
from walstore.cli.output import format_bytes, format_count, print_verdict
from walstore.cli.running import run_async
from walstore.core.files.log_bounds import find_missing
from walstore.core.files.log_files import LogSnapshot
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.statistics import Statistics
from walstore.location import is_address, is_url

CHECK_EXAMPLES = """\
  walstore check data/orders --max-lag 10000 --max-upload-lag 100000
  walstore check data/orders --max-age 300 --min-free-bytes 10000000000 --writer
  walstore check s3://bucket/orders --max-lag 10000 --json
  walstore check unix:///run/orders.sock --max-upload-lag 100000
"""


def check(
    location: AnyLocation,
    *,
    max_lag: Annotated[
        int | None, option("--max-lag N", "Most records that a cursor may lag.", min=0)
    ] = None,
    max_upload_lag: Annotated[
        int | None,
        option(
            "--max-upload-lag N", "Most records of a directory that may wait to be shipped.", min=0
        ),
    ] = None,
    max_age: Annotated[
        float | None,
        option("--max-age SECONDS", "Largest age of the newest record.", min=0),
    ] = None,
    min_free_bytes: Annotated[
        int | None,
        option("--min-free-bytes N", "Least free space on the disk of a directory.", min=0),
    ] = None,
    writer: Annotated[
        bool, option("--writer", "A program must have the directory open for writing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the health of a log; the exit code is 1 if there is a problem.

    Without options it reports only missing records that had been synced, unreadable cursors, and what a
    server says does not work. Takes no lock and reads one record, so it may run every few seconds.
    Only --max-upload-lag sends requests to a store.
    """
    found = run_async(_look(location, asks_tier=max_upload_lag is not None))
    problems = [*_damage(found)]
    for name, behind in sorted(found["cursors"].items()):
        if max_lag is not None and behind is not None and behind > max_lag:
            problems.append(f"cursor {name!r} is {format_count(behind)} records behind")
    lag = found["upload_lag"]
    if max_upload_lag is not None and lag is None:
        problems.append("it is shipped nowhere")
    elif max_upload_lag is not None and lag > max_upload_lag:
        problems.append(f"{format_count(lag)} records are not shipped")
    age = found["age_seconds"]
    if max_age is not None and (age is None or age > max_age):
        problems.append(
            "it has no records" if age is None else f"the newest record is {age:.0f} s old"
        )
    free = found["free_bytes"]
    if min_free_bytes is not None and (free is None or free < min_free_bytes):
        problems.append("it has no disk here" if free is None else f"{format_bytes(free)} are free")
    if writer and found["writer"] is None:
        problems.append("no program has it open for writing")
    report = {"ok": not problems, **found, "problems": problems}
    if not print_verdict("check", report, _rows(found), as_json=as_json):
        raise typer.Exit(FAILED)


def _damage(found: dict[str, Any]) -> list[str]:
    problems = [
        f"cursor {name!r} cannot be read"
        for name, behind in sorted(found["cursors"].items())
        if behind is None
    ]
    if found["missing_from"] is not None:
        problems.append(
            f"records from {found['missing_from']} on had been synced and are missing: walstore repair"
        )
    return [*problems, *found["failures"]]


async def _look(location: str, *, asks_tier: bool) -> dict[str, Any]:
    """Return the figures of a log, null where it has none."""
    async with open_cursors(location, "check") as cursors:
        seen = await cursors.to_json()
    limit = seen["durable_limit"] if "durable_limit" in seen else seen["tail"]
    found: dict[str, Any] = {
        "location": seen["location"],
        "head": seen["head"],
        "limit": limit,
        "cursors": {one["name"]: one["behind"] for one in seen["cursors"]},
        "upload_lag": None,
        "age_seconds": await _age(location, seen["head"], limit),
        "free_bytes": None,
        "writer": None,
        "missing_from": None,
        "failures": [],
    }
    if is_address(location):
        async with await connect_to(location) as log:
            now = await log.statistics()
        lag = None if now.upload is None else max(0, limit - now.uploaded_limit)
        return found | {"writer": location, "upload_lag": lag, "failures": _failures(now)}
    if not is_url(location):
        path = Path(location)
        found |= await asyncio.to_thread(_look_at_disk, path)
        tier = found.pop("tier_url")
        if tier is not None and asks_tier:
            found["upload_lag"] = max(0, limit - await _uploaded(tier))
    return found


def _look_at_disk(path: Path) -> dict[str, Any]:
    view = LogSnapshot.open(path)
    holder = find_holder(path)
    disk = os.statvfs(path)
    return {
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "writer": None if holder is None else holder.note,
        "missing_from": find_missing(view.fs, path),
        "tier_url": view.tier_url,
    }


def _failures(now: Statistics) -> list[str]:
    """Return what a server says that does not work."""
    failures = {
        "the log": now.failure,
        "shipping": now.tier_failure,
        "replication": now.replication_trouble,
    }
    return [f"{what}: {why}" for what, why in failures.items() if why]


async def _age(location: str, head: int, limit: int) -> float | None:
    """Return how old the newest record is; None without records."""
    if head >= limit:
        return None
    async with open_location(location) as log:
        async for batch in log.reader(limit - 1, stop=limit, follow=False).batches():
            return max(0.0, (SystemClock().now_us() - batch.timestamps_us[-1]) / 1e6)
    return None


async def _uploaded(url: str) -> int:
    """Return the tail of the log that a directory is shipped to."""
    async with open_location(url) as log:
        return log.limit


def _rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    age, lag, free = found["age_seconds"], found["upload_lag"], found["free_bytes"]
    rows = [
        ("records", format_count(found["limit"] - found["head"]), ""),
        ("newest", "none" if age is None else f"{age:.0f} s ago", ""),
        ("not shipped", "" if lag is None else format_count(lag), ""),
        ("free", "" if free is None else format_bytes(free), ""),
        ("writer", found["writer"] or "none", ""),
    ]
    for name, behind in sorted(found["cursors"].items()):
        shown = "unreadable" if behind is None else format_count(behind)
        rows.append((f"cursor {name}", shown, "behind"))
    return rows
