"""walstore sidecar: land a log in a table with Spark, or in a versioned collection, each record once."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from walstore.cli.collection_materialize import EnvelopeName, land
from walstore.cli.errors import UsageError
from walstore.cli.landing import Several, report_landing, showing
from walstore.cli.location import to_directory, to_url
from walstore.cli.options import AsJson, argument, option
from walstore.cli.output import complain
from walstore.cli.report import Report
from walstore.cli.running import STOP_SIGNALS, run_async
from walstore.core.runtime.clock import SystemClock
from walstore.location import is_url
from walstore.spark.sidecar.sidecar_settings import (
    DEFAULT_MAX_RECORDS,
    DEFAULT_TRIGGER_SECONDS,
    SidecarSettings,
    TableFormat,
)

if TYPE_CHECKING:
    from walstore.spark.sidecar import Observer, Summary
    from walstore.spark.sidecar.metrics import SidecarMetrics

SIDECAR_EXAMPLES = """\
  walstore sidecar s3://bucket/orders --to s3a://lake/orders
  walstore sidecar data/orders --to tables/orders --once
  walstore sidecar data/orders --to tables/o --format delta --packages io.delta:delta-spark_4.2_2.13:4.4.0
  walstore sidecar s3://bucket/logs --subscribe orders,payments --to tables/all --partition-by topic,date
  walstore sidecar s3://bucket/orders --to s3://bucket/book --format collection --envelope debezium
"""


SparkLog: TypeAlias = Literal["off", "error", "warn", "info"]
"""How much Spark itself writes to stderr."""


def sidecar(
    location: Annotated[
        str,
        argument(
            "LOCATION",
            "A log directory or a store URL; with --subscribe the parent of several logs.",
        ),
    ],
    *,
    to: Annotated[str, option("--to TABLE", "Path or URL of the table, or a collection's URL.")],
    checkpoint: Annotated[
        str | None, option("--checkpoint PATH", "Spark's checkpoint; TABLE/_checkpoint by default.")
    ] = None,
    table_format: Annotated[
        TableFormat, option("--format NAME", "'parquet', 'delta', 'iceberg' or 'collection'.")
    ] = TableFormat.PARQUET,
    envelope: Annotated[
        EnvelopeName | None,
        option(
            "--envelope NAME",
            "Form of the records, for a collection: 'append', 'upsert' or 'debezium'.",
        ),
    ] = None,
    trigger_seconds: Annotated[
        float, option("--trigger-seconds S", "Begin a batch every S seconds; 0: without a pause.")
    ] = DEFAULT_TRIGGER_SECONDS,
    once: Annotated[
        bool, option("--once --available-now", "End when all existing records have landed.")
    ] = False,
    max_records: Annotated[
        int, option("--max-records-per-trigger N", "Most records of one batch.")
    ] = DEFAULT_MAX_RECORDS,
    subscribe: Annotated[
        str | None, option("--subscribe NAMES", "Logs below LOCATION, separated by commas.")
    ] = None,
    pattern: Annotated[
        str | None, option("--subscribe-pattern REGEX", "Logs below LOCATION that match.")
    ] = None,
    partition_by: Annotated[
        str,
        option(
            "--partition-by COLUMNS",
            "Divide the table by some of stream, topic, partition, date, hour.",
        ),
    ] = "",
    no_headers: Annotated[
        bool, option("--no-headers", "Omit the column headers from the table.")
    ] = False,
    cursor: Annotated[
        str | None, option("--cursor NAME", "Name of the cursor that holds the log.")
    ] = None,
    master: Annotated[
        str | None, option("--master URL", "Spark's master; this machine by default.")
    ] = None,
    config: Annotated[
        list[str] | None, option("--config --conf NAME=VALUE", "A setting of Spark's; repeatable.")
    ] = None,
    packages: Annotated[
        list[str] | None,
        option(
            "--packages COORDINATES",
            "Maven packages for Spark to fetch, separated by commas; repeatable.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None, option("--metrics-port PORT", "Serve metrics for Prometheus.")
    ] = None,
    spark_log: Annotated[
        SparkLog, option("--spark-log LEVEL", "Spark's log level: 'off', 'error', 'warn', 'info'.")
    ] = "off",
    as_json: AsJson = False,
) -> Report:
    """Copy a log continuously into a table, until SIGINT or SIGTERM.

    A Spark streaming query writes the table; --format collection needs no Spark, and the table is an
    existing versioned collection.

    Each record lands once, even after a kill: start it again with the same TABLE. A cursor in the log
    protects records that have not landed from collection. On a signal it gives the running batch 15 s to
    finish or abandons it, and ends with code 0; a second signal ends it immediately.
    """
    if not is_url(location):
        to_directory(location, "sidecar")
    settings = SidecarSettings(
        location=location,
        table=to,
        checkpoint=checkpoint,
        table_format=table_format,
        trigger_seconds=trigger_seconds,
        is_once=once,
        max_records=max_records,
        subscribe=subscribe,
        subscribe_pattern=pattern,
        partition_by=tuple(name.strip() for name in partition_by.split(",") if name.strip()),
        has_headers=not no_headers,
        cursor=cursor,
        master=master,
        config=add_packages(parse_config(config or []), packages or []),
        envelope=envelope,
    )
    is_collection = table_format is TableFormat.COLLECTION
    if is_collection:
        to_url(to, "sidecar --format collection")
        if spark_log != "off":
            raise UsageError("--spark-log is for tables; a collection is kept without Spark")
    run = _keep if is_collection else _run
    summary = run(settings, metrics_port, spark_log, as_json=as_json)
    return report_landing(settings, summary, settings.cursor_name)


def _run(
    settings: SidecarSettings, metrics_port: int | None, spark_log: SparkLog, *, as_json: bool
) -> Summary:
    from walstore.spark.environment import require

    require()
    from walstore.spark.sidecar.sidecar import Sidecar

    with _observing(metrics_port, as_json=as_json) as (everybody, _):
        running = Sidecar(settings, everybody, clock=SystemClock(), spark_log_level=spark_log)
        with _stopping_on_signal(running.stop) as take:
            everybody.on_start = take
            return running.run()


def _keep(
    settings: SidecarSettings, metrics_port: int | None, _spark_log: SparkLog, *, as_json: bool
) -> Summary:
    """Keep a collection up to date; Spark takes no part."""
    with _observing(metrics_port, as_json=as_json) as (everybody, metrics):
        registry = None if metrics is None else metrics.registry
        return run_async(land(settings, everybody, cursor=settings.cursor_name, registry=registry))


@contextlib.contextmanager
def _observing(
    metrics_port: int | None, *, as_json: bool
) -> Iterator[tuple[Several, SidecarMetrics | None]]:
    """Yield who is told what happens, and the metrics among them, which are served meanwhile."""
    with contextlib.ExitStack() as stack:
        observers: list[Observer] = [stack.enter_context(showing(as_json=as_json))]
        metrics = None
        if metrics_port is not None:
            from walstore.spark.sidecar.metrics import serving

            metrics, port = stack.enter_context(serving(metrics_port))
            observers.insert(0, metrics)  # who has read a line finds the metrics as new
            complain(f"metrics at port {port}")
        yield Several(observers), metrics


@contextlib.contextmanager
def _stopping_on_signal(stop: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Let the first SIGINT or SIGTERM call ``stop``, and the next end the process.

    Yields what takes the signals again: PySpark takes SIGINT when its context is made.
    """
    stopped = threading.Event()

    def handle(_number: int, _frame: object) -> None:
        stopped.set()
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        stop()

    def take() -> None:
        with contextlib.suppress(ValueError):  # not the main thread, which gets no signals
            for number in STOP_SIGNALS:
                if not stopped.is_set():
                    signal.signal(number, handle)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        take()
        yield take
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):
                signal.signal(number, handler)


_PACKAGES: Final = "spark.jars.packages"
_PACKAGE: Final = re.compile(r"[^:\s]+:[^:\s]+:[^:\s]+")


def parse_config(given: list[str]) -> dict[str, str]:
    """Return settings given as ``NAME=VALUE``; UsageError for others."""
    found = {}
    for text in given:
        name, mark, value = text.partition("=")
        if not mark or not name.strip():
            raise UsageError(f"--config takes NAME=VALUE, not {text!r}")
        found[name.strip()] = value.strip()
    return found


def add_packages(config: dict[str, str], given: list[str]) -> dict[str, str]:
    """Return the settings with these Maven packages besides those that they name; UsageError for others."""
    found = [name.strip() for text in given for name in text.split(",") if name.strip()]
    strange = [name for name in found if not _PACKAGE.fullmatch(name)]
    if strange:
        raise UsageError(f"--packages takes GROUP:NAME:VERSION, not {strange[0]!r}")
    named = [config[_PACKAGES], *found] if _PACKAGES in config else found
    return {**config, _PACKAGES: ",".join(named)} if named else config
