"""walstore table: a stored log as an Iceberg table, by its fragments or by copies with typed columns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from walstore.cli.errors import UsageError
from walstore.cli.location import parse_place, to_url
from walstore.cli.options import (
    AsJson,
    CatalogUri,
    Confirm,
    IcebergName,
    StoredAt,
    Warehouse,
    option,
)
from walstore.cli.options import iceberg_target as target_of
from walstore.cli.output import format_count
from walstore.cli.report import Report
from walstore.cli.running import stop_on_signal, until_stopped

if TYPE_CHECKING:
    from uploader import IcebergTarget, LogTable, Registered

    Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[LogTable]]

TABLE_EXAMPLES = """\
  walstore table s3://bucket/orders --to iceberg:shop.orders
  walstore table s3://bucket/orders --to iceberg:prod/shop.orders --follow
  walstore table file:///srv/orders --to iceberg:shop.orders --catalog-uri sqlite:////srv/c.db --warehouse file:///srv/lake
  walstore table s3://bucket/orders --to iceberg:shop.orders --release 2025-06-01 --confirm
  walstore table s3://bucket/orders --to iceberg:shop.typed --column id:long --column n:int:/lines/0/n
"""


async def table(
    url: StoredAt,
    *,
    to: IcebergName,
    catalog_uri: CatalogUri = None,
    warehouse: Warehouse = None,
    follow: Annotated[bool, option("--follow -f", "Continue with new fragments.")] = False,
    column: Annotated[
        list[str] | None,
        option(
            "--column NAME:TYPE[:/POINTER]",
            "Copy the records, with this typed column of their JSON values; repeatable.",
        ),
    ] = None,
    copy: Annotated[bool, option("--copy", "Copy the records, without unsigned columns.")] = False,
    strict: Annotated[
        bool, option("--strict", "Stop at a value that does not fit its column.")
    ] = False,
    release: Annotated[
        str | None,
        option(
            "--release PLACE",
            "Instead remove the fragments before this place from the table, so that gc may delete them.",
        ),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be registered.")] = False,
    confirm: Confirm = False,
    as_json: AsJson = False,
) -> Report | None:
    """Register the fragments of a stored log in an Iceberg table, each once.

    The table refers to the log's own objects without a copy. A cursor protects them from gc. Any number of
    commands may run, and after an interruption the same command continues. --release is a dry run
    without --confirm. With --follow, SIGINT and SIGTERM end it with exit code 0.

    With --copy or --column, the table gets copies of the records instead. The types are boolean, int,
    long, double, string, date, timestamptz and decimal(p,s). Without --strict a value that does not fit
    becomes null.
    """
    if release is None and confirm:
        raise UsageError("--confirm goes with --release; registering needs none")
    if follow and (release is not None or dry_run):
        raise UsageError("--follow registers without an end; give neither --release nor --dry-run")
    if release is not None and dry_run:
        raise UsageError("--release is a dry run unless --confirm is given; leave --dry-run out")
    if strict and not column:
        raise UsageError("--strict goes with --column")
    if (copy or column) and release is not None:
        raise UsageError(
            "--release is for tables of fragments; a table of copies holds nothing of the log"
        )
    target = target_of(to, catalog_uri, warehouse)
    opened = partial(
        _opened, to_url(url, "table"), target, columns=column, copy=copy, strict=strict
    )
    if release is not None:
        done = await _release(opened, target, release, is_confirmed=confirm)
    elif follow:
        await _follow(opened, as_json=as_json)
        return None
    else:
        done = await _register(opened, target, is_dry=dry_run)
    fields = [
        ("location", done["location"]),
        ("table", done["table"]),
        ("offsets", f"[{done['start']}, {done['limit']})"),
        ("released" if release is not None else "records", format_count(done["records"])),
    ]
    if "fragments" in done:
        fields.append(("fragments", format_count(done["fragments"])))
    if column and not dry_run:
        fields.append(("misfits", format_count(done["misfits"])))
    fields.append(("cursor", done["cursor"] or "-"))
    notes = ["nothing was changed; leave --dry-run out to do this"] if dry_run else []
    return Report(done, fields, notes=notes, is_dry_run=not (dry_run or done["applied"]))


async def _register(opening: Opening, target: IcebergTarget, *, is_dry: bool) -> dict[str, Any]:
    async with opening() as opened:
        done = await opened.plan() if is_dry else await opened.step()
        records, fragments, misfits = done.records, done.fragments, done.misfits
        end = opened.log.tail
        while not is_dry and done.limit < end:
            done = await opened.step()
            records, fragments = records + done.records, fragments + done.fragments
            misfits += done.misfits
        return {
            **await _described(opened, target),
            "applied": not is_dry,
            "start": done.start,
            "limit": done.limit,
            "records": records,
            "fragments": fragments,
            "misfits": misfits,
        }


async def _release(
    opening: Opening, target: IcebergTarget, place: str, *, is_confirmed: bool
) -> dict[str, Any]:
    before = parse_place(place)
    async with opening() as opened:
        offset = await before.resolve(opened.log)
        done = await opened.release(offset, dry_run=not is_confirmed)
        return {
            **await _described(opened, target),
            "applied": is_confirmed,
            "start": done.start,
            "limit": done.limit,
            "records": done.records,
        }


async def _described(opened: LogTable, target: IcebergTarget) -> dict[str, Any]:
    return {
        "location": opened.log.url,
        "table": str(target),
        "cursor": await opened.cursor(),
    }


async def _follow(opening: Opening, *, as_json: bool) -> None:
    with stop_on_signal() as stop:
        async with opening() as opened:
            async for done in until_stopped(opened.follow(), stop):
                _show(done, as_json=as_json)


def _show(done: Registered, *, as_json: bool) -> None:
    line = {
        "start": done.start,
        "limit": done.limit,
        "records": done.records,
        "fragments": done.fragments,
        "misfits": done.misfits,
    }
    text = f"{format_count(done.records)} records, [{done.start}, {done.limit}) in the table"
    Report(line, text).print(as_json=as_json)


@asynccontextmanager
async def _opened(
    url: str, target: IcebergTarget, *, columns: list[str] | None, copy: bool, strict: bool
) -> AsyncIterator[LogTable]:
    from uploader import LogTable

    async with LogTable.open(
        url, target, columns=columns or None, copy=copy, strict=strict
    ) as opened:
        yield opened
