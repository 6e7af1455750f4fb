"""Batch: consecutive records as readers, the cache, the uploader and Spark see them.

Batches are immutable views; columns are decoded on first use. :class:`FrameBatch` is backed by the
bytes of a local frame; the uploader has one backed by a Parquet fragment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, TypeVar, cast

import msgpack

from walstore import frame
from walstore.frame import FrameHeader, Kind
from walstore.records import NO_HEADERS, Record

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")

# Three times as fast as Record._make, which is a Python function.
_new_record = cast(Callable[[Iterable[object]], Record], partial(tuple.__new__, Record))


class Batch(ABC):
    """Consecutive records ``[start, limit)``. Iterating yields :class:`Record`; ``len`` counts them.

    Batches may be cut at a reader's limits, so the bounds need not be those of the commit.
    """

    __slots__ = ("limit", "start")

    start: int
    """Offset of the first record."""
    limit: int
    """Offset after the last record."""

    @property
    @abstractmethod
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""

    @property
    @abstractmethod
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""

    @property
    @abstractmethod
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""

    @property
    @abstractmethod
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """About how many bytes of memory it holds on to."""

    @abstractmethod
    def slice(self, start: int, limit: int) -> Batch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""

    @abstractmethod
    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch (schema: :data:`walstore.arrow.SCHEMA`).

        The values' bytes are shared, not copied. Needs the extra ``cloud`` or ``spark``.
        """

    def may_hold_stream(self, name: str) -> bool:
        """Return False only if no record of stream ``name`` can be in the batch."""
        return name in self.streams

    def records(self) -> list[Record]:
        """Return the records as tuples."""
        columns = zip(
            range(self.start, self.limit),
            self.values,
            self.keys,
            self.streams,
            self.headers,
            self.timestamps_us,
            strict=True,
        )
        return list(map(_new_record, columns))

    def __len__(self) -> int:
        return self.limit - self.start

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} [{self.start}, {self.limit})>"

    def _check_inside(self, start: int, limit: int) -> None:
        if not self.start <= start <= limit <= self.limit:
            raise ValueError(f"[{start}, {limit}) is not inside [{self.start}, {self.limit})")


class FrameBatch(Batch):
    """A batch over the bytes of a local frame."""

    __slots__ = ("_columns", "_decoded", "_high", "_low", "header")

    def __init__(self, buffer: memoryview, header: FrameHeader) -> None:
        """Wrap a verified frame; ValueError if it uses a feature this version lacks."""
        self.header = header
        self.start = header.start
        self.limit = header.limit
        self._low = 0
        self._high = header.count
        self._columns = frame.directory(buffer, header)
        # The decoded values, shared by all slices of one frame; filled on demand.
        self._decoded: dict[Kind, list[bytes]] = {}

    def slice(self, start: int, limit: int) -> FrameBatch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        if start == self.start and limit == self.limit:
            return self
        part = FrameBatch.__new__(FrameBatch)
        part.header = self.header
        part.start = start
        part.limit = limit
        part._low = start - self.header.start
        part._high = limit - self.header.start
        part._columns = self._columns
        part._decoded = self._decoded
        return part

    @property
    def nbytes(self) -> int:
        """Bytes of the whole frame behind this batch."""
        return self.header.length

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        found = self._decoded.get(Kind.VALUES)
        if found is None:
            found = self._decoded[Kind.VALUES] = self._split_values()
        return self._cut(found)

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return self._cut(self._optional(Kind.KEY_LENGTHS, Kind.KEYS))

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        if not self.has(Kind.STREAM_IDS):
            return [None] * len(self)
        names: list[str | None] = [None]
        names += msgpack.unpackb(self._blob(Kind.STREAM_NAMES))
        return self._cut([names[at] for at in self._uints(Kind.STREAM_IDS)])

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        if not self.has(Kind.HEADERS):
            return [NO_HEADERS] * len(self)
        packed = self._cut(self._optional(Kind.HEADER_LENGTHS, Kind.HEADERS))
        return [NO_HEADERS if item is None else msgpack.unpackb(item) for item in packed]

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        base = self.header.base_timestamp_us
        if not self.has(Kind.TIMESTAMP_DELTAS):
            return [base] * len(self)
        return self._cut([base + delta for delta in self._uints(Kind.TIMESTAMP_DELTAS)])

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; see :meth:`Batch.to_arrow`."""
        from walstore.arrow import to_arrow

        return to_arrow(self)

    def may_hold_stream(self, name: str) -> bool:
        """Return whether the frame holds a record of stream ``name``; decodes no record."""
        return self.has(Kind.STREAM_NAMES) and name in msgpack.unpackb(
            self._blob(Kind.STREAM_NAMES)
        )

    def value_buffer(self) -> tuple[memoryview, Sequence[int]]:
        """Return the values of the whole frame back to back, and their lengths."""
        return self._blob(Kind.VALUES), self._uints(Kind.VALUE_LENGTHS)

    def rows(self) -> tuple[int, int]:
        """Return which rows of the frame this batch covers, half-open."""
        return self._low, self._high

    def has(self, kind: Kind) -> bool:
        """Return whether the frame stores a column of that kind."""
        return kind in self._columns

    def _cut(self, column: Sequence[_T]) -> Sequence[_T]:
        if self._high - self._low == len(column):
            return column
        return column[self._low : self._high]

    def _split_values(self) -> list[bytes]:
        if not self.header.count:
            return []
        encoding, lengths = self._columns[Kind.VALUE_LENGTHS]
        blob = bytes(self._blob(Kind.VALUES))
        if encoding == frame.CONSTANT and blob:
            size = int.from_bytes(lengths, "little")
            return [blob[at : at + size] for at in range(0, len(blob), size)]
        return _split(blob, self._uints(Kind.VALUE_LENGTHS))

    def _optional(self, lengths: Kind, blob: Kind) -> Sequence[bytes | None]:
        """Decode a column in which length 0 means None and length n + 1 means n bytes."""
        if not self.has(blob):
            return [None] * self.header.count
        sizes = self._uints(lengths)
        items = _split(bytes(self._blob(blob)), [size - 1 if size else 0 for size in sizes])
        return [item if size else None for item, size in zip(items, sizes, strict=True)]

    def _uints(self, kind: Kind) -> Sequence[int]:
        if not self.header.count:
            return ()
        encoding, data = self._columns[kind]
        return frame.decode_uints(data, encoding, self.header.count)

    def _blob(self, kind: Kind) -> memoryview:
        return self._columns[kind][1]


def _split(blob: bytes, lengths: Sequence[int]) -> list[bytes]:
    return [blob[low:high] for low, high in pairwise(accumulate(lengths, initial=0))]


class EmptyBatch(Batch):
    """No records, at a position."""

    __slots__ = ()

    def __init__(self, position: int) -> None:
        self.start = self.limit = position

    @property
    def values(self) -> Sequence[bytes]:
        """No values."""
        return ()

    @property
    def keys(self) -> Sequence[bytes | None]:
        """No keys."""
        return ()

    @property
    def streams(self) -> Sequence[str | None]:
        """No stream names."""
        return ()

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """No headers."""
        return ()

    @property
    def timestamps_us(self) -> Sequence[int]:
        """No timestamps."""
        return ()

    @property
    def nbytes(self) -> int:
        """No bytes."""
        return 0

    def slice(self, start: int, limit: int) -> EmptyBatch:
        """Return itself; ValueError for other bounds."""
        self._check_inside(start, limit)
        return self

    def to_arrow(self) -> pa.RecordBatch:
        """Return a RecordBatch without rows."""
        from walstore.arrow import empty

        return empty()


class ConcatBatch(Batch):
    """Several batches that follow each other, as one."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Batch]) -> None:
        """Join ``parts``, of which each begins where the one before ends."""
        self._parts = parts
        self.start = parts[0].start
        self.limit = parts[-1].limit

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        return [value for part in self._parts for value in part.values]

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return [key for part in self._parts for key in part.keys]

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return [stream for part in self._parts for stream in part.streams]

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        return [headers for part in self._parts for headers in part.headers]

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        return [time for part in self._parts for time in part.timestamps_us]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self._parts)

    def slice(self, start: int, limit: int) -> Batch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        parts = [
            part.slice(max(start, part.start), min(limit, part.limit))
            for part in self._parts
            if part.start < limit and part.limit > start
        ]
        return ConcatBatch(parts) if parts else EmptyBatch(start)

    def to_arrow(self) -> pa.RecordBatch:
        """Return one RecordBatch; the parts are copied together."""
        from walstore.arrow import concat

        return concat([part.to_arrow() for part in self._parts])
