"""Dead letters: the records that are appended for jobs that were delivered too often."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from walstore.errors import RecordTooLargeError
from walstore.records import NO_HEADERS, Record

logger = logging.getLogger("walstore.groups")


MOST_ERROR_BYTES: Final = 1024
"""Longest text of an error in a letter, in UTF-8; of a longer one this is the beginning."""
_ERROR: Final = "walstore.error"
_FIRST: Final = "walstore.first_delivery_us"
_LAST: Final = "walstore.last_delivery_us"
LETTER_HEADERS: Final = frozenset(
    f"walstore.{name}" for name in ("group", "offset", "deliveries", "stream", "omitted")
) | {_ERROR, _FIRST, _LAST}
"""The headers of a letter that its job had not."""


class JobFailure(NamedTuple):
    """What is known of a job that failed, besides how often."""

    error: str | None = None
    """What its last member said."""
    first_us: int | None = None
    """When it was delivered first, in microseconds since 1970 UTC."""
    last_us: int | None = None
    """The same of the last time."""

    def headers(self, *, with_error: bool = True) -> dict[str, bytes]:
        """Return the headers that say so."""
        found = {}
        if self.error is not None and with_error:
            found[_ERROR] = self.error.encode()
        if self.first_us is not None:
            found[_FIRST] = b"%d" % self.first_us
        if self.last_us is not None:
            found[_LAST] = b"%d" % self.last_us
        return found


def error_text(error: BaseException | str) -> str:
    """Return the type and the text of an error, as far as a letter has room; a text as it is."""
    if isinstance(error, str):
        text = error
    elif isinstance(error, BaseException):
        name = type(error).__qualname__
        try:
            text = f"{name}: {error}" if str(error) else name
        except Exception:  # noqa: BLE001 - the exception of a user cannot say what it is
            text = name
    else:
        raise TypeError(f"an error is an exception or a text, not {type(error).__name__}")
    return text.encode(errors="replace")[:MOST_ERROR_BYTES].decode(errors="ignore")


async def append_letter(
    group: str,
    record: Record,
    deliveries: int,
    append: Callable[[Record], Awaitable[object]],
    failure: JobFailure = JobFailure(),  # noqa: B008 - a value
) -> None:
    """Append the letter of a job in the fullest form that ``append`` takes; raises what that raises.

    A letter has more headers than its record, so it may be too large for a log that took the record. Without
    any form that fits the job is dropped, and the log of the program says so.
    """
    refusal: RecordTooLargeError | None = None
    for letter in letter_forms(group, record, deliveries, failure):
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


def letter_forms(
    group: str,
    record: Record,
    deliveries: int,
    failure: JobFailure = JobFailure(),  # noqa: B008 - a value
) -> Iterator[Record]:
    """Yield what the letter of a job may be, each smaller than the one before.

    The record with headers of its origin and the error; the same without the error, then without the value;
    the headers of its origin alone; and its offset alone. ``walstore.omitted`` says what is missing:
    ``value`` or ``record``.
    """
    offset = {"walstore.offset": b"%d" % record.offset}
    origin = {
        "walstore.group": group.encode(),
        **offset,
        "walstore.deliveries": b"%d" % deliveries,
        "walstore.stream": (record.stream or "").encode(),
        **failure.headers(with_error=False),
    }
    # Those of an earlier letter, of a group that reads letters, are not about this failure.
    own = {
        name: value for name, value in record.headers.items() if name not in (_ERROR, _FIRST, _LAST)
    }
    if failure.error is not None:
        yield record._replace(headers={**own, **origin, **failure.headers()})
    yield record._replace(headers={**own, **origin})
    without = {**own, **origin, "walstore.omitted": b"value"}
    yield record._replace(value=b"", headers=without)
    bare = record._replace(value=b"", key=None, headers=NO_HEADERS)
    yield bare._replace(headers={**origin, "walstore.omitted": b"record"})
    yield bare._replace(headers=offset)
