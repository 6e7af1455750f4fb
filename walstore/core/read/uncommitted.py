"""Records that are accepted and not yet synced, for readers that request them.

They are read from the channel's batch builders, and once written from cache and files as any other. A
crash may lose them, and then other records may get their offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgpack

from walstore.core.append.channel import Channel
from walstore.core.batches.batch import Batch
from walstore.core.batches.batch_builder import BatchBuilder
from walstore.core.ports import Clock
from walstore.core.read.tiered import TieredSource
from walstore.records import NO_HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_MOST_RECORDS = 4096
"""Records taken from a builder at once: those of an open builder are copied."""


class AcceptedSource:
    """Implements :class:`walstore.core.read.read_source.ReadSource` up to the tail of an open log."""

    def __init__(self, source: TieredSource, channel: Channel, clock: Clock) -> None:
        self._source = source
        self._channel = channel
        self._clock = clock

    @property
    def head(self) -> int:
        """First offset that can be read."""
        return self._source.head

    @property
    def limit(self) -> int:
        """The log's tail, or the start of a large transaction that is being committed."""
        return self._channel.readable_limit

    @property
    def tail(self) -> int:
        """Next offset to be assigned."""
        return self._channel.tail

    async def wait_limit(self, limit: int) -> None:
        """Return when records up to ``limit`` are accepted; raises when the log closes."""
        while self.limit < limit:
            self._channel.check_readable()  # a failed log keeps the records that were being written
            if self.limit < self.tail:  # a large transaction is read once it is a segment
                await self._source.wait_limit(self.limit + 1)
            else:
                await self._channel.wait_accepted(limit)

    async def read(self, position: int, limit: int, max_bytes: int) -> list[Batch]:
        """Return consecutive batches from exactly ``position``; at least one record."""
        self._channel.check_readable()
        written = self._channel.written_limit
        if position < written:
            return await self._source.read(position, min(limit, written), max_bytes)
        found: list[Batch] = []
        size = 0
        for builder in self._channel.builders():
            if builder.limit <= position or (found and size >= max_bytes):
                continue
            if position >= limit or builder.spill is not None:
                break
            part = BuilderBatch.of(
                builder, position, min(builder.limit, limit), self._clock.now_us()
            )
            found.append(part)
            size += part.nbytes
            position = part.limit
            if position < builder.limit:
                break  # the rest of this builder comes before the next
        return found

    async def stored_bytes(self, position: int) -> int:
        """As of :class:`walstore.core.read.read_source.SizedSource`."""
        if position >= self._channel.written_limit:
            return 0
        return await self._source.stored_bytes(position)

    async def offset_at(self, timestamp_us: int) -> int:
        """Return the first durable offset at or after a time, or the durable limit."""
        return await self._source.offset_at(timestamp_us)


class BuilderBatch(Batch):
    """A copy of records in a batch builder, which may still change after them.

    Records appended without a time get that of the commit; here they show the current time.
    """

    __slots__ = ("_headers", "_keys", "_now_us", "_streams", "_times", "_values")

    def __init__(
        self,
        start: int,
        values: list[bytes],
        keys: list[bytes | None],
        streams: list[str | None],
        headers: list[bytes | None],
        times: list[int | None],
        now_us: int,
    ) -> None:
        """Wrap columns of the same length."""
        self.start = start
        self.limit = start + len(values)
        self._values = values
        self._keys = keys
        self._streams = streams
        self._headers = headers
        self._times = times
        self._now_us = now_us

    @classmethod
    def of(cls, builder: BatchBuilder, start: int, limit: int, now_us: int) -> BuilderBatch:
        """Take ``[start, limit)``, or the first few thousand records of it."""
        limit = min(limit, start + _MOST_RECORDS)
        low, rows = start - builder.start, limit - start
        return cls(
            start,
            builder.values[low : low + rows],
            _part(builder.keys, low, rows),
            _part(builder.streams, low, rows),
            _part(builder.headers, low, rows),
            _part(builder.timestamps_us, low, rows),
            now_us,
        )

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        return self._values

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return self._keys

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return self._streams

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        return [NO_HEADERS if item is None else msgpack.unpackb(item) for item in self._headers]

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        times: list[int] = []
        latest = 0
        for requested in self._times:
            latest = max(latest, self._now_us if requested is None else requested)
            times.append(latest)
        return times

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return sum(map(len, self._values))

    def slice(self, start: int, limit: int) -> BuilderBatch:
        """Return the part in ``[start, limit)``; ValueError if outside."""
        self._check_inside(start, limit)
        low, high = start - self.start, limit - self.start
        return BuilderBatch(
            start,
            self._values[low:high],
            self._keys[low:high],
            self._streams[low:high],
            self._headers[low:high],
            self._times[low:high],
            self._now_us,
        )

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; the values are copied."""
        from walstore.core.batches.arrow import of_columns

        return of_columns(
            self.offsets, self.timestamps_us, self.values, self.keys, self.streams, self.headers
        )


def _part(column: list[_T | None] | None, low: int, rows: int) -> list[_T | None]:
    """Return rows of an optional column, which may be shorter than the values."""
    if column is None:
        return [None] * rows
    found = column[low : low + rows]
    return found + [None] * (rows - len(found))
