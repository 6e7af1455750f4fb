"""What a sidecar tells about itself: values, and who is told. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from walstore import InvalidSettingsError
from walstore.spark.bounds import LogName

Offsets: TypeAlias = Mapping[tuple[str, int], int]
"""An offset for each log, by topic and partition."""


@dataclass(frozen=True, slots=True)
class Started:
    """The query is about to run."""

    positions: Offsets
    """Where it begins in each log."""
    is_resumed: bool
    """Whether it goes on with what an earlier run has landed."""
    cursor: str
    """Name of the cursor."""
    checkpoint: str


@dataclass(frozen=True, slots=True)
class Landed:
    """A batch is in the table for good."""

    batch: int
    """Number of the batch, from 0; numbers may be left out when batches are short."""
    records: int
    """Records since the last report."""
    positions: Offsets
    """In each log the offset of the next record that will land."""
    cursors: Offsets
    """In each log the position of the cursor; behind :attr:`positions` while the store does not answer."""
    tails: Offsets
    """How far each log reaches, as Spark was told last; logs of which that is not known are missing."""
    seconds: float | None
    """How long the batch took, if Spark told."""

    @property
    def lag_records(self) -> int:
        """Records that are in the logs and have not landed, as far as tails are known."""
        return sum(
            max(tail - self.positions.get(name, tail), 0) for name, tail in self.tails.items()
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run has done, at its end."""

    records: int
    batches: int
    """Batches seen to land; short ones may pass unseen."""
    positions: Offsets
    cursors: Offsets
    is_stopped: bool
    """Whether it was told to stop, rather than done."""


class Observer(Protocol):
    """Whom a sidecar tells; called on the thread that runs it."""

    def started(self, report: Started) -> None:
        """Learn where it begins."""

    def landed(self, report: Landed) -> None:
        """Learn what has landed."""

    def warned(self, text: str) -> None:
        """Learn what went wrong and will be tried again."""


def count_records(before: Mapping[LogName, int], after: Mapping[LogName, int]) -> int:
    """Return how many records lie between: offsets have no gaps. A log found meanwhile began at 1."""
    return sum(position - before.get(name, 1) for name, position in after.items())


def tails_of(progress: Mapping[str, Any], before: dict[LogName, int]) -> dict[LogName, int]:
    """Return how far the logs reach as the source told Spark, or what was known ``before``."""
    from walstore.spark.streaming.offsets import from_json

    sources = progress["sources"]
    latest = sources[0].get("latestOffset") if sources else None
    try:
        return from_json(json.loads(latest) if isinstance(latest, str) else latest)
    except (ValueError, InvalidSettingsError):
        return before


def seconds_of(progress: Mapping[str, Any] | None) -> float | None:
    """Return how long the last batch took, or None if Spark does not say."""
    duration = None if progress is None else progress["durationMs"].get("triggerExecution")
    return None if duration is None else float(duration) / 1000
