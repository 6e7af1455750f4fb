"""Offsets of a stream: its position in each of its logs. Pure.

Their JSON is what Spark writes into its checkpoint, in the form of Kafka's source:
``{"orders": {"0": 123, "1": 7}}``, for each partition the offset of the next record to read. Spark compares
offsets as text, so logs are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from walstore import InvalidSettingsError
from walstore.spark.bounds import LogName

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
