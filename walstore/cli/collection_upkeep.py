"""walstore collection compact, gc, expire and delete: what keeps a collection small, and what ends it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from walstore.cli.location import at_collection, open_collection, to_url
from walstore.cli.options import CollectionAt, Confirm, TakeControl, argument, option
from walstore.cli.output import complain, format_bytes, format_count
from walstore.cli.report import Fields, Report
from walstore.cli.running import run_async
from walstore.errors import CollectionNotFoundError, CorruptionError

if TYPE_CHECKING:
    from uploader import (
        Collection,
        CollectionStatus,
        Compacted,
        CompactionPlan,
        Controller,
        MergeEngine,
        Purged,
    )


COMPACT_EXAMPLES = """\
  walstore collection compact s3://bucket/people
  walstore collection compact s3://bucket/people --confirm
  walstore collection compact s3://bucket/people --full --confirm --json
  walstore collection compact s3://bucket/people --full --engine spark --confirm
"""


def compact(
    url: CollectionAt,
    *,
    full: Annotated[
        bool, option("--full", "Merge everything into one batch, without overwritten rows.")
    ] = False,
    engine: Annotated[
        Literal["local", "spark"],
        option(
            "--engine",
            "Engine for more rows than fit in memory: this process in several passes, or Spark.",
        ),
    ] = "local",
    take_over: TakeControl = False,
    confirm: Confirm = False,
) -> Report:
    """Merge pending batches and batches of similar size. A dry run without --confirm.

    Times that no reader distinguishes become one; updates that cancel out or were overwritten are dropped.
    The dry run shows the first pass. With --confirm the exit code is 4 if another controller is active.
    """
    place = to_url(url, "collection compact")
    is_spark = engine == "spark"
    if confirm:
        with _merging(is_spark=is_spark) as merger:
            done = run_async(_compact(place, merger, is_full=full, take_over=take_over))
    else:
        done = run_async(_plan_compaction(place, is_full=full, is_spark=is_spark))
    return Report(done, _compaction_fields(done), is_dry_run=not confirm)


@contextmanager
def _merging(*, is_spark: bool) -> Iterator[Literal["local"] | MergeEngine]:
    """Yield the engine. A Spark session is made for it and stopped; WalError without Java."""
    if not is_spark:
        yield "local"
        return
    from walstore.spark import local_session, merge_engine

    spark = local_session(app_name="walstore collection compact")
    try:
        yield merge_engine(spark)
    finally:
        spark.stop()


async def _plan_compaction(url: str, *, is_full: bool, is_spark: bool) -> dict[str, Any]:
    async with _watch(url, is_unlimited=is_spark) as (location, controller):
        plan = await controller.plan(full=is_full)
        return {
            "location": location,
            "applied": False,
            "plan": None if plan is None else _plan_json(plan),
            **dict.fromkeys(_DONE),
        }


_DONE = (
    "passes",
    "rows_read",
    "rows_written",
    "bytes_read",
    "bytes_written",
    "version",
    "upper",
    "since",
)


def _plan_json(plan: CompactionPlan) -> dict[str, Any]:
    return {
        "lower": plan.lower,
        "upper": plan.upper,
        "since": plan.since,
        "batches": len(plan.run),
        "pending": len(plan.parts),
        "rows": plan.rows,
        "bytes": plan.size_bytes,
    }


async def _compact(
    url: str, engine: Literal["local"] | MergeEngine, *, is_full: bool, take_over: bool
) -> dict[str, Any]:
    async with _control(url, take_over=take_over) as (location, controller):
        done: Compacted = await controller.compact(engine=engine, full=is_full)
        figures = {name: getattr(done, name) for name in _DONE}
        return {"location": location, "applied": True, "plan": None, **figures}


def _compaction_fields(done: dict[str, Any]) -> Fields:
    fields: Fields = [("location", done["location"])]
    plan = done["plan"]
    if done["applied"]:
        fields += [
            ("passes", done["passes"]),
            ("read", _size(done["rows_read"], done["bytes_read"])),
            ("written", _size(done["rows_written"], done["bytes_written"])),
            ("version", done["version"]),
            ("merged up to", done["upper"]),
            ("since", done["since"]),
        ]
    elif plan is None:
        fields.append(("first pass", "nothing to do"))
    else:
        fields += [
            (
                "first pass",
                f"[{plan['lower']}, {plan['upper']}), times up to {plan['since']} as one",
            ),
            ("inputs", f"{plan['batches']} batches, {plan['pending']} pending"),
            ("size", _size(plan["rows"], plan["bytes"])),
        ]
    return fields


def _size(rows: int, size_bytes: int) -> str:
    return f"{format_count(rows)} rows, {format_bytes(size_bytes)}"


GC_EXAMPLES = """\
  walstore collection gc s3://bucket/people
  walstore collection gc s3://bucket/people --confirm
  walstore collection gc s3://bucket/people --take-over --confirm --json
"""


async def gc(
    url: CollectionAt, *, take_over: TakeControl = False, confirm: Confirm = False
) -> Report:
    """Remove objects that no reader needs, an hour after they were replaced. A dry run without --confirm.

    After an interruption, the same command continues. With --confirm the exit code is 4 if another controller
    is active.
    """
    place = to_url(url, "collection gc")
    opened = _control(place, take_over=take_over) if confirm else _watch(place)
    async with opened as (location, controller):
        swept: Purged = await controller.gc(dry_run=not confirm)
    found = {
        "location": location,
        "applied": confirm,
        "pending": swept.pending,
        "merged": swept.merged,
        "versions": swept.versions,
        "bytes": swept.size_bytes,
        "gc_floor": swept.gc_floor,
        "purged": swept.purged,
        "held_by": swept.held_by,
    }
    fields = [
        ("location", location),
        ("pending", f"{swept.pending} batches"),
        ("merged", f"{swept.merged} objects"),
        ("versions", swept.versions),
        ("size", format_bytes(swept.size_bytes)),
        ("kept from", f"version {swept.gc_floor} on, {_held(swept.held_by)}"),
    ]
    return Report(found, fields, is_dry_run=not confirm)


def _held(reader: str | None) -> str:
    return "no reader holds an older one" if reader is None else f"held by {reader}"


EXPIRE_EXAMPLES = """\
  walstore collection expire s3://bucket/people report
  walstore collection expire s3://bucket/people report --confirm
  walstore collection expire s3://bucket/people report --take-over --confirm --json
"""


async def expire(
    url: CollectionAt,
    reader: Annotated[
        str,
        argument("READER", "Its name, as shown by 'walstore collection show'.", show_default=False),
    ],
    *,
    take_over: TakeControl = False,
    confirm: Confirm = False,
) -> Report:
    """Remove a reader, leased or critical, and its hold. A dry run without --confirm.

    If its program still runs, its next read fails. With --confirm the exit code is 4 if another controller
    is active.
    """
    place = to_url(url, "collection expire")
    async with open_collection(place) as collection:
        found = await collection.status()
        hold = found.readers.get(reader)
        if hold is None:
            raise _no_reader(reader, collection.url)
        if confirm:
            async with _control(place, take_over=take_over) as (_, controller):
                if not await controller.expire(reader):
                    raise _no_reader(reader, collection.url)
            found = await collection.status()
    done = {
        "location": collection.url,
        "applied": confirm,
        "reader": reader,
        "frontier": hold.frontier,
        "version": hold.version,
        "expires_us": hold.expires_us,
        "since": found.since,
    }
    held = "no version" if hold.version is None else f"version {hold.version}"
    fields = [
        ("location", collection.url),
        ("reader", reader),
        ("held", f"times from {hold.frontier} on, {held}"),
        ("since", found.since),
    ]
    return Report(done, fields, is_dry_run=not confirm)


def _no_reader(name: str, location: str) -> CollectionNotFoundError:
    return CollectionNotFoundError(
        f"the collection at {location} has no reader {name!r}", location=location
    )


DELETE_EXAMPLES = """\
  walstore collection delete s3://bucket/people
  walstore collection delete s3://bucket/people --confirm
  walstore collection delete file:///srv/scratch --confirm --json
"""


async def delete(url: CollectionAt, *, confirm: Confirm = False) -> Report:
    """Remove a collection permanently, even if it is in use. A dry run without --confirm.

    A mark stays, so that no collection is created in its place. After an interruption, the same command
    continues; repeated, it removes objects written in the meantime.
    """
    done = await _delete(to_url(url, "collection delete"), is_confirmed=confirm)
    fields = [
        ("location", done["location"]),
        ("removed" if confirm else "would go", f"{format_count(done['objects'])} objects"),
    ]
    if done["rows"] is not None:
        fields.append(("size", _size(done["rows"], done["bytes"])))
    fields += [("reader", name) for name in done["readers"] or ()]
    return Report(done, fields, is_dry_run=not confirm)


async def _delete(url: str, *, is_confirmed: bool) -> dict[str, Any]:
    """Delete the collection, or say what would go; also if it is damaged, or its deletion was interrupted."""
    from uploader import Collection
    from uploader.versioned.collection_session import CollectionSession

    size: dict[str, Any] = dict.fromkeys(("rows", "bytes", "readers"))
    async with at_collection(url), Collection(CollectionSession(url)) as collection:
        if is_confirmed:
            count = await collection.delete()
        else:
            count = await collection.delete(dry_run=True)
            try:
                size |= await _size_of(collection)
            except CollectionNotFoundError:
                if not count:
                    raise
        return {
            "location": collection.url,
            "applied": is_confirmed,
            **size,
            "objects": count,
        }


async def _size_of(collection: Collection) -> dict[str, Any]:
    """Return what a collection holds, as far as it can be read."""
    try:
        found: CollectionStatus = await collection.status()
    except CorruptionError as error:
        complain(f"the collection is damaged: {error}")
        return {}
    return {
        "rows": found.pending_rows + sum(one.rows for one in found.batches),
        "bytes": found.pending_bytes + sum(one.size_bytes for one in found.batches),
        "readers": sorted(found.readers),
    }


@asynccontextmanager
async def _control(url: str, *, take_over: bool) -> AsyncIterator[tuple[str, Controller]]:
    """Be the controller of the collection; yield its location and the controller."""
    from uploader import Controller

    async with (
        open_collection(url) as collection,
        Controller.open(url, take_over=take_over) as controller,
    ):
        yield collection.url, controller


@asynccontextmanager
async def _watch(url: str, *, is_unlimited: bool = False) -> AsyncIterator[tuple[str, Controller]]:
    """Yield the location and a controller for dry runs alone; ``is_unlimited``: its passes have no limit.

    It has the epoch of the one that is at work and is not noted in the head, so it fences nobody.
    """
    from uploader import Controller, ControllerSettings
    from uploader.versioned.collection_session import CollectionSession
    from uploader.versioned.merging import UNLIMITED_ROWS

    settings = (
        ControllerSettings(most_rows=UNLIMITED_ROWS) if is_unlimited else ControllerSettings()
    )
    async with at_collection(url):
        session = CollectionSession(url)
        try:
            head = await session.head.load()
            yield session.store.url, Controller(session, head.epoch, settings)
        finally:
            await session.aclose()
