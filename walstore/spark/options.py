"""Options of ``format("walstore")``: strings in, checked values out. Pure: no I/O, no Spark.

Names are those of Spark's Kafka source where it has one. Option names are case-insensitive; Spark
hands them over in lower case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from walstore.errors import InvalidSettingsError
from walstore.spark.location import Location, parse_location
from walstore.spark.values import Options, number

KNOWN: Final = (
    "path",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "tier",
)
"""Every option of a batch read, beside those that begin with ``store.``."""

_JSON_LATEST: Final = -1
_JSON_EARLIEST: Final = -2


class Edge(Enum):
    """An end of the log as it is when the read is planned."""

    EARLIEST = auto()
    LATEST = auto()


@dataclass(frozen=True, slots=True)
class Moment:
    """The first record that is not older than a time."""

    timestamp_us: int


Bound = Edge | Moment | int
"""Where a read starts or ends: an end of the log, a time, or an offset (the end is exclusive)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is to be read, and how."""

    location: Location
    starting: Bound = Edge.EARLIEST
    ending: Bound = Edge.LATEST
    needs_record: bool = True
    """Whether ``startingTimestamp`` fails when no record is that new; else nothing is read then."""
    min_partitions: int = 1
    """Soft: partitions are cut only between fragments, or batches of a local file."""
    fail_on_data_loss: bool = True
    """Whether offsets that are asked for and not (or no more) there fail the read."""
    include_headers: bool = False
    use_tier: bool = True
    """Whether a local log's older part is fetched from where the log was shipped to."""


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Return the checked options; InvalidSettingsError names the option and what it may be."""
    given = Options(options, KNOWN)
    path = given.text("path")
    if not path:
        raise InvalidSettingsError(
            "name the log: .load('s3://bucket/prefix'), .load('file:///dir') or .load('/log/dir')"
        )
    location = parse_location(path, given.store)
    ending = _bound(given, "endingOffsets", "endingTimestamp", location, Edge.LATEST)
    if ending is Edge.EARLIEST:
        raise InvalidSettingsError("endingOffsets cannot be earliest (-2): nothing would be read")
    return ReadOptions(
        location=location,
        starting=_bound(given, "startingOffsets", "startingTimestamp", location, Edge.EARLIEST),
        ending=ending,
        needs_record=given.flag(
            "startingOffsetsByTimestampStrategy", yes="error", no="latest", default=True
        ),
        min_partitions=given.number("minPartitions", low=1, default=1) or 1,
        fail_on_data_loss=given.flag("failOnDataLoss", default=True),
        include_headers=given.flag("includeHeaders", default=False),
        use_tier=given.flag("tier", yes="auto", no="off", default=True),
    )


def _bound(
    given: Options, by_offset: str, by_time: str, location: Location, default: Edge
) -> Bound:
    offsets, time = given.text(by_offset), given.text(by_time)
    if offsets is not None and time is not None:
        raise InvalidSettingsError(f"give {by_offset} or {by_time}, not both")
    if time is not None:
        return Moment(number(by_time, time, low=0) * 1000)
    if offsets is None:
        return default
    text = offsets.strip()
    if text.lower() in {"earliest", "latest"}:
        return Edge[text.upper()]
    if text.startswith("{"):
        return _json_bound(by_offset, text, location.topic)
    return number(by_offset, text, low=0)


def _json_bound(name: str, text: str, topic: str) -> Bound:
    """Read Kafka's form, ``{"topic": {"partition": offset}}``; a log has partition 0 alone."""
    try:
        found = json.loads(text)
        ((named, partitions),) = found.items()
        ((partition, offset),) = partitions.items()
    except (ValueError, AttributeError):
        raise _bad_json(name, text, topic) from None
    if named != topic or partition != "0" or type(offset) is not int or offset < _JSON_EARLIEST:
        raise _bad_json(name, text, topic)
    if offset == _JSON_EARLIEST:
        return Edge.EARLIEST
    return Edge.LATEST if offset == _JSON_LATEST else offset


def _bad_json(name: str, text: str, topic: str) -> InvalidSettingsError:
    example = json.dumps({topic: {"0": 23}})
    return InvalidSettingsError(
        f"{name} must be earliest, latest, an offset, or JSON as {example} (-1 latest, -2 earliest),"
        f" not {text}"
    )
