"""Batch: consecutive records for readers, the cache, the uploader and Spark.

Batches are immutable views; columns are decoded on first use. :class:`FrameBatch` is backed by the
bytes of a local frame; the uploader has one backed by a Parquet fragment. Batches made of others are in
``derived.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat, starmap
from typing import TYPE_CHECKING, cast

from walstore.core.batches import column_select
from walstore.records import Record

if TYPE_CHECKING:
    import pyarrow as pa

_new_record = cast(Callable[[type[Record], Iterable[object]], Record], tuple.__new__)


class Batch(ABC):
    """The records of an interval ``[start, limit)``. Iterating yields :class:`Record`; ``len`` counts them.

    It contains all records of the interval, one at each offset, or for a reader of one stream those of
    the stream (:class:`walstore.core.batches.derived.SelectedBatch`). Batches may be cut at a reader's
    limits, so the bounds may differ from those of the commit.
    """

    __slots__ = ("limit", "start")

    start: int
    """Beginning of the interval: the offset of the first record, or before it."""
    limit: int
    """End of the interval: after the offset of the last record. Reading continues here."""

    @property
    def offsets(self) -> Sequence[int]:
        """The records' offsets, ascending; a range if they are consecutive."""
        return range(self.start, self.limit)

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
        """Approximate bytes of memory that it keeps alive."""

    @abstractmethod
    def slice(self, start: int, limit: int) -> Batch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""

    @abstractmethod
    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch (schema: :data:`walstore.core.batches.arrow.SCHEMA`).

        The values' bytes are shared, not copied. Needs the extra ``cloud`` or ``spark``. Offsets and times
        are unsigned, as they are stored; ``pyarrow.table(batch)`` has the columns for other engines.
        """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the records to whatever takes Arrow's C stream, as ``pyarrow.table``, Polars and DuckDB do.

        The columns are those of ``walstore.arrow.SCHEMA``: the names that Spark has, and signed types. Needs
        the extra ``cloud`` or ``spark``.
        """
        from walstore.core.batches.arrow import rows_of

        return rows_of(self.to_arrow()).__arrow_c_stream__(requested_schema)

    def first(self, most_bytes: int) -> Batch:
        """Return the first records that have up to ``most_bytes`` together, and one in any case.

        Shares the bytes.
        """
        if self.nbytes <= most_bytes:
            return self
        fitting = bisect_right(list(accumulate(self.record_sizes())), most_bytes)
        count = max(1, fitting)
        return self if count >= len(self) else self.slice(self.start, self.offsets[count])

    def may_hold_stream(self, name: str) -> bool:
        """Return False only if no record of stream ``name`` can be in the batch."""
        return name in self.streams

    def select_stream(self, name: str) -> Batch:
        """Return the records of stream ``name``, over the same interval; there may be none."""
        rows = [row for row, stream in enumerate(self.streams) if stream == name]
        if len(rows) == len(self):
            return self
        return SelectedBatch(self, rows, self.start, self.limit)

    def records(self) -> list[Record]:
        """Return the records as tuples."""
        return list(self)

    def __len__(self) -> int:
        return self.limit - self.start

    def __iter__(self) -> Iterator[Record]:
        return iterate(self, iter(self.offsets))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} [{self.start}, {self.limit})>"

    def _record_columns(self) -> tuple[Sequence[object], ...]:
        """Return the fields of :class:`Record` after the offset, decoded."""
        return self.values, self.keys, self.streams, self.headers, self.timestamps_us

    def record_sizes(self) -> Iterator[int]:
        """Yield the bytes of each record, in offset order."""
        return map(_size_of, self.values, self.keys, self.streams, self.headers)

    def _check_inside(self, start: int, limit: int) -> None:
        if not self.start <= start <= limit <= self.limit:
            raise ValueError(f"[{start}, {limit}) is not inside [{self.start}, {self.limit})")


def iterate(batch: Batch, offsets: Iterator[int]) -> Iterator[Record]:
    """Decode the columns of a batch, and return an iterator that makes each record when it is taken.

    ``offsets`` iterates over those of the batch; the iterator takes each together with its record.

    A list of all records takes twice the time if they are then taken one by one: thousands of new tuples
    that live at the same time are traversed by the garbage collector again and again.
    """
    columns = zip(offsets, *batch._record_columns(), strict=True)
    # Four times as fast as Record._make, which is a Python function.
    return starmap(_new_record, zip(repeat(Record), columns, strict=False))


def _size_of(
    value: bytes, key: bytes | None, stream: str | None, headers: Mapping[str, bytes]
) -> int:
    parts = len(value) + len(key or b"") + len(stream or "")
    return parts + sum(len(name) + len(data) for name, data in headers.items())


class SelectedBatch(Batch):
    """Records of a batch that need not be consecutive.

    ``[start, limit)`` is the examined interval: no other record in it was requested. A consumer that is
    done with the batch continues at ``limit``, as with any other.
    """

    __slots__ = ("_offsets", "_rows", "_source", "_values")

    def __init__(self, source: Batch, rows: Sequence[int], start: int, limit: int) -> None:
        """Select the records at ``rows`` of ``source``, counted from 0, ascending.

        Their offsets must be in ``[start, limit)``, which may extend beyond the source.
        """
        self.start = start
        self.limit = limit
        self._source = source
        self._rows = rows
        self._offsets: Sequence[int] | None = None
        self._values: Sequence[bytes] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def offsets(self) -> Sequence[int]:
        """The records' offsets, ascending; a range if they are consecutive."""
        if self._offsets is None:
            self._offsets = column_select.pick(self._source.offsets, self._rows)
        return self._offsets

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        if self._values is None:
            self._values = self._pick_values()
        return self._values

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return column_select.pick(self._source.keys, self._rows)

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return column_select.pick(self._source.streams, self._rows)

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        return column_select.pick(self._source.headers, self._rows)

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        return column_select.pick(self._source.timestamps_us, self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the source batch, whose memory it shares."""
        return self._source.nbytes

    def slice(self, start: int, limit: int) -> SelectedBatch:
        """Return the records in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        if start == self.start and limit == self.limit:
            return self
        offsets = self.offsets
        rows = self._rows[bisect_left(offsets, start) : bisect_left(offsets, limit)]
        return type(self)(self._source, rows, start, limit)

    def spanning(self, start: int, limit: int) -> SelectedBatch:
        """Return the same records over a larger interval."""
        return type(self)(self._source, self._rows, start, limit)

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; the values are copied. See :meth:`Batch.to_arrow`."""
        from walstore.core.batches.arrow import take

        whole = self._source.to_arrow()
        return whole if len(self._rows) == len(self._source) else take(whole, self._rows)

    def _pick_values(self) -> Sequence[bytes]:
        return column_select.pick(self._source.values, self._rows)
