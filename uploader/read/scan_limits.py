"""The limits of a scan over the fragments of a log. Pure, but for the clock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress

from uploader.format.entries import Fragment
from walstore.core.ports import Clock
from walstore.core.runtime.time_limit import within
from walstore.core.validation.arguments import as_count, as_seconds
from walstore.errors import InvalidSettingsError


async def within_limits(
    fragments: AsyncIterable[Fragment],
    start: int,
    *,
    max_fragments: int | None = None,
    max_bytes: int | None = None,
    max_records: int | None = None,
) -> AsyncGenerator[Fragment, None]:
    """Yield consecutive fragments within limits; the first contains ``start``.

    The first one is always yielded. Another one is yielded if it keeps within ``max_fragments`` and
    ``max_bytes`` (of objects), and those before it contain fewer than ``max_records`` records from
    ``start`` on.
    """
    count = size = 0
    async for fragment in fragments:
        count += 1
        size += fragment.num_bytes
        if count > 1 and (
            _exceeds(count, max_fragments)
            or _exceeds(size, max_bytes)
            or (max_records is not None and fragment.start - start >= max_records)
        ):
            return
        yield fragment
        if count == max_fragments:
            return


async def in_time(
    fragments: AsyncGenerator[Fragment, None], seconds: float, clock: Clock
) -> AsyncGenerator[Fragment, None]:
    """Yield what arrives within so many seconds from the first step; then cancel the pending request.

    The first one is always yielded if it needs no wait, even within 0 seconds.
    """
    deadline = clock.monotonic() + seconds
    left = seconds
    with suppress(TimeoutError):
        while (found := await within(left, _next_of(fragments), sleep=clock.sleep)) is not None:
            yield found
            left = deadline - clock.monotonic()
            if left <= 0:
                return


async def _next_of(fragments: AsyncGenerator[Fragment, None]) -> Fragment | None:
    return await anext(fragments, None)


def check_max_wait(seconds: float) -> float:
    """Return the longest wait; TypeError, InvalidSettingsError if it is negative or not finite."""
    checked = as_seconds(seconds, "max_wait_seconds")
    if checked < 0:
        raise InvalidSettingsError(f"max_wait_seconds must not be negative, not {seconds!r}")
    return checked


def check_limits(**limits: int | None) -> None:
    """Raise InvalidSettingsError for a limit below 1, and TypeError for one that is not an int."""
    for name, limit in limits.items():
        if limit is not None:
            as_count(limit, name)


def _exceeds(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit
