"""What a landing of a log says: lines on stderr, one that moves on a terminal, or JSON lines on stdout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.status import Status

from walstore.cli.output import cell, complain, format_count, print_json, terminal
from walstore.cli.report import Report

if TYPE_CHECKING:
    from walstore.spark.bounds import Offsets
    from walstore.spark.sidecar import Landed, Observer, SidecarSettings, Started, Summary


def report_landing(settings: SidecarSettings, summary: Summary, cursor: str | None) -> Report:
    """Return what a run did; ``cursor`` is the name of its cursor."""
    found = {
        "event": "ended",
        "records": summary.records,
        "positions": _nested(summary.positions),
        "cursors": _nested(summary.cursors),
        "stopped": summary.is_stopped,
    }
    held = f"{cursor} at {brief(summary.cursors)}" if cursor else "none, the log is not retained"
    fields = [
        ("location", settings.location),
        ("table", settings.table_place),
        ("records", format_count(summary.records)),
        ("landed up to", brief(summary.positions)),
        ("cursor", held),
        ("ended", "asked to stop" if summary.is_stopped else "all has landed"),
    ]
    return Report(found, fields)


class Several:
    """Several observers, called in their order. Takes the signals back once Spark is there."""

    def __init__(self, observers: list[Observer]) -> None:
        self._observers = observers
        self.on_start: Callable[[], None] = lambda: None

    def started(self, report: Started) -> None:
        """Report where it begins."""
        self.on_start()
        for one in self._observers:
            one.started(report)

    def landed(self, report: Landed) -> None:
        """Report a batch."""
        for one in self._observers:
            one.landed(report)

    def warned(self, text: str) -> None:
        """Report what is tried again."""
        for one in self._observers:
            one.warned(text)


@contextlib.contextmanager
def showing(*, as_json: bool) -> Iterator[Observer]:
    """Yield an observer: JSON lines to stdout, or a line that moves on a terminal, or plain lines."""
    console = terminal()
    if as_json:
        yield _JsonLines()
    elif console.is_terminal:
        with console.status("starting") as status:
            yield _Moving(status)
    else:
        yield _PlainLines()


class _PlainLines:
    def started(self, report: Started) -> None:
        how = "continues" if report.is_resumed else "begins"
        held = f", cursor {report.cursor}" if report.cursor else ""
        complain(f"{how} at {brief(report.positions)}{held}")

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
                "cursor": report.cursor or None,
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
        self._status.update(cell(f"from {brief(report.positions)}"))

    def landed(self, report: Landed) -> None:
        self._records += report.records
        self._status.update(cell(f"{format_count(self._records)} records; {_line(report)}"))


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
