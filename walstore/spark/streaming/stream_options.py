"""Options of ``readStream.format("walstore")``: strings in, checked values out. Pure: no I/O, no Spark.

Names are those of Spark's Kafka source, and Delta's where that has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from walstore import InvalidSettingsError
from walstore.spark.bounds import ENDING, STARTING, Bounds, Edge, TimeBound, parse_bounds
from walstore.spark.location import Location
from walstore.spark.options import (
    SELECTORS,
    STREAM_ONLY,
    Selection,
    parse_selection,
    required_location,
)
from walstore.spark.values import Options

DEFAULT_POLL_MS: Final = 500
DEFAULT_DISCOVERY_MS: Final = 30_000

KNOWN: Final = (
    "path",
    *SELECTORS,
    *STARTING.all,
    "startingOffsetsByTimestampStrategy",
    *STREAM_ONLY,
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "stream",
    "tier",
)
"""Every option of a streaming read, except those that begin with ``store.``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What to follow, and how."""

    location: Location
    selection: Selection = field(default_factory=Selection)
    starting: Bounds = field(default_factory=Bounds)
    """Where a query starts without a checkpoint and a cursor."""
    needs_record: bool = True
    """Whether a starting time after the last record fails; else the stream starts at the tail."""
    most_rows: int | None = None
    """Most records of one micro-batch, all logs together."""
    most_bytes: int | None = None
    """Most stored bytes of one micro-batch, approximately, all logs together."""
    min_partitions: int = 1
    """A minimum that may be missed: partitions are cut only between fragments, or batches of a local file."""
    fail_on_data_loss: bool = True
    """Whether records that were removed before they were read fail the query."""
    include_headers: bool = False
    cursor: str | None = None
    """Name of the cursor that marks the start of the query and is moved behind it."""
    poll_seconds: float = DEFAULT_POLL_MS / 1000
    """Poll interval of an active log; it grows while the log is idle."""
    discovery_seconds: float = DEFAULT_DISCOVERY_MS / 1000
    """Interval at which new logs that match the pattern are discovered."""
    stream: str | None = None
    """The stream whose records are read; None for all records."""
    use_tier: bool = True
    """Whether the older part of a local log is read from the store to which it was shipped."""


def parse_stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Return the checked options; InvalidSettingsError names the option and its valid values."""
    _refuse_endings(options)
    given = Options(options, KNOWN)
    starting = parse_bounds(given, STARTING, default=Edge.EARLIEST)
    cursor = given.text("cursorName")
    if cursor is None and moves(starting):
        raise InvalidSettingsError(
            f"{starting.option} must be resolved once and for all, and Spark asks again after a crash: "
            "name a cursor that holds the answer, with the option cursorName"
        )
    poll_ms = given.number("pollIntervalMs", low=1, default=DEFAULT_POLL_MS)
    discovery_ms = given.number("discoveryIntervalMs", low=1, default=DEFAULT_DISCOVERY_MS)
    assert poll_ms is not None
    assert discovery_ms is not None
    return StreamOptions(
        location=required_location(given),
        selection=parse_selection(given),
        starting=starting,
        needs_record=given.flag(
            "startingOffsetsByTimestampStrategy", yes="error", no="latest", default=True
        ),
        most_rows=given.number("maxOffsetsPerTrigger", low=1),
        most_bytes=given.number("maxBytesPerTrigger", low=1),
        min_partitions=given.number("minPartitions", low=1, default=1),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        cursor=cursor,
        poll_seconds=poll_ms / 1000,
        discovery_seconds=discovery_ms / 1000,
        stream=given.text("stream"),
        use_tier=given.flag("tier", yes="auto", no="off", default=True),
    )


def _refuse_endings(options: Mapping[str, str]) -> None:
    """Raise InvalidSettingsError for options that end a read; it names the alternative."""
    given = {name.lower() for name in options}
    for name in ENDING.all:
        if name.lower() in given:
            raise InvalidSettingsError(
                f"{name} is an option of batch reads: a stream has no end; .trigger(availableNow=True) "
                "stops it at what is there when it starts"
            )


def moves(starting: Bounds) -> bool:
    """Return whether resolving the bounds later may skip records."""
    bounds = [starting.every] if starting.each is None else [*starting.each.values()]
    return any(bound is Edge.LATEST or isinstance(bound, TimeBound) for bound in bounds)
