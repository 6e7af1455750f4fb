"""The reports of a sidecar on a terminal: JSON lines, a line that moves, or plain lines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.status import Status

from walstore.cli.output import complain, format_count, print_json, terminal

if TYPE_CHECKING:
    from walstore.spark.bounds import Offsets
    from walstore.spark.sidecar.reports import Landed, Observer, Started


class Several:
    """Tells several observers, and takes the signals back once Spark is there."""

    def __init__(self, observers: list[Observer]) -> None:
        """Tell them in that order."""
        self._observers = observers
        self.on_start: Callable[[], None] = lambda: None

    def started(self, report: Started) -> None:
        """Tell where it begins."""
        self.on_start()
        for one in self._observers:
            one.started(report)

    def landed(self, report: Landed) -> None:
        """Tell what has landed."""
        for one in self._observers:
            one.landed(report)

    def warned(self, text: str) -> None:
        """Tell what will be tried again."""
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


class _JsonLines:
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

    def warned(self, text: str) -> None:
        complain(text)


class _PlainLines:
    def started(self, report: Started) -> None:
        how = "goes on" if report.is_resumed else "begins"
        complain(f"{how} at {brief(report.positions)}, cursor {report.cursor}")

    def landed(self, report: Landed) -> None:
        complain(_line(report))

    def warned(self, text: str) -> None:
        complain(text)


class _Moving:
    def __init__(self, status: Status) -> None:
        self._status = status
        self._records = 0

    def started(self, report: Started) -> None:
        self._status.update(f"from {brief(report.positions)}")

    def landed(self, report: Landed) -> None:
        self._records += report.records
        self._status.update(f"{format_count(self._records)} records; {_line(report)}")

    def warned(self, text: str) -> None:
        complain(text)


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
