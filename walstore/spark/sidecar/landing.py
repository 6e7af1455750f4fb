"""Landing: what every run that lands a log keeps: its reports, its figures, and cursors that may be late.

A batch is written first, and then the cursors move behind it: they may be late, never early. A cursor that
does not move stops nothing. It is reported once, and tried again with each batch, or after some seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from walstore import InvalidSettingsError, WalError
from walstore.core.ports import Clock
from walstore.spark.bounds import LogName, Offsets, show

RETRY_SECONDS: Final = 5.0
"""Retry interval of cursors that did not move, while nothing lands; each batch retries them too."""


@dataclass(frozen=True, slots=True)
class Started:
    """The query is about to run."""

    positions: Offsets
    """Where it begins in each log."""
    is_resumed: bool
    """Whether it continues an earlier run."""
    cursor: str
    """Name of the cursor."""
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Landed:
    """A batch is committed to the table."""

    batch: int
    """Number of the batch, from 0; short batches may be missed, so numbers may be skipped."""
    records: int
    """Records since the last report."""
    positions: Offsets
    """For each log the offset of the next record to land."""
    cursors: Offsets
    """For each log the position of the cursor; behind :attr:`positions` while the store does not answer."""
    tails: Offsets
    """The tail of each log as last reported to Spark; logs without a report are missing."""
    seconds: float | None
    """How long the batch took, if Spark reports it."""

    @property
    def lag_records(self) -> int:
        """Records in the logs that have not landed, for logs with a known tail."""
        return sum(
            max(tail - self.positions.get(name, tail), 0) for name, tail in self.tails.items()
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a run."""

    records: int
    batches: int
    """Batches observed to land; short ones may be missed."""
    positions: Offsets
    cursors: Offsets
    is_stopped: bool
    """Whether it was stopped, rather than done."""


class Observer(Protocol):
    """Receives a sidecar's reports, on the thread that runs it."""

    def started(self, report: Started) -> None:
        """Called before the query starts."""

    def landed(self, report: Landed) -> None:
        """Called after a batch has landed."""

    def warned(self, text: str) -> None:
        """Called for a failure that will be retried."""


class Landing:
    """The figures of one run, for whoever writes its batches."""

    def __init__(self, warn: Callable[[str], None], clock: Clock) -> None:
        """Call ``warn`` when the cursors did not move, which is retried."""
        self._warn = warn
        self._clock = clock
        self.batch = -1
        """Number of the newest batch that has landed."""
        self.positions: dict[LogName, int] = {}
        self.tails: dict[LogName, int] = {}
        self._records = self._batches = 0
        self.is_late = False
        """Whether the cursors are not where the positions are."""
        self._retry_at = 0.0

    @property
    def is_retry_due(self) -> bool:
        """Whether to move late cursors again now."""
        return self.is_late and self._clock.monotonic() >= self._retry_at

    @contextmanager
    def moving(self) -> Iterator[None]:
        """The block moves the cursors. A failure is reported, and retried later."""
        try:
            yield
            self.is_late = False
        except WalError as error:
            if not self.is_late:
                self._warn(f"the cursor stays where it is for now: {error}")
            self.is_late = True
            self._retry_at = self._clock.monotonic() + RETRY_SECONDS

    def land(self, batch: int, positions: dict[LogName, int], records: int) -> None:
        """Note that what comes before ``positions`` has landed, with batch number ``batch``."""
        self._batches += batch != self.batch
        self.batch, self.positions = batch, positions
        self._records += records

    def report(self, records: int, cursors: Offsets, seconds: float | None) -> Landed:
        """Return the report of the newest batch."""
        return Landed(self.batch, records, self.positions, cursors, self.tails, seconds)

    def summary(self, cursors: Offsets, *, is_stopped: bool) -> Summary:
        """Return the result of the run."""
        return Summary(self._records, self._batches, self.positions, cursors, is_stopped)


def check_not_beyond(cursor: str, log: LogName, found: int | None, landed: int, has: str) -> None:
    """Raise InvalidSettingsError for a cursor that another program moved beyond what has landed."""
    if found is not None and found > landed:
        raise InvalidSettingsError(
            f"cursor {cursor!r} of {show(log)} stands at {found}, and {has}: records in between may have "
            "been removed; if they still exist, set the cursor back: walstore cursors … --set "
            f"{cursor} {landed} --confirm"
        )
