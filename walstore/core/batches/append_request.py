"""AppendRequest factories: check the arguments of an append and copy them into a request.

Requests are framed later on the writer's thread, where an error would fail the log for all callers. So
their content has exact types, is copied and bounded, and is already encoded where that can fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

import msgpack

from walstore.core.batches.batch_builder import RECORD_OVERHEAD_BYTES, AppendRequest
from walstore.core.batches.conditions import AppendConditions, check_name
from walstore.core.batches.cost import PART_COST_BYTES
from walstore.core.validation.arguments import (
    MAX_TIMESTAMP_US,
    as_bytes,
    as_mapping,
    as_moment_us,
    as_text,
)
from walstore.errors import RecordTooLargeError

MAX_GROUP_RECORDS: Final = 1 << 26
"""Maximum records of one group: this many fit a frame, whatever their columns."""
_STEP_RECORDS: Final = 64
_SLICE_RECORDS: Final = 32_768
"""How many values are checked before yielding to the event loop; takes about a millisecond."""
_ONLY_BYTES: Final = frozenset((bytes,))


class _Options(NamedTuple):
    """The checked options shared by the records of a group."""

    key: bytes | None
    stream: str | None
    headers: bytes | None
    timestamp_us: int | None
    size_bytes: int
    """Of each record, in addition to its value."""
    cost_bytes: int
    """What they take in memory in addition to that, once for all records."""


def make_record(
    value: bytes,
    key: bytes | None,
    stream: str | None,
    headers: Mapping[str, bytes] | None,
    timestamp_us: int | datetime | None,
) -> AppendRequest:
    """Return a request of one record; TypeError or ValueError for bad arguments."""
    checked = as_bytes(value, "a value")
    return _group([checked], len(checked), _options(key, stream, headers, timestamp_us), None)


def make_group(
    values: Iterable[bytes],
    key: bytes | None,
    stream: str | None,
    headers: Mapping[str, bytes] | None,
    timestamp_us: int | datetime | None,
    conditions: AppendConditions | None = None,
) -> AppendRequest:
    """Return a request whose records share key, stream, headers and timestamp."""
    options = _options(key, stream, headers, timestamp_us)
    checked: list[bytes] = []
    size = sum(_check_slice(part, checked) for part in _slices(values))
    return _group(checked, size, options, conditions)


def make_rows(values: Sequence[bytes], headers: Sequence[bytes | None]) -> AppendRequest:
    """Return a request of values, each with headers of its own that :func:`pack_headers` made, or none."""
    packed_bytes = sum(len(one) for one in headers if one is not None)
    size = sum(map(len, values)) + packed_bytes + RECORD_OVERHEAD_BYTES * len(values)
    held = size + 2 * PART_COST_BYTES * len(values)
    return AppendRequest(values, None, None, headers, None, size, held_bytes=held)


async def gather_group(
    values: Iterable[bytes],
    key: bytes | None,
    stream: str | None,
    headers: Mapping[str, bytes] | None,
    timestamp_us: int | datetime | None,
    conditions: AppendConditions | None = None,
    *,
    most_bytes: int,
) -> AppendRequest:
    """As :func:`make_group`, but lets other tasks run between the slices of a large group.

    A group of up to 32 768 values is checked without yielding, so that appends keep the order of their
    calls. Everything but the values of an iterator is copied before the first pause. Reading an
    iterator stops once its values exceed ``most_bytes``: such a group is refused anyway.
    """
    options = _options(key, stream, headers, timestamp_us)
    checked: list[bytes] = []
    size = 0
    paused_at = 0
    for part in _slices(values):
        if len(checked) - paused_at >= _SLICE_RECORDS:
            paused_at = len(checked)
            await asyncio.sleep(0)  # noqa: TID251 - no wait is meant
        size += _check_slice(part, checked)
        if size > most_bytes:
            break
    return _group(checked, size, options, conditions)


def check_records(group: AppendRequest, most_bytes: int) -> None:
    """RecordTooLargeError if one of several records has more than ``most_bytes``.

    Of a single one the queue that it enters says so.
    """
    if group.count == 1 or group.size_bytes - RECORD_OVERHEAD_BYTES * group.count <= most_bytes:
        return
    shared = sum(len(column[0] or b"") for column in (group.keys, group.headers) if column)
    if group.streams:
        shared += len((group.streams[0] or "").encode())
    largest = max(map(len, group.values)) + shared
    if largest > most_bytes:
        raise RecordTooLargeError(
            f"a record of the group has {largest} bytes; max_record_bytes is {most_bytes}",
            size_bytes=largest,
            limit_bytes=most_bytes,
        )


def pack_headers(headers: Mapping[str, bytes]) -> bytes:
    """Return headers as msgpack; TypeError or ValueError unless they map text to bytes."""
    given = as_mapping(headers, "headers must map str to bytes")
    checked = {
        as_text(name, "a header name"): as_bytes(value, f"a header value ({name!r})")
        for name, value in given.items()
    }
    packed: bytes = msgpack.packb(checked)
    return packed


def _options(
    key: bytes | None,
    stream: str | None,
    headers: Mapping[str, bytes] | None,
    timestamp_us: int | datetime | None,
) -> _Options:
    size, cost = RECORD_OVERHEAD_BYTES, 0
    if key is not None:
        key = as_bytes(key, "a key")
        size += len(key)
        cost = PART_COST_BYTES
    if stream is not None:
        stream = as_text(stream, "stream")
        if not stream:
            raise ValueError("a stream name must not be empty; leave stream out instead")
        check_name(stream, "stream")
        size += len(stream.encode())
        cost += PART_COST_BYTES
    packed = None
    if headers is not None:
        packed = pack_headers(headers)
        packed = None if packed == _NO_HEADERS else packed
        size += len(packed or b"")
        cost += PART_COST_BYTES
    time_us = None
    if timestamp_us is not None:
        time_us = as_moment_us(timestamp_us, "timestamp_us")
        if not 0 <= time_us <= MAX_TIMESTAMP_US:
            raise ValueError(f"timestamp_us must be 0 to 2**63 - 1, not {time_us}")
        cost += PART_COST_BYTES
    return _Options(key, stream, packed, time_us, size, cost)


_NO_HEADERS: Final = pack_headers({})


def _slices(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise TypeError(f"values must be an iterable of bytes, not {type(values).__name__}")
    iterator = iter(values.copy() if type(values) is list else values)
    # Iterables that make their values on demand are read in small steps: the values may be large.
    rows = _SLICE_RECORDS if isinstance(values, Sized) else _STEP_RECORDS
    while part := list(islice(iterator, rows)):
        yield part


def _check_slice(part: list[bytes], checked: list[bytes]) -> int:
    """Check values, append them to ``checked`` and return their size."""
    if not _ONLY_BYTES.issuperset(map(type, part)):
        part = [as_bytes(value, "a value") for value in part]
    checked += part
    if len(checked) > MAX_GROUP_RECORDS:
        raise ValueError(
            f"an atomic group has at most {MAX_GROUP_RECORDS} values; use transaction()"
        )
    return sum(map(len, part))


def _group(
    values: list[bytes], value_bytes: int, options: _Options, conditions: AppendConditions | None
) -> AppendRequest:
    rows = len(values)
    if not rows:
        raise ValueError("an atomic group needs at least one value")

    key, stream, headers, timestamp_us, size, cost = options
    size = value_bytes + size * rows
    return AppendRequest(
        values,
        None if key is None else [key] * rows,
        None if stream is None else [stream] * rows,
        None if headers is None else [headers] * rows,
        None if timestamp_us is None else [timestamp_us] * rows,
        size,
        conditions,
        None,
        size + PART_COST_BYTES * rows + cost,
    )
