"""Batches made of others: some of a batch's records, such as those of one stream (SelectedBatch), several
batches (ConcatBatch), or none (EmptyBatch). Pure.

A selection shares the columns of its source batch, and decodes only the selected parts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from walstore.batches import column_select
from walstore.batches.batch import Batch, FrameBatch
from walstore.format import frame
from walstore.format.frame import ColumnKind
from walstore.records import NO_HEADERS

if TYPE_CHECKING:
    import pyarrow as pa


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
        from walstore.batches.arrow import take

        whole = self._source.to_arrow()
        return whole if len(self._rows) == len(self._source) else take(whole, self._rows)

    def _pick_values(self) -> Sequence[bytes]:
        return column_select.pick(self._source.values, self._rows)


class FrameSelection(SelectedBatch):
    """Some records of a frame."""

    __slots__ = ()

    _source: FrameBatch

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return self._pick_optional(ColumnKind.KEY_LENGTHS, ColumnKind.KEYS)

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        source = self._source
        if not source.has(ColumnKind.STREAM_IDS):
            return [None] * len(self)
        names: list[str | None] = [None, *source.stream_names]
        try:
            return [
                names[at]
                for at in column_select.pick(source.uints(ColumnKind.STREAM_IDS), self._rows)
            ]
        except IndexError:
            source.refuse("a stream that has no name")

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        if not self._source.has(ColumnKind.HEADERS):
            return [NO_HEADERS] * len(self)
        packed = self._pick_optional(ColumnKind.HEADER_LENGTHS, ColumnKind.HEADERS)
        data = b"".join(item for item in packed if item is not None)
        return self._source.unpack_headers(data, [item is not None for item in packed])

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        source = self._source
        base = source.header.base_timestamp_us
        if not source.has(ColumnKind.TIMESTAMP_DELTAS):
            return [base] * len(self)
        deltas = source.uints(ColumnKind.TIMESTAMP_DELTAS)
        times = [base + delta for delta in column_select.pick(deltas, self._rows)]
        if times and max(times) > source.header.max_timestamp_us:
            source.refuse("a record that is newer than the last one")
        return times

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; the values are copied. See :meth:`Batch.to_arrow`."""
        from walstore.batches.arrow import selected_to_arrow

        return selected_to_arrow(self, self._source, self._rows)

    def _pick_values(self) -> Sequence[bytes]:
        source = self._source
        if source.has_decoded_values:
            return column_select.pick(source.values, self._rows)
        encoding, lengths = source.column(ColumnKind.VALUE_LENGTHS)
        if encoding == frame.CONSTANT:
            size = frame.decode_uints(lengths, encoding, 1)[0]
            return column_select.pick_even_blobs(
                source.column(ColumnKind.VALUES)[1], size, self._rows
            )
        return column_select.pick_blobs(*source.value_buffer(), self._rows)

    def _pick_optional(self, lengths: ColumnKind, blob: ColumnKind) -> Sequence[bytes | None]:
        if not self._source.has(blob):
            return [None] * len(self)
        data = self._source.column(blob)[1]
        return column_select.pick_optional_blobs(
            data, self._source.sizes(lengths, blob), self._rows
        )


def select(batch: Batch, rows: Sequence[int]) -> Batch:
    """Return the records at ``rows`` of any batch, over the same interval."""
    if len(rows) == len(batch):
        return batch
    return SelectedBatch(batch, rows, batch.start, batch.limit)


def spanning(batch: Batch, start: int, limit: int) -> Batch:
    """Return the records of a batch over a larger interval than its own."""
    if start == batch.start and limit == batch.limit:
        return batch
    if isinstance(batch, SelectedBatch):
        return batch.spanning(start, limit)
    return SelectedBatch(batch, range(len(batch)), start, limit)


def covering(batches: Sequence[Batch], start: int, limit: int) -> list[Batch]:
    """Return ordered batches with their intervals extended to cover ``[start, limit)`` without gaps.

    Each is extended back to the end of the previous one, and the last one to ``limit``.
    """
    found: list[Batch] = []
    for batch in batches:
        found.append(spanning(batch, start, batch.limit))
        start = batch.limit
    if found:
        found[-1] = spanning(found[-1], found[-1].start, limit)
    return found


class EmptyBatch(Batch):
    """No records, at a position, or in an interval without requested records."""

    __slots__ = ()

    def __init__(self, start: int, limit: int | None = None) -> None:
        """Cover ``[start, limit)``, by default nothing at ``start``."""
        self.start = start
        self.limit = start if limit is None else limit

    def __len__(self) -> int:
        return 0

    @property
    def offsets(self) -> Sequence[int]:
        """No offsets."""
        return range(0)

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
        """Return a part of the interval; ValueError if outside."""
        self._check_inside(start, limit)
        return EmptyBatch(start, limit)

    def to_arrow(self) -> pa.RecordBatch:
        """Return a RecordBatch without rows."""
        from walstore.batches.arrow import empty

        return empty()


class ConcatBatch(Batch):
    """Several consecutive batches as one."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Batch]) -> None:
        """Concatenate ``parts``, each of which begins where the previous one ends."""
        self._parts = parts
        self.start = parts[0].start
        self.limit = parts[-1].limit

    @property
    def parts(self) -> Sequence[Batch]:
        """The batches, in order."""
        return self._parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def offsets(self) -> Sequence[int]:
        """The records' offsets, ascending; a range if they are consecutive."""
        if len(self) == self.limit - self.start:
            return range(self.start, self.limit)
        return [offset for part in self._parts for offset in part.offsets]

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

    def record_sizes(self) -> Iterator[int]:
        """Yield the bytes of each record, in offset order."""
        return chain.from_iterable(part.record_sizes() for part in self._parts)

    def slice(self, start: int, limit: int) -> Batch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        parts = [
            part.slice(max(start, part.start), min(limit, part.limit))
            for part in self._parts
            if part.start < limit and part.limit > start
        ]
        return ConcatBatch(parts) if parts else EmptyBatch(start)

    def may_hold_stream(self, name: str) -> bool:
        """Return False only if no record of stream ``name`` can be in the batch."""
        return any(part.may_hold_stream(name) for part in self._parts)

    def select_stream(self, name: str) -> Batch:
        """Return the records of stream ``name``, over the same interval; there may be none."""
        return ConcatBatch([part.select_stream(name) for part in self._parts])

    def to_arrow(self) -> pa.RecordBatch:
        """Return one RecordBatch; the parts are copied together."""
        from walstore.batches.arrow import concat

        return concat([part.to_arrow() for part in self._parts])
