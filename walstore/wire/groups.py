"""Groups over a connection: their settings, and jobs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from walstore.batches.append_request import pack_headers
from walstore.groups.settings import GroupSettings
from walstore.records import NO_HEADERS, Record
from walstore.wire.cursors import pack_start, unpack_start
from walstore.wire.message import ProtocolViolationError
from walstore.wire.records import unpack_header


def pack_settings(settings: GroupSettings) -> list[Any]:
    """Return the settings of a group as values of msgpack."""
    return [
        pack_start(settings.start),
        settings.stream,
        settings.ack_wait_seconds,
        settings.max_deliver,
        settings.max_ack_pending,
        settings.is_ordered,
        settings.dead_letters,
    ]


def unpack_settings(packed: Any) -> GroupSettings:
    """Return the settings of a group; raises as they do for values that are none."""
    match packed:
        case [
            start,
            stream,
            ack_wait,
            max_deliver,
            max_ack_pending,
            bool(is_ordered),
            dead_letters,
        ]:
            return GroupSettings(
                start=unpack_start(start),
                stream=stream,
                ack_wait_seconds=ack_wait,
                max_deliver=max_deliver,
                max_ack_pending=max_ack_pending,
                is_ordered=is_ordered,
                dead_letters=dead_letters,
            )
    raise ProtocolViolationError("settings of a group that are none")


def pack_jobs(jobs: Sequence[tuple[Record, int]]) -> list[Any]:
    """Return jobs as values of msgpack."""
    return [
        [
            deliveries,
            record.offset,
            record.value,
            record.key,
            record.stream,
            pack_headers(record.headers) if record.headers else None,
            record.timestamp_us,
        ]
        for record, deliveries in jobs
    ]


def unpack_jobs(packed: Sequence[Any]) -> list[tuple[Record, int]]:
    """Return the jobs that were packed."""
    return [
        (
            Record(offset, value, key, stream, unpack_header(headers) or NO_HEADERS, timestamp_us),
            deliveries,
        )
        for deliveries, offset, value, key, stream, headers, timestamp_us in packed
    ]


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
