"""walstore sidecar: land a log in a table with Spark, each record once."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.status import Status

from walstore.cli.errors import UsageError
from walstore.cli.location import is_url, to_directory
from walstore.cli.options import AsJson
from walstore.cli.output import complain, format_count, print_fields, print_json, terminal
from walstore.cli.running import STOP_SIGNALS
from walstore.runtime.clock import SystemClock
from walstore.spark.sidecar.settings import (
    DEFAULT_MAX_RECORDS,
    DEFAULT_TRIGGER_SECONDS,
    SidecarSettings,
    TableFormat,
)

if TYPE_CHECKING:
    from walstore.spark.bounds import Offsets
    from walstore.spark.sidecar.sidecar import Landed, Observer, Started, Summary

SIDECAR_EXAMPLES = """\b
Examples:
  walstore sidecar s3://bucket/orders --to s3a://lake/orders
  walstore sidecar data/orders --to tables/orders --once
  walstore sidecar data/orders --to tables/o --format delta --packages io.delta:delta-spark_4.2_2.13:4.4.0
  walstore sidecar s3://bucket/logs --subscribe orders,payments --to tables/all --partition-by topic,date
"""


class SparkLog(StrEnum):
    """How much Spark itself writes to stderr."""

    OFF = "off"
    ERROR = "error"
    WARN = "warn"
    INFO = "info"


def sidecar(
    location: Annotated[
        str,
        typer.Argument(
            metavar="LOCATION",
            help="A log directory or a store URL; with --subscribe the parent of several logs.",
        ),
    ],
    *,
    to: Annotated[
        str,
        typer.Option("--to", metavar="TABLE", help="Path or URL of the table."),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="PATH", help="Spark's checkpoint; TABLE/_checkpoint by default."
        ),
    ] = None,
    table_format: Annotated[
        TableFormat,
        typer.Option("--format", metavar="NAME", help="'parquet', 'delta' or 'iceberg'."),
    ] = TableFormat.PARQUET,
    trigger_seconds: Annotated[
        float,
        typer.Option("--trigger-seconds", metavar="S", help="Begin a batch so often; 0: at once."),
    ] = DEFAULT_TRIGGER_SECONDS,
    once: Annotated[
        bool,
        typer.Option("--once", "--available-now", help="End when all that is there has landed."),
    ] = False,
    max_records: Annotated[
        int,
        typer.Option("--max-records-per-trigger", metavar="N", help="Most records of one batch."),
    ] = DEFAULT_MAX_RECORDS,
    subscribe: Annotated[
        str | None,
        typer.Option("--subscribe", metavar="NAMES", help="Logs below LOCATION, with commas."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--subscribe-pattern", metavar="REGEX", help="Logs below LOCATION that match."
        ),
    ] = None,
    partition_by: Annotated[
        str,
        typer.Option(
            "--partition-by",
            metavar="COLUMNS",
            help="Divide the table by some of stream, topic, partition, date, hour.",
        ),
    ] = "",
    no_headers: Annotated[
        bool, typer.Option("--no-headers", help="Leave the column headers out of the table.")
    ] = False,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="NAME", help="Name of the cursor that holds the log."),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Spark's master; this machine by default."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "--conf", metavar="NAME=VALUE", help="A setting of Spark's; repeatable."
        ),
    ] = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--packages",
            metavar="COORDINATES",
            help="Maven packages that Spark fetches, with commas; repeatable.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option("--metrics-port", metavar="PORT", help="Serve metrics for Prometheus."),
    ] = None,
    spark_log: Annotated[
        SparkLog,
        typer.Option(
            "--spark-log",
            metavar="LEVEL",
            help="Spark's log level: 'off', 'error', 'warn', 'info'.",
        ),
    ] = SparkLog.OFF,
    as_json: AsJson = False,
) -> None:
    """Land a log in a table by a Spark streaming query, and continue until SIGINT or SIGTERM.

    Each record lands once, also if this is killed: start it again with the same TABLE. A cursor in the log
    keeps what has not landed from being collected. Stopped by a signal, it lets the batch under way finish
    for 15 s or gives it up, and ends with code 0; a second signal ends it at once.
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
    )
    summary = _run(settings, metrics_port, spark_log, as_json=as_json)
    if not as_json:
        _print_summary(settings, summary)


def _run(
    settings: SidecarSettings, metrics_port: int | None, spark_log: SparkLog, *, as_json: bool
) -> Summary:
    from walstore.spark.environment import require

    require()
    from walstore.spark.sidecar.sidecar import Sidecar

    with contextlib.ExitStack() as stack:
        observers: list[Observer] = [stack.enter_context(showing(as_json=as_json))]
        if metrics_port is not None:
            from walstore.spark.sidecar.metrics import serving

            metrics, port = stack.enter_context(serving(metrics_port))
            observers.insert(0, metrics)  # who has read a line finds the metrics as new
            complain(f"metrics at port {port}")
        everybody = _Several(observers)
        running = Sidecar(settings, everybody, clock=SystemClock(), spark_log_level=str(spark_log))
        everybody.on_start = stack.enter_context(_stopping_on_signal(running.stop))
        return running.run()


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


def _print_summary(settings: SidecarSettings, summary: Summary) -> None:
    print_fields(
        [
            ("location", settings.location),
            ("table", settings.table_place),
            ("records", format_count(summary.records)),
            ("landed up to", brief(summary.positions)),
            ("cursor", f"{settings.cursor_name} at {brief(summary.cursors)}"),
            ("ended", "asked to stop" if summary.is_stopped else "all has landed"),
        ]
    )


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


class _Several:
    """Several observers, called in their order. Takes the signals back once Spark is there."""

    def __init__(self, observers: list[Observer]) -> None:
        self._observers = observers
        self.on_start: Callable[[], None] = lambda: None

    def started(self, report: Started) -> None:
        self.on_start()
        for one in self._observers:
            one.started(report)

    def landed(self, report: Landed) -> None:
        for one in self._observers:
            one.landed(report)

    def warned(self, text: str) -> None:
        for one in self._observers:
            one.warned(text)


@contextlib.contextmanager
def showing(*, as_json: bool) -> Iterator[Observer]:
    """Yield an observer: JSON lines to stdout, or a line that moves on a terminal, or plain lines."""
    console = terminal()
    if as_json:
        yield _JsonLines()
    elif console.is_terminal:
        with console.status("starting Spark") as status:
            yield _Moving(status)
    else:
        yield _PlainLines()


class _PlainLines:
    def started(self, report: Started) -> None:
        how = "continues" if report.is_resumed else "begins"
        complain(f"{how} at {brief(report.positions)}, cursor {report.cursor}")

    def landed(self, report: Landed) -> None:
        complain(_line(report))

    def warned(self, text: str) -> None:
        complain(text)


class _JsonLines(_PlainLines):
    def started(self, report: Started) -> None:
        print_json(
            {
                "event": "started",
                "positions": _nested(report.positions),
                "resumed": report.is_resumed,
                "cursor": report.cursor,
                "checkpoint": report.checkpoint,
            }
        )

    def landed(self, report: Landed) -> None:
        print_json(
            {
                "event": "landed",
                "batch": report.batch,
                "records": report.records,
                "positions": _nested(report.positions),
                "cursors": _nested(report.cursors),
                "lag_records": report.lag_records if report.tails else None,
                "seconds": report.seconds,
            }
        )


class _Moving(_PlainLines):
    def __init__(self, status: Status) -> None:
        self._status = status
        self._records = 0

    def started(self, report: Started) -> None:
        self._status.update(f"from {brief(report.positions)}")

    def landed(self, report: Landed) -> None:
        self._records += report.records
        self._status.update(f"{format_count(self._records)} records; {_line(report)}")


def _line(report: Landed) -> str:
    parts = [f"batch {report.batch}: {format_count(report.records)} records"]
    parts.append(f"landed up to {brief(report.positions)}")
    if report.tails:
        parts.append(f"{format_count(report.lag_records)} to go")
    if report.seconds is not None:
        parts.append(f"{report.seconds:.1f} s")
    return ", ".join(parts)


def brief(positions: Offsets) -> str:
    """Return positions in a few words."""
    from walstore.spark.bounds import show

    shown = [f"{show(name)} {position}" for name, position in sorted(positions.items())[:4]]
    more = len(positions) - len(shown)
    return ", ".join(shown) + (f" and {more} more logs" if more else "")


def _nested(positions: Offsets) -> Mapping[str, Any]:
    from walstore.spark.bounds import to_json

    return to_json(positions)
