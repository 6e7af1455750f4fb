"""walstore collection create and show: tables in object storage that change over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from walstore.cli import collection_rows as rows
from walstore.cli.errors import UsageError
from walstore.cli.location import is_log, open_collection, to_url
from walstore.cli.options import CollectionAt, ColumnTypes, KeyColumns, LikeFile, option
from walstore.cli.output import format_bytes, format_count
from walstore.cli.report import Fields, Listing, Part, Report
from walstore.cli.running import run_async
from walstore.core.runtime.clock import SystemClock
from walstore.errors import CollectionNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

    from uploader import CollectionStatus

CREATE_EXAMPLES = """\
  walstore collection create s3://bucket/people --column id:int64 --column name:string:null \\
      --key id --kind upsert
  walstore collection create s3://bucket/sales --like sales.parquet --key region,day
  walstore collection create file:///srv/c --column 'at:timestamp[us, tz=UTC]' --column n:int64
"""


KindName: TypeAlias = Literal["diff", "upsert"]


def create(
    url: CollectionAt,
    *,
    column: ColumnTypes = None,
    like: LikeFile = None,
    key: KeyColumns = None,
    kind: Annotated[
        KindName, option("--kind", "Whether updates change counts of rows, or replace rows.")
    ] = "diff",
) -> Report:
    """Create a collection. An existing one with the same columns, key and kind does not change."""
    schema, names = wanted_schema(column, like, key)
    place = to_url(url, "collection create")
    made = run_async(make_collection(place, schema, names, kind))
    notes = [] if made["created"] else ["the collection exists; nothing was changed"]
    return Report(made, _schema_fields(made), notes=notes)


def wanted_schema(
    column: list[str] | None, like: str | None, key: str | None
) -> tuple[pa.Schema, list[str]]:
    """Return the columns and the key that the options describe; UsageError, OSError."""
    if bool(column) == bool(like):
        raise UsageError("give the columns, with --column for each or with --like FILE")
    names = [] if key is None else [name.strip() for name in key.split(",")]
    return (rows.columns_like(Path(like)) if like else rows.columns_of(column or [])), names


async def make_collection(
    url: str, schema: pa.Schema, key: Sequence[str], kind: KindName
) -> dict[str, Any]:
    """Create the collection unless it exists, and return what ``collection create --json`` says."""
    from uploader import Collection

    is_new = False
    try:
        opened = await Collection.open(url, schema=schema, key=key, kind=kind)
    except CollectionNotFoundError:
        if await is_log(url):
            raise UsageError(f"there is a log at {url}; choose a prefix of its own") from None
        opened = await Collection.open(url, create=True, schema=schema, key=key, kind=kind)
        is_new = True
    async with opened as collection:
        found = await collection.status()
        return {"location": collection.url, "created": is_new, **_schema_json(found)}


def _schema_json(found: CollectionStatus) -> dict[str, Any]:
    schema = found.schema
    columns = [
        {"name": one.name, "type": str(one.type), "nullable": one.nullable}
        for one in schema.columns
    ]
    return {"collection": found.collection, "kind": schema.kind, "key": list(schema.key)} | {
        "columns": columns
    }


def _schema_fields(found: dict[str, Any]) -> Fields:
    columns = [
        f"{one['name']} {one['type']}{', may be null' if one['nullable'] else ''}"
        for one in found["columns"]
    ]
    return [
        ("location", found["location"]),
        ("kind", found["kind"]),
        ("key", ", ".join(found["key"]) or "none"),
        *zip(("columns", *[""] * len(columns)), columns, strict=False),
    ]


SHOW_EXAMPLES = """\
  walstore collection show s3://bucket/people
  walstore collection show s3://bucket/people --json
  walstore collection show file:///srv/c --json | jq .held_by
"""


async def show(url: CollectionAt) -> Report:
    """Show the schema, frontiers, batches and readers of a collection, the newest first.

    The line 'behind' shows how many times before the latest one are still distinguished, and
    by which readers.
    """
    async with open_collection(to_url(url, "collection show")) as collection:
        found = _status_json(collection.url, await collection.status())
    return Report(found, *_status_parts(found))


def _status_json(location: str, found: CollectionStatus) -> dict[str, Any]:
    latest, now_us = found.upper - 1, SystemClock().now_us()
    readers = [
        {
            "name": name,
            "version": hold.version,
            "frontier": hold.frontier,
            "behind": max(latest - hold.frontier, 0),
            "lease_seconds": None
            if hold.expires_us is None
            else max(hold.expires_us - now_us, 0) / 1e6,
            "expires_us": hold.expires_us,
        }
        for name, hold in found.readers.items()
    ]
    readers.sort(key=lambda one: (one["frontier"], one["version"] or 0, one["name"]), reverse=True)
    furthest = min((hold.frontier for hold in found.readers.values()), default=None)
    return {
        "location": location,
        **_schema_json(found),
        "schema": found.schema.id,
        "version": found.version,
        "upper": found.upper,
        "merged_upper": found.merged_upper,
        "since": found.since,
        "behind": max(latest - found.since, 0),
        "held_by": sorted(one["name"] for one in readers if one["frontier"] == furthest),
        "gc_floor": found.gc_floor,
        "epoch": found.epoch,
        "controller": found.holder,
        "batches": [
            {
                "lower": one.lower,
                "upper": one.upper,
                "since": one.since,
                "layer": one.layer,
                "rows": one.rows,
                "bytes": one.size_bytes,
                "objects": len(one.keys),
            }
            for one in reversed(found.batches)
        ],
        "pending": {
            "batches": found.pending_batches,
            "rows": found.pending_rows,
            "bytes": found.pending_bytes,
        },
        "readers": readers,
    }


def _status_parts(found: dict[str, Any]) -> Iterator[Part]:
    pending = found["pending"]
    yield [
        *_schema_fields(found),
        ("version", found["version"]),
        ("upper", f"{found['upper']}, merged up to {found['merged_upper']}"),
        ("since", found["since"]),
        ("behind", _behind(found)),
        ("pending", f"{pending['batches']} batches, {_size(pending)}"),
        ("controller", found["controller"] or "none"),
    ]
    if found["batches"]:
        yield ""
        names = ("lower", "upper", "since", "layer", "rows", "bytes")
        yield Listing(names, [[one[name] for name in names] for one in found["batches"]])
    if found["readers"]:
        yield ""
        rows = [
            (
                one["name"],
                "-" if one["version"] is None else one["version"],
                one["frontier"],
                one["behind"],
                _lease_left(one["lease_seconds"]),
            )
            for one in found["readers"]
        ]
        yield Listing(("reader", "version", "frontier", "behind", "lease left"), rows)


def _behind(found: dict[str, Any]) -> str:
    behind = found["behind"]
    if not found["readers"]:
        return f"{format_count(behind)} times; there is no reader, so since stays where it is"
    return f"{format_count(behind)} times, held by {', '.join(found['held_by'])}"


def _size(found: dict[str, Any]) -> str:
    return f"{format_count(found['rows'])} rows, {format_bytes(found['bytes'])}"


def _lease_left(seconds: float | None) -> str:
    if seconds is None:
        return "critical, no lease"
    return f"{seconds:.0f} s" if seconds else "ended"
