"""Offsets of a stream: how far it is in each of its logs. Pure.

As JSON they are what Spark writes into its checkpoint, and what Kafka's source writes there:
``{"orders": {"0": 123, "1": 7}}``, for each partition the offset of the next record to read. Spark takes two
of them for different if their texts differ, so logs are in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from walstore import InvalidSettingsError
from walstore.spark.bounds import LogName

Offsets: TypeAlias = Mapping[LogName, int]
"""For each log the offset of the next record."""


def to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the form that goes to Spark; the same offsets always give the same text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(value: Any) -> dict[LogName, int]:
    """Return what came back from Spark; InvalidSettingsError if this source cannot have made it."""
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
