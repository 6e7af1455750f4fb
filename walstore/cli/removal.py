"""walstore trim, gc, seal and destroy: records removed from a log, and the end of a stored one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from walstore import CursorInfo, Wal
from walstore.cli.errors import OutputError, UsageError
from walstore.cli.location import (
    StartPlace,
    connect_to,
    open_location,
    parse_place,
    to_directory,
    to_url,
)
from walstore.cli.options import Confirm, LocalOrServed, StoredAt, argument, option
from walstore.cli.output import format_bytes, format_count, format_time, progress_bar
from walstore.cli.report import Fields, Report
from walstore.core.files.log_files import LogSnapshot
from walstore.core.runtime.clock import SystemClock
from walstore.core.tier_port import Extent
from walstore.location import is_address
from walstore.log.retention_plan import Pin, plan_trim
from walstore.positions.cursors.kept import list_all_cursors

if TYPE_CHECKING:
    from uploader import Collected, CollectorSettings, Plan
    from uploader.care.gc.collection_plan import AuditCallback

TRIM_EXAMPLES = """\
  walstore trim data/orders --before 100000
  walstore trim data/orders --before 2025-06-01 --confirm
  walstore trim data/orders --before -1000000 --json
  walstore trim unix:///run/orders.sock --before -7d --confirm
"""


async def trim(
    location: LocalOrServed,
    *,
    before: Annotated[
        str,
        option(
            "--before PLACE", "First record to stay: an offset, a time, -N for the last N, latest."
        ),
    ],
    confirm: Confirm = False,
) -> Report:
    """Remove the records before a place. A dry run without --confirm.

    Cursors pin the records from their position on. Segments wholly before the new head are deleted.
    --confirm opens a directory for writing, so the exit code is 4 if a writer has it, unless its address is
    given; the dry run takes no lock. A log with a tier is not trimmed beyond the records known to be there.
    """
    place = parse_place(before)
    if is_address(location):
        done = await _trim_served(location, place, is_confirmed=confirm)
        return Report(done, _trim_fields(done), is_dry_run=not confirm)
    path = to_directory(location, "trim")
    view = await asyncio.to_thread(LogSnapshot.open, path)
    async with open_location(str(path)) as log:
        offset = await place.resolve(log)
    done = await asyncio.to_thread(_plan_trim, view, offset)
    if confirm:
        async with Wal.open(path) as wal:
            done["new_head"] = await wal.trim(before=offset)
        done["applied"] = True
    return Report(done, _trim_fields(done), is_dry_run=not confirm)


def _plan_trim(view: LogSnapshot, before: int) -> dict[str, Any]:
    if view.tier_url is not None:
        _check_shipped(
            before, view.tier_url, max(view.uploaded_limit, view.head), "at the last checkpoint"
        )
    cursors = list_all_cursors(view.fs, view.path, SystemClock().now_us())
    sealed = [
        Extent(one.start, one.summary.limit, _size_bytes(one.path), "sealed", one.path.name)
        for one in view.segments
        if one.summary is not None
    ]
    return _trim_report(str(view.path), before, view.head, view.durable_limit, cursors, sealed)


def _size_bytes(path: Path) -> int:
    """Return the size of a segment; 0 if the writer has deleted it meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


async def _trim_served(location: str, place: StartPlace, *, is_confirmed: bool) -> dict[str, Any]:
    async with await connect_to(location) as wal:
        before = await place.resolve(wal)
        now, cursors, extents = await asyncio.gather(wal.statistics(), wal.cursors(), wal.extents())
        if extents.tier_url is not None:
            _check_shipped(before, extents.tier_url, max(now.uploaded_limit, now.local_head), "now")
        sealed = [one for one in extents.segments if one.kind == "sealed"]
        limit = now.durable_limit
        done = _trim_report(location, before, now.local_head, limit, cursors, sealed)
        if is_confirmed:
            await wal.trim(before=before)
            done["new_head"], done["applied"] = (await wal.statistics()).local_head, True
    return done


def _check_shipped(before: int, url: str, shipped: int, when: str) -> None:
    if before > shipped:
        raise UsageError(
            f"{url} held offsets below {shipped} {when}; "
            f"'walstore upload' the log before trimming it to {before}"
        )


def _trim_report(
    location: str,
    before: int,
    head: int,
    durable_limit: int,
    cursors: Sequence[CursorInfo],
    sealed: Sequence[Extent],
) -> dict[str, Any]:
    pins = [Pin(one.position, one.name) for one in cursors if not one.is_expired]
    new_head = plan_trim(
        before,
        head=head,
        durable_limit=durable_limit,
        now_us=SystemClock().now_us(),
        uploaded_limit=None,
        pins=pins,
    )
    gone = [(one.name, one.size_bytes or 0) for one in sealed if one.limit <= new_head]
    return {
        "location": location,
        "applied": False,
        "before": before,
        "head": head,
        "new_head": new_head,
        "durable_limit": durable_limit,
        "records": new_head - head,
        "segments": [{"name": name, "bytes": size_bytes} for name, size_bytes in gone],
        "bytes": sum(size_bytes for _, size_bytes in gone),
        "pinned_by": [
            {"name": pin.holder, "position": pin.offset} for pin in pins if pin.offset < before
        ],
    }


def _trim_fields(done: dict[str, Any]) -> Fields:
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
    return fields


GC_EXAMPLES = """\
  walstore gc plan s3://bucket/orders
  walstore gc apply s3://bucket/orders --confirm
  walstore gc apply s3://bucket/orders --keep-seconds 604800 --confirm --audit gc.jsonl
"""


async def gc(
    action: Annotated[
        Literal["plan", "apply"],
        argument("ACTION", "'plan' shows what would be removed, 'apply' removes it."),
    ],
    url: StoredAt,
    *,
    keep_bytes: Annotated[
        int, option("--keep-bytes N", "Always keep this many of the newest bytes.")
    ] = 0,
    keep_seconds: Annotated[
        float, option("--keep-seconds S", "Always keep records younger than this.")
    ] = 0.0,
    max_fragments: Annotated[
        int, option("--max-fragments N", "Most fragments to remove.")
    ] = 10_000,
    max_fraction: Annotated[
        float, option("--max-fraction F", "Refuse to remove more than this fraction of the bytes.")
    ] = 0.95,
    interval: Annotated[
        float, option("--interval S", "Wait for readers of older manifests.")
    ] = 3600.0,
    wait: Annotated[
        bool, option("--wait", "Wait for the interval instead of leaving the rest to a later run.")
    ] = False,
    audit: Annotated[
        str | None, option("--audit FILE", "Add a line of JSON for each removed object.")
    ] = None,
    confirm: Confirm = False,
) -> Report:
    """Remove the oldest fragments of a stored log, which no cursor needs. A dry run without --confirm.

    Without a cursor nothing is removed. Writers and readers may run. Fragments are first removed from
    the manifest, and deleted once no reader can still see them: --interval later, by the same command
    again, or with --wait by this one. After an interruption, the same command continues.
    """
    from uploader import CollectorSettings

    settings = CollectorSettings(
        interval_seconds=interval,
        keep_bytes=keep_bytes,
        keep_seconds=keep_seconds,
        max_fragments=max_fragments,
        max_drop_fraction=max_fraction,
        max_wait_seconds=None if wait else 0.0,
    )
    applies = action == "apply"
    found = await _collect(to_url(url, "gc"), settings, audit, is_applied=applies and confirm)
    notes = [f"refused: {finding}" for finding in found["findings"]]
    if found["due_us"] is not None and found["applied"]:
        due = format_time(found["due_us"])
        notes.append(f"what was dropped may be deleted from {due}Z on; run this again")
    return Report(found, _gc_fields(found), notes=notes, is_dry_run=applies and not confirm)


async def _collect(
    url: str, settings: CollectorSettings, audit: str | None, *, is_applied: bool
) -> dict[str, Any]:
    from uploader import GarbageCollector

    async with (
        GarbageCollector.open(url, settings=settings) as collector,
        _noting(audit if is_applied else None) as note,
    ):
        plan = await collector.plan()
        if not is_applied:
            return _gc_json(collector.url, plan, None)
        with progress_bar("collecting") as show:
            done = await collector.collect(
                progress=lambda at: show(at.done, at.total, at.phase), audit=note
            )
        return _gc_json(collector.url, plan, done)


@asynccontextmanager
async def _noting(path: str | None) -> AsyncIterator[AuditCallback | None]:
    """Add each line to a file at once, so that every removal is recorded even if the next step fails.

    UsageError before anything is removed if the file cannot be opened. OutputError if it cannot be written
    later, which ends the collection.
    """
    if path is None:
        yield None
        return
    lines: asyncio.Queue[str | None] = asyncio.Queue()
    try:
        file = await asyncio.to_thread(Path(path).open, "ab", buffering=0)
    except OSError as error:
        raise UsageError(
            f"--audit {path} cannot be written: {error.strerror or error}; nothing was removed"
        ) from None
    unwritten: list[str] = []
    with contextlib.closing(file):
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_write_lines(file, lines, unwritten))
                try:
                    yield lines.put_nowait
                finally:
                    lines.put_nowait(None)
        except* OutputError as errors:
            while not lines.empty():
                unwritten += filter(None, [lines.get_nowait()])
            raise OutputError(
                f"the audit file {path} cannot be written: {errors.exceptions[0]}; the collection was "
                "stopped, and the same command continues it. Removed, and not in the file: "
                + ", ".join(unwritten)
            ) from None


async def _write_lines(
    file: FileIO, lines: asyncio.Queue[str | None], unwritten: list[str]
) -> None:
    """Write lines until there is None; OutputError if one cannot be written, which is then in the list."""

    def write(data: bytes) -> None:
        while data:
            data = data[file.write(data) :]

    while (line := await lines.get()) is not None:
        try:
            await asyncio.to_thread(write, f"{line}\n".encode())
        except OSError as error:
            unwritten.append(line)
            raise OutputError(error.strerror or str(error)) from None


def _gc_json(location: str, plan: Plan, done: Collected | None) -> dict[str, Any]:
    return {
        "location": location,
        "applied": done is not None,
        "head": plan.head,
        "tail": plan.tail,
        "new_head": (plan.head if plan.is_empty else max(plan.head, plan.garbage.first_to_keep))
        if done is None
        else done.head,
        "cutoff": plan.cutoff.offset,
        "held_by": plan.cutoff.held_by,
        "records": plan.records,
        "fragments": plan.fragments,
        "bytes": plan.drop_bytes,
        "live_bytes": plan.live_bytes,
        "pending": plan.is_pending,
        "more": plan.has_more,
        "due_us": plan.due_us if done is None else done.due_us,
        "findings": list(plan.findings),
        "cursors": [{"name": one.name, "position": one.position} for one in plan.cursors],
        "deleted": [
            {"key": one.key, "kind": one.kind, "reason": one.reason, "at_us": one.at_us}
            for one in (() if done is None else done.deleted)
        ],
    }


def _gc_fields(found: dict[str, Any]) -> Fields:
    fields = [
        ("location", found["location"]),
        ("offsets", f"[{found['head']}, {found['tail']})"),
        ("kept from", f"{found['cutoff']} on, by {found['held_by']}"),
        ("new head", found["new_head"]),
        ("records", format_count(found["records"])),
        ("fragments", f"{found['fragments']}, {format_bytes(found['bytes'])}"),
    ]
    if found["pending"]:
        fields.append(("pending", "a collection that was announced before; this continues with it"))
    if found["more"]:
        fields.append(("more", "another collection can take more"))
    fields += [("cursor", f"{one['name']} at {one['position']}") for one in found["cursors"]]
    if found["applied"]:
        fields.append(("deleted", f"{len(found['deleted'])} objects"))
    return fields


SEAL_EXAMPLES = """\
  walstore seal s3://bucket/orders
  walstore seal s3://bucket/orders --confirm
  walstore seal file:///srv/bucket/orders --confirm --json
"""


async def seal(url: StoredAt, *, confirm: Confirm = False) -> Report:
    """Close a stored log to new records permanently. A dry run without --confirm.

    No append of any writer commits afterwards. The log can still be read, collected, forked
    and destroyed. Writers end with exit code 4. Sealing a sealed log changes nothing.
    """
    place = to_url(url, "seal")
    from uploader import seal
    from uploader.layouts.log_session import open_session

    async with open_session(place) as found:
        found.check_found()
        if confirm:
            await seal(place)
            await found.root.load()
        location, manifest = found.store.url, found.root.manifest
    head, tail, is_sealed = manifest.oldest_offset, manifest.next_offset, manifest.is_sealed
    done = {
        "location": location,
        "applied": confirm,
        "head": head,
        "tail": tail,
        "sealed": is_sealed,
    }
    fields = [
        ("location", location),
        ("offsets", f"[{head}, {tail})"),
        ("records", format_count(tail - head)),
        ("sealed", "yes" if is_sealed else "no"),
    ]
    return Report(done, fields, is_dry_run=not (confirm or is_sealed))


DESTROY_EXAMPLES = """\
  walstore destroy s3://bucket/orders
  walstore seal s3://bucket/orders --confirm && walstore destroy s3://bucket/orders --confirm
  walstore destroy s3://bucket/scratch --unsealed --confirm --json
"""


async def destroy(
    url: StoredAt,
    *,
    unsealed: Annotated[
        bool, option("--unsealed", "Even if the log is not sealed: it is sealed first.")
    ] = False,
    confirm: Confirm = False,
) -> Report:
    """Remove a stored log and all its objects permanently. A dry run without --confirm.

    Without --unsealed only a sealed log is removed, since another may be in use. A tombstone
    stays, so that no writer recreates the log by accident. Objects that are not part of a log stay.
    After an interruption, the same command continues.
    """
    place = to_url(url, "destroy")
    from uploader.format import layout
    from uploader.layouts.log_session import open_session

    async with open_session(place) as found:
        manifest = found.root.manifest
        location, is_known = found.store.url, found.root.is_known
        if not confirm:
            found.check_found()
        is_buried = await found.store.head(layout.TOMBSTONE) is not None
        if is_known and not (manifest.is_sealed or unsealed or is_buried):
            raise UsageError(
                f"{location} is not sealed and may be in use; seal it first, or give --unsealed"
            )
    done: dict[str, Any] = {
        "location": location,
        "applied": confirm,
        "head": manifest.oldest_offset if is_known else None,
        "tail": manifest.next_offset if is_known else None,
        "bytes": manifest.live_bytes if is_known else None,
        "objects": None,
        "object_bytes": None,
        "left": [],
    }
    if confirm:
        from uploader import destroy

        removed = await destroy(place, confirm=unsealed)
        done["objects"], done["object_bytes"] = removed.objects, removed.object_bytes
        done["left"] = list(removed.left)
    return Report(done, _destroyed_fields(done), is_dry_run=not confirm)


def _destroyed_fields(done: dict[str, Any]) -> Fields:
    fields: Fields = [("location", done["location"])]
    if done["head"] is not None:
        fields.append(("offsets", f"[{done['head']}, {done['tail']})"))
        fields.append(("fragments", format_bytes(done["bytes"])))
    if done["applied"]:
        size = format_bytes(done["object_bytes"])
        fields.append(("removed", f"{format_count(done['objects'])} objects, {size}"))
    fields += [("left", key) for key in done["left"]]
    return fields
