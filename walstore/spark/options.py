"""Options of ``format("walstore")``: strings in, checked values out. Pure: no I/O, no Spark.

Names are those of Spark's Kafka source where it has one. Option names are case-insensitive; Spark
passes them in lower case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from walstore import InvalidSettingsError
from walstore.spark.bounds import ENDING, STARTING, Bounds, Edge, parse_bounds
from walstore.spark.location import Location, parse_location
from walstore.spark.values import Options

SELECTORS: Final = ("subscribe", "subscribePattern", "assign")
"""Options that select among several logs; the caller gives at most one."""

KNOWN: Final = (
    "path",
    *SELECTORS,
    *STARTING.all,
    "startingOffsetsByTimestampStrategy",
    *ENDING.all,
    "stream",
    "pushdown",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "tier",
)
"""Every option of a batch read, except those that begin with ``store.``."""

STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "cursorName",
    "pollIntervalMs",
    "discoveryIntervalMs",
)
"""Options of a streaming read that a batch read does not have."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which logs are read: the one at the location itself, or some of several below it."""

    names: tuple[str, ...] = ()
    """Names of logs, of partitioned logs, or of single partitions (``orders/1``)."""
    pattern: str | None = None
    """A regular expression that must match a log's whole name."""
    assigned: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Topics, and partitions of each."""

    @property
    def is_whole(self) -> bool:
        """Whether the location is the log, or the partitioned log."""
        return not self.names and self.pattern is None and not self.assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how."""

    location: Location
    selection: Selection
    starting: Bounds
    ending: Bounds
    needs_record: bool = True
    """Whether a starting time after the last record fails the read; else nothing is read then."""
    stream: str | None = None
    """The stream whose records are read; None for all records."""
    takes_filters: bool = False
    """Whether the filters that Spark passes may narrow the read."""
    min_partitions: int = 1
    """A minimum that may be missed: partitions are cut only between fragments, or batches of a local file."""
    fail_on_data_loss: bool = True
    """Whether requested offsets that are trimmed or not written fail the read."""
    include_headers: bool = False
    use_tier: bool = True
    """Whether the older part of a local log is read from the store to which it was shipped."""


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the checked options; InvalidSettingsError names the option and its valid values."""
    given = Options(options, KNOWN)
    ending = parse_bounds(given, ENDING, default=Edge.LATEST)
    if Edge.EARLIEST in (ending.every, *(ending.each or {}).values()):
        raise InvalidSettingsError("endingOffsets cannot be earliest (-2): nothing would be read")
    return ReadOptions(
        location=required_location(given),
        selection=parse_selection(given),
        starting=parse_bounds(given, STARTING, default=Edge.EARLIEST),
        ending=ending,
        needs_record=given.flag(
            "startingOffsetsByTimestampStrategy", yes="error", no="latest", default=True
        ),
        stream=given.text("stream"),
        takes_filters=given.flag("pushdown", yes="on", no="off", default=False),
        min_partitions=given.number("minPartitions", low=1, default=1),
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        use_tier=given.flag("tier", yes="auto", no="off", default=True),
    )


def required_location(given: Options) -> Location:
    """Return the location passed to ``load``."""
    path = given.text("path")
    if not path:
        raise InvalidSettingsError(
            "name the log: .load('s3://bucket/prefix'), .load('file:///dir') or .load('/log/dir')"
        )
    return parse_location(path, given.store)


def parse_selection(given: Options) -> Selection:
    """Return which logs to read; InvalidSettingsError if two of :data:`SELECTORS` are given."""
    found = [(name, value) for name in SELECTORS if (value := given.text(name)) is not None]
    if len(found) > 1:
        raise InvalidSettingsError(f"give {found[0][0]} or {found[1][0]}, not both")
    if not found:
        return Selection()
    ((option, value),) = found
    if option == "assign":
        return Selection(assigned=_parse_assigned(value))
    if option == "subscribePattern":
        return Selection(pattern=_parse_pattern(value))
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    if "" in names:
        raise InvalidSettingsError(
            f"subscribe must be names of logs with commas between them, not {value!r}"
        )
    return Selection(names=names)


def _parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidSettingsError(
            f"subscribePattern must be a regular expression: {error}"
        ) from None
    return value


def _parse_assigned(value: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Parse Kafka's form, ``{"orders":[0,2]}``."""
    try:
        found = json.loads(value)
        pairs = tuple((topic, tuple(sorted(set(numbers)))) for topic, numbers in found.items())
    except (ValueError, TypeError, AttributeError):
        pairs = ()
    if not pairs or not all(
        numbers and all(type(number) is int and number >= 0 for number in numbers)
        for _, numbers in pairs
    ):
        raise InvalidSettingsError(
            f'assign must be JSON as {{"orders": [0, 2]}}, partitions of each log, not {value}'
        )
    return pairs
