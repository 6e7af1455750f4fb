"""Where a read starts and ends in its logs, and where a stream is: Kafka's words and JSON. Pure.

The JSON of offsets is also what Spark writes into a stream's checkpoint: ``{"orders": {"0": 123, "1": 7}}``,
for each partition the offset of the next record to read. Spark compares offsets as text, so logs are sorted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from walstore import InvalidSettingsError

_JSON_LATEST: Final = -1
_JSON_EARLIEST: Final = -2
_SHOWN: Final = 5


class Edge(Enum):
    """The first or last offset of the log at the time of planning."""

    EARLIEST = auto()
    LATEST = auto()


@dataclass(frozen=True, slots=True)
class TimeBound:
    """The first record at or after a time."""

    timestamp_us: int


Bound = Edge | TimeBound | int
"""Where a read of one log starts or ends: an edge of it, a time, or an offset (the end is exclusive)."""

LogName = tuple[str, int]
"""Topic and partition of a log."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a read starts, or ends, in each of its logs."""

    every: Bound = Edge.EARLIEST
    """The bound of every log, unless :attr:`each` is set."""
    each: Mapping[LogName, Bound] | None = None
    """The bound of each log, if the option named them one by one."""
    option: str = "startingOffsets"
    """The option that set them, for messages."""

    def of(self, topic: str, partition: int) -> Bound:
        """Return the bound of one log; call :meth:`check` first."""
        return self.every if self.each is None else self.each[topic, partition]

    def check(self, logs: Collection[LogName]) -> None:
        """Raise InvalidSettingsError unless they fit the logs of the read.

        As in Kafka's source, JSON must name every log of the read and no other. A bare offset is valid for
        a single log only.
        """
        if self.each is None:
            if isinstance(self.every, int) and len(logs) > 1:
                raise InvalidSettingsError(
                    f"{self.option} must name the offset of each of the {len(logs)} logs,"
                    f" as {offsets_json(dict.fromkeys(sorted(logs)[:_SHOWN], self.every))}"
                )
            return
        missing, strange = (
            sorted(set(logs) - self.each.keys()),
            sorted(self.each.keys() - set(logs)),
        )
        if missing or strange:
            what = [f"names {_some(strange)}, not in this read"] if strange else []
            what += [f"lacks {_some(missing)}"] if missing else []
            raise InvalidSettingsError(
                f"{self.option} must name every partition that is read and no other:"
                f" it {' and '.join(what)}"
            )


@dataclass(frozen=True, slots=True)
class BoundNames:
    """The options that set where a read starts, or ends; the caller gives at most one of them."""

    offsets: str
    """Option for ``earliest``, ``latest``, an offset, or JSON of offsets."""
    time: str
    """Option for a time in milliseconds since 1970, in every log."""
    times: str
    """Option for JSON of such times, one for each log."""

    @property
    def all(self) -> tuple[str, str, str]:
        """All of them."""
        return self.offsets, self.time, self.times


STARTING: Final = BoundNames("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
ENDING: Final = BoundNames("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def offsets_json(offsets: Mapping[LogName, int]) -> str:
    """Return offsets as in options and checkpoints: ``{"orders": {"0": 123}}``, keys sorted."""
    return json.dumps(to_json(offsets), ensure_ascii=False)


def parse_json_bounds(name: str, text: str, *, is_times: bool) -> dict[LogName, Bound]:
    """Parse Kafka's form, ``{"topic": {"partition": number}}``, each log named once.

    The numbers are offsets, or times in milliseconds. InvalidSettingsError names the option, ``name``.
    """
    to_bound = _to_moment if is_times else _to_bound
    found: dict[LogName, Bound] = {}
    try:
        for topic, partitions in json.loads(text, object_pairs_hook=_pairs).items():
            for partition, value in partitions.items():
                bound = to_bound(value) if type(value) is int else None
                if bound is None or partition != str(int(partition)) or int(partition) < 0:
                    raise ValueError
                found[topic, int(partition)] = bound
    except (ValueError, AttributeError):
        found = {}
    if not found:
        example = offsets_json({("orders", 0): 23, ("orders", 1): 7})
        if is_times:
            words = f"JSON as {example} of milliseconds since 1970"
        else:
            ends = name == STARTING.offsets
            words = f"{'earliest, ' if ends else ''}latest, an offset, or JSON as {example}"
            words += f" with -1 for latest{' and -2 for earliest' if ends else ''}"
        raise InvalidSettingsError(f"{name} must be {words}, each log named once; not {text}")
    return found


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def _to_bound(value: int) -> Bound | None:
    if value == _JSON_EARLIEST:
        return Edge.EARLIEST
    if value == _JSON_LATEST:
        return Edge.LATEST
    return value if value >= 0 else None


def _to_moment(value: int) -> Bound | None:
    return TimeBound(value * 1000) if value >= 0 else None


def _some(logs: list[LogName]) -> str:
    shown = ", ".join(f"{topic}/{partition}" for topic, partition in logs[:_SHOWN])
    return shown if len(logs) <= _SHOWN else f"{shown} and {len(logs) - _SHOWN} more"


Offsets: TypeAlias = Mapping[LogName, int]
"""The offset of the next record, for each log."""


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the form for Spark; equal offsets give equal text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(value: Any) -> dict[LogName, int]:
    """Parse offsets from Spark; InvalidSettingsError if this source cannot have written them."""
    found: dict[LogName, int] = {}
    if not isinstance(value, Mapping):
        raise _foreign(value)
    for topic, partitions in value.items():
        if not isinstance(topic, str) or not isinstance(partitions, Mapping):
            raise _foreign(value)
        for partition, offset in partitions.items():
            if (
                not isinstance(partition, str)
                or not (partition.isascii() and partition.isdigit())
                or type(offset) is not int
                or offset < 1
            ):
                raise _foreign(value)
            found[topic, int(partition)] = offset
    return found


def show(name: LogName) -> str:
    """Return a log's name for messages."""
    topic, partition = name
    return f"{topic}/{partition}" if partition else topic


def _foreign(value: Any) -> InvalidSettingsError:
    return InvalidSettingsError(
        f"the checkpoint holds offsets that are not of this source: {str(value)[:200]}; give the query a "
        "checkpointLocation of its own"
    )
