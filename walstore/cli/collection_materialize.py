"""walstore collection materialize: a collection kept up to date with a log, also by walstore sidecar."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

import typer

from walstore import ReadonlyWal
from walstore.cli.collection import KindName, make_collection, wanted_schema
from walstore.cli.errors import UsageError
from walstore.cli.landing import report_landing, showing
from walstore.cli.location import open_collection, to_directory, to_url
from walstore.cli.options import AsJson, ColumnTypes, KeyColumns, LikeFile, argument, option
from walstore.cli.report import Report
from walstore.cli.running import run_async, stop_on_signal, until_stopped
from walstore.core.runtime.clock import SystemClock
from walstore.location import is_url
from walstore.spark.sidecar.sidecar_settings import SidecarSettings, TableFormat

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from uploader import CloudLog
    from walstore.spark.sidecar import Observer, Summary

MATERIALIZE_EXAMPLES = """\
  walstore collection materialize data/changes s3://bucket/book --envelope debezium
  walstore collection materialize s3://bucket/changes s3://bucket/book --envelope upsert --follow
  walstore collection materialize data/orders file:///srv/orders --envelope append --cursor orders \\
      --create --column id:int64 --column cents:int64
"""
_DEFAULT_TRIGGER_SECONDS = 1.0
_BATCH_RECORDS = 100_000


EnvelopeName: TypeAlias = Literal["append", "upsert", "debezium"]


def materialize(
    log: Annotated[
        str, argument("LOG", "A log directory, or a stored log's URL.", show_default=False)
    ],
    collection: Annotated[
        str,
        argument(
            "COLLECTION",
            "Where the collection is: s3://bucket/prefix or file:///directory.",
            show_default=False,
        ),
    ],
    *,
    envelope: Annotated[
        EnvelopeName, option("--envelope", "Form of the records: a row, a row for a key, a change.")
    ],
    follow: Annotated[
        bool, option("--follow -f", "Continue with new records, until interrupted.")
    ] = False,
    trigger_seconds: Annotated[
        float, option("--trigger-seconds S", "With --follow, begin a batch every S seconds.")
    ] = _DEFAULT_TRIGGER_SECONDS,
    cursor: Annotated[
        str | None,
        option(
            "--cursor NAME",
            "Cursor that protects records not yet in the collection from removal.",
        ),
    ] = None,
    create: Annotated[bool, option("--create", "Create a missing collection.")] = False,
    column: ColumnTypes = None,
    like: LikeFile = None,
    key: KeyColumns = None,
    kind: Annotated[
        KindName | None, option("--kind", "With --create; default: the envelope's kind.")
    ] = None,
    as_json: AsJson = False,
) -> Report:
    """Bring a collection up to date with a log: each record once, at the time that is its offset.

    It begins where the collection ends, so it may be killed and restarted, and two may run at once. A record
    that does not fit stops it with its offset, and its batch is not written. With --follow, SIGINT and
    SIGTERM end it with code 0.
    """
    settings = SidecarSettings(
        location=log,
        table=to_url(collection, "collection materialize"),
        table_format=TableFormat.COLLECTION,
        envelope=envelope,
        cursor=cursor,
        is_once=not follow,
        trigger_seconds=trigger_seconds,
        max_records=_BATCH_RECORDS,
    )
    if not follow and trigger_seconds != _DEFAULT_TRIGGER_SECONDS:
        raise UsageError("--trigger-seconds goes with --follow")
    make = None
    if create:
        schema, names = wanted_schema(column, like, key)
        fitting = _fitting_kind(envelope, kind)

        async def make() -> object:
            return await make_collection(settings.table, schema, names, fitting)

    elif column or like or key or kind:
        raise UsageError("--column, --like, --key and --kind go with --create")
    with showing(as_json=as_json) as observer:
        summary = run_async(land(settings, observer, cursor=cursor, make=make))
    if summary.is_stopped and not follow:
        raise typer.Abort
    return report_landing(settings, summary, cursor)


def _fitting_kind(envelope: EnvelopeName, kind: KindName | None) -> KindName:
    """Return the kind of a new collection; UsageError if it does not fit the envelope."""
    from uploader.versioned.envelope import ENVELOPES

    kinds = ENVELOPES[envelope]
    if kind is not None and kind not in kinds:
        raise UsageError(f"--envelope {envelope} needs --kind {' or '.join(kinds)}")
    return kind or cast("KindName", kinds[0])


async def land(
    settings: SidecarSettings,
    observer: Observer,
    *,
    cursor: str | None,
    make: Callable[[], Awaitable[object]] | None = None,
    registry: CollectorRegistry | None = None,
) -> Summary:
    """Land a log in a collection, and return what was done when it ends or a signal stops it.

    Only within :func:`run_async`. ``make`` is called once the log is open, before the collection is opened.
    Metrics of the collection are shown in ``registry``. Errors as of :class:`CollectionLanding`.
    """
    from uploader import CollectionMetrics
    from walstore.spark.sidecar.collection_landing import CollectionLanding

    with stop_on_signal() as stop:
        async with _open_log(settings.location) as log:
            if make is not None:
                await make()
            async with (
                open_collection(settings.table) as collection,
                asyncio.TaskGroup() as tasks,
            ):
                landing = CollectionLanding(
                    log,
                    collection,
                    name=(_name(settings.location), 0),
                    envelope=cast("Any", settings.envelope),
                    cursor=cursor,
                    warn=observer.warned,
                    clock=SystemClock(),
                    is_once=settings.is_once,
                    trigger_seconds=settings.trigger_seconds,
                    max_records=settings.max_records,
                )
                await asyncio.to_thread(observer.started, await landing.start())
                watching = None
                if registry is not None:
                    watching = tasks.create_task(CollectionMetrics(registry).watch(collection))
                async for report in until_stopped(landing.landings(), stop):
                    await asyncio.to_thread(observer.landed, report)
                if watching is not None:
                    watching.cancel()
        return landing.summary(is_stopped=stop.is_set())


def _name(location: str) -> str:
    """Return what a log is called in reports: the last part of its path."""
    if is_url(location):
        return location.partition("?")[0].rstrip("/").rpartition("/")[2]
    return Path(location).absolute().name


@contextlib.asynccontextmanager
async def _open_log(location: str) -> AsyncIterator[ReadonlyWal | CloudLog]:
    """Open the log at a directory or store URL for reading; raises the typed errors of both."""
    if is_url(location):
        from uploader import CloudLog

        async with CloudLog.open(location) as stored:
            yield stored
    else:
        async with ReadonlyWal.open(to_directory(location, "collection materialize")) as local:
            yield local
