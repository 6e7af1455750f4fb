"""Groups over a connection: their settings, what they are at a moment, and jobs. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import msgpack

from walstore.core.batches.append_request import pack_headers
from walstore.core.runtime.statistics import GroupInfo, GroupStatistics
from walstore.net.wire.cursors import pack_start, unpack_start
from walstore.net.wire.errors import pack_error, unpack_problem
from walstore.net.wire.message import PackedAnswer, ProtocolViolationError
from walstore.net.wire.records import unpack_header
from walstore.positions.groups.group_settings import GroupSettings
from walstore.records import NO_HEADERS, Record

_NAMES: Final = (
    "stream", "ack_wait_seconds", "max_deliver", "max_ack_pending", "is_ordered", "dead_letters",
)  # fmt: skip
"""The settings behind the start, in their order."""
_PARTS: Final = 3
"""Of a job in the payload: its value, its key, its headers."""
_EPOCH_BYTES: Final = 8
_BOUND: Final = struct.Struct("<QQ")
"""An epoch of the log, and the number of a group in it."""


def pack_settings(settings: GroupSettings) -> list[Any]:
    """Return the settings of a group as values of msgpack."""
    return [pack_start(settings.start), *(getattr(settings, name) for name in _NAMES)]


def unpack_settings(packed: Any) -> GroupSettings:
    """Return the settings of a group; raises as they do for values that are none."""
    match packed:
        case [start, *rest] if len(rest) == len(_NAMES):
            options = dict(zip(_NAMES, rest, strict=True))
            if isinstance(options["is_ordered"], bool):
                return GroupSettings(start=unpack_start(start), **options)
    raise ProtocolViolationError("settings of a group that are none")


def pack_groups(groups: Sequence[GroupInfo]) -> PackedAnswer:
    """Return groups as values of msgpack, and what is wrong with them for the payload.

    Older clients do not look at that.
    """
    rows: list[Any] = []
    problems: list[Any] = []
    for one in groups:
        now = None if one.statistics is None else asdict(one.statistics)
        rows.append([one.name, one.floor, one.behind, now])
        problems.append(None if one.problem is None else pack_error(one.problem))
    return PackedAnswer(rows, [msgpack.packb(problems)] if any(problems) else [])


def unpack_groups(packed: Sequence[Any], payload: memoryview) -> list[GroupInfo]:
    """Return the groups that were packed; an old server says of none what is wrong."""
    problems = msgpack.unpackb(payload) if payload else [None] * len(packed)
    return [
        GroupInfo(
            name,
            floor,
            behind,
            None if now is None else GroupStatistics(**now),
            None if problem is None else unpack_problem(problem),
        )
        for (name, floor, behind, now), problem in zip(packed, problems, strict=True)
    ]


def pack_bound(epoch: int, number: int) -> bytes:
    """Return which group a member entered: by its number among those of one opening of the log."""
    return _BOUND.pack(epoch, number)


def is_bound_elsewhere(bound: bytes, epoch: int, number: int) -> bool:
    """Return whether a member entered another group than this one, of the same opening of the log.

    Of another opening it is not known, nor if ``bound`` is empty, as that of an older client.
    """
    here = pack_bound(epoch, number)
    return len(bound) == len(here) and bound[:_EPOCH_BYTES] == here[:_EPOCH_BYTES] and bound != here


def pack_jobs(jobs: Sequence[tuple[Record, int]]) -> PackedAnswer:
    """Return jobs as values of msgpack, and their values, keys and headers for the payload."""
    rows: list[Any] = []
    pieces: list[bytes] = []
    for record, deliveries in jobs:
        headers = pack_headers(record.headers) if record.headers else None
        parts = (record.value, record.key, headers)
        sizes = [None if part is None else len(part) for part in parts]
        rows.append([deliveries, record.offset, record.stream, record.timestamp_us, *sizes])
        pieces += filter(None, parts)
    return PackedAnswer(rows, pieces)


def unpack_jobs(packed: Any, payload: memoryview) -> list[tuple[Record, int]]:
    """Return the jobs that were packed; ProtocolViolationError if the payload is not theirs."""
    found: list[tuple[Record, int]] = []
    position = 0

    def part(size: int | None) -> bytes | None:
        nonlocal position
        if size is None:
            return None
        low, position = position, position + size
        return bytes(payload[low:position])

    for row in packed if isinstance(packed, list) else [None]:
        match row:
            case [
                int(deliveries),
                int(offset),
                str() | None as stream,
                int(timestamp_us),
                *sizes,
            ] if len(sizes) == _PARTS and all(
                size is None or (type(size) is int and size >= 0) for size in sizes
            ):
                value, key, headers = map(part, sizes)
            case _:
                raise ProtocolViolationError("jobs that are none")
        packed_headers = unpack_header(headers) or NO_HEADERS
        record = Record(offset, value or b"", key, stream, packed_headers, timestamp_us)
        found.append((record, deliveries))
    if position != len(payload):
        raise ProtocolViolationError("a payload that is not that of its jobs")
    return found


def unpack_held(packed: Sequence[Any]) -> list[tuple[int, int]]:
    """Return offsets and deliveries of the jobs that a member has."""
    found = []
    for one in packed:
        match one:
            case [int(offset), int(deliveries)]:
                found.append((offset, deliveries))
            case _:
                raise ProtocolViolationError("jobs of a member that are none")
    return found
