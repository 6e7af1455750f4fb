"""Reports of a sidecar, their observer, and how they follow from Spark's progress. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from walstore import InvalidSettingsError
from walstore.spark.bounds import LogName, Offsets


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


def count_records(before: Mapping[LogName, int], after: Mapping[LogName, int]) -> int:
    """Return the number of records in between: offsets have no gaps. A log found meanwhile began at 1."""
    return sum(position - before.get(name, 1) for name, position in after.items())


def tails_of(progress: Mapping[str, Any], before: dict[LogName, int]) -> dict[LogName, int]:
    """Return the logs' tails as the source reported them to Spark, or else ``before``."""
    from walstore.spark.bounds import from_json

    sources = progress["sources"]
    latest = sources[0].get("latestOffset") if sources else None
    try:
        return from_json(json.loads(latest) if isinstance(latest, str) else latest)
    except (ValueError, InvalidSettingsError):
        return before


def seconds_of(progress: Mapping[str, Any] | None) -> float | None:
    """Return how long the last batch took, or None if Spark does not report it."""
    duration = None if progress is None else progress["durationMs"].get("triggerExecution")
    return None if duration is None else float(duration) / 1000
