"""Dead letters: the records that are appended for jobs that were delivered too often."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator

from walstore.errors import RecordTooLargeError
from walstore.records import NO_HEADERS, Record

logger = logging.getLogger("walstore.groups")


async def append_letter(
    group: str, record: Record, deliveries: int, append: Callable[[Record], Awaitable[object]]
) -> None:
    """Append the letter of a job in the fullest form that ``append`` takes; raises what that raises.

    A letter has more headers than its record, so it may be too large for a log that took the record. Without
    any form that fits the job is dropped, and the log of the program says so.
    """
    refusal: RecordTooLargeError | None = None
    for letter in letter_forms(group, record, deliveries):
        try:
            await append(letter)
        except RecordTooLargeError as error:
            refusal = error
        else:
            return
    logger.error(
        "no dead letter for offset %d of group %s: %s; the job is dropped",
        record.offset,
        group,
        refusal,
    )


def letter_forms(group: str, record: Record, deliveries: int) -> Iterator[Record]:
    """Yield what the letter of a job may be, each smaller than the one before.

    The record with headers of its origin; the same without the value; the headers of its origin alone; and
    its offset alone. ``walstore.omitted`` says what is missing: ``value`` or ``record``.
    """
    offset = {"walstore.offset": b"%d" % record.offset}
    origin = {
        "walstore.group": group.encode(),
        **offset,
        "walstore.deliveries": b"%d" % deliveries,
        "walstore.stream": (record.stream or "").encode(),
    }
    yield record._replace(headers={**record.headers, **origin})
    without = {**record.headers, **origin, "walstore.omitted": b"value"}
    yield record._replace(value=b"", headers=without)
    bare = record._replace(value=b"", key=None, headers=NO_HEADERS)
    yield bare._replace(headers={**origin, "walstore.omitted": b"record"})
    yield bare._replace(headers=offset)
