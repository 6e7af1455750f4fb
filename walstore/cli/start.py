"""Places in a log as people write them: earliest, latest, an offset, the last N records, a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from walstore.cli.errors import UsageError
from walstore.cli.source import OpenedLog
from walstore.records import to_timestamp_us

_FIRST_STEP = 4096
"""How many records are looked at first to find the last ones of a stream."""


@dataclass(frozen=True, slots=True)
class StartPlace:
    """A place in a log, not yet resolved to an offset. Exactly one field is set."""

    word: str | None = None
    """``earliest`` or ``latest``."""
    offset: int | None = None
    last: int | None = None
    """So many records before the end."""
    timestamp_us: int | None = None

    async def resolve(self, log: OpenedLog, stream: str | None = None) -> int:
        """Return the offset in ``log``; the last N records are those of the stream, if one is named."""
        if self.offset is not None:
            return self.offset
        if self.last is not None and stream is not None:
            return await _last_of_stream(log, stream, self.last)
        if self.last is not None:
            return max(log.head, log.limit - self.last)
        if self.timestamp_us is not None:
            return await log.offset_at(self.timestamp_us)
        return log.head if self.word == "earliest" else log.limit


def check_stream(name: str | None) -> str | None:
    """Return what was given with ``--stream``; UsageError if no stream can have that name."""
    if name == "":
        raise UsageError("a stream name is never empty; leave --stream out to see all records")
    return name


async def _last_of_stream(log: OpenedLog, stream: str, count: int) -> int:
    """Return the offset of the last record but ``count`` of a stream, or that of its first one.

    Looks backwards, at four times as many records each time, at none twice.
    """
    limit, step, missing = log.limit, _FIRST_STEP, count
    while missing > 0 and limit > log.head:
        start = max(log.head, limit - step)
        offsets: list[int] = []
        async for batch in log.batches(start, limit, stream=stream):
            offsets += batch.offsets
        if len(offsets) >= missing:
            return offsets[-missing]
        missing -= len(offsets)
        limit, step = start, step * 4
    return log.limit if count == 0 else log.head


def parse_place(text: str) -> StartPlace:
    """Parse what was given with ``--from`` or ``--to``; UsageError if it is nothing of the kind."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return StartPlace(word=word)
    if re.fullmatch(r"\d{1,19}", word):
        return StartPlace(offset=int(word))
    if re.fullmatch(r"-\d{1,19}", word):
        return StartPlace(last=-int(word))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"not a place in a log: {text!r}; give 'earliest', 'latest', an offset, -N for the last "
            "N records, or a time such as 2025-06-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return StartPlace(timestamp_us=max(to_timestamp_us(moment), 0))
