"""FrameBatch: a batch over the bytes of a local frame; FrameSelection: some of its records. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from walstore.core.batches import column_select
from walstore.core.batches.batch import Batch, SelectedBatch
from walstore.core.batches.column_select import rows_of, split_even
from walstore.core.batches.cost import BATCH_RECORDS
from walstore.core.format import frame
from walstore.core.format.frame import ColumnKind, FrameHeader
from walstore.core.format.packed import MalformedError, unpack_headers, unpack_names
from walstore.errors import CorruptionError
from walstore.records import NO_HEADERS

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")

_LARGE_BYTES: Final = 8 << 20
"""A longer frame is unpacked in parts, however few records it has."""


class FrameBatch(Batch):
    """A batch over the bytes of a local frame.

    Wrapping checks that the frame has a consistent set of columns of the right sizes. Their content is
    checked when they are decoded: CorruptionError if no writer makes such a column.
    """

    __slots__ = (
        "_columns",
        "_decoded",
        "_high",
        "_low",
        "_names",
        "_origin",
        "_places",
        "header",
    )

    def __init__(
        self, buffer: memoryview, header: FrameHeader, origin: tuple[Path, int] | None = None
    ) -> None:
        """Wrap a verified frame.

        ValueError if it uses a feature that this version lacks, MalformedError if no version writes
        such a frame. ``origin``, the file and the position that the buffer was read from, is named in
        errors.
        """
        self._wrap(header, frame.directory(buffer, header))
        self._origin = origin

    @classmethod
    def of_columns(
        cls, header: FrameHeader, columns: dict[int, tuple[int, memoryview]]
    ) -> FrameBatch:
        """Wrap the columns of a verified frame, as :attr:`kinds` and :meth:`column` told them elsewhere."""
        batch = cls.__new__(cls)
        batch._wrap(header, columns)
        return batch

    def _wrap(self, header: FrameHeader, columns: dict[int, tuple[int, memoryview]]) -> None:
        self.header = header
        self._origin = None
        self.start = header.start
        self.limit = header.start + header.count
        self._low = 0
        self._high = header.count
        self._columns = columns
        # Filled on demand. All views of the frame share the stream names (name → id); a view and its
        # slices share the decoded values.
        self._names: list[dict[str, int]] = []
        self._decoded: list[list[bytes]] = []
        # For a large frame, shared with slices: where every n-th row begins, for columns of lengths.
        self._places: dict[int, tuple[int, ...]] | None = None

    def slice(self, start: int, limit: int) -> FrameBatch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        if start == self.start and limit == self.limit:
            return self
        return self._part(start, limit, self._decoded)

    def view(self, start: int, limit: int) -> FrameBatch:
        """As :meth:`slice`, but values decoded for the view and its slices are freed with them."""
        self._check_inside(start, limit)
        return self._part(start, limit, [])

    def _part(self, start: int, limit: int, decoded: list[list[bytes]]) -> FrameBatch:
        part = FrameBatch.__new__(FrameBatch)
        part.header = self.header
        part._origin = self._origin
        part.start = start
        part.limit = limit
        part._low = start - self.header.start
        part._high = limit - self.header.start
        part._columns = self._columns
        part._names = self._names
        part._decoded = decoded
        if self._places is None and self._is_large:
            self._places = {}
        part._places = self._places
        return part

    def record_sizes(self) -> Iterator[int]:
        """Yield the bytes of each record, in offset order."""
        columns = [self._uints_of(ColumnKind.VALUE_LENGTHS, self._low, self._high)]
        for lengths in (ColumnKind.KEY_LENGTHS, ColumnKind.HEADER_LENGTHS):
            if self.has(lengths):
                columns.append(self._uints_of(lengths, self._low, self._high))
        if self.has(ColumnKind.STREAM_IDS):
            columns.append([len(name or "") for name in self.streams])
        return map(sum, zip(*columns, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole frame behind this batch, and of its columns if they were compressed."""
        header = self.header
        return header.length + (header.body_bytes if header.codec else 0)

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        if not self._decoded:
            if self._is_large and len(self) < self.header.count:
                return self._split_some_values()
            self._decoded.append(self._split_values())
        return self._cut(self._decoded[0])

    @property
    def has_decoded_values(self) -> bool:
        """Whether the values have been decoded and are kept."""
        return bool(self._decoded)

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return self._optional(ColumnKind.KEY_LENGTHS, ColumnKind.KEYS)

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        if not self.has(ColumnKind.STREAM_IDS):
            return [None] * len(self)
        names: list[str | None] = [None, *self.stream_names]
        try:
            return [
                names[at] for at in self._uints_of(ColumnKind.STREAM_IDS, self._low, self._high)
            ]
        except IndexError:
            self.refuse("a stream that has no name")

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        if not self.has(ColumnKind.HEADERS):
            return [NO_HEADERS] * len(self)
        if len(self) == self.header.count:
            return self.unpack_headers(
                self._blob(ColumnKind.HEADERS), self.uints(ColumnKind.HEADER_LENGTHS)
            )
        begin, sizes = self._place(ColumnKind.HEADER_LENGTHS, _optional_bytes)
        data = self._bytes_at(ColumnKind.HEADERS, begin, _optional_bytes(sizes))
        return self.unpack_headers(data, sizes)

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        base = self.header.base_timestamp_us
        if not self.has(ColumnKind.TIMESTAMP_DELTAS):
            return [base] * len(self)
        deltas = self._uints_of(ColumnKind.TIMESTAMP_DELTAS, self._low, self._high)
        times = [base + delta for delta in deltas]
        if times and max(times) > self.header.max_timestamp_us:
            self.refuse("a record that is newer than the last one")
        return times

    def _record_columns(self) -> tuple[Sequence[object], ...]:
        if len(self._columns) != 2:
            return super()._record_columns()
        # Only values. Most batches of callers that await each append are of this kind, and of one record.
        count = self._high - self._low
        nothing = [None] * count
        times = [self.header.base_timestamp_us] * count
        return self.values, nothing, nothing, [NO_HEADERS] * count, times

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; see :meth:`Batch.to_arrow`."""
        return self.records_to_arrow(self)

    def values_array(self) -> pa.BinaryArray:
        """Return the values as an Arrow array over the frame's own bytes."""
        from walstore.core.batches.arrow import values_array

        low, high = self.rows()
        return values_array(*self.value_buffer()).slice(low, high - low)

    def records_to_arrow(self, records: Batch, rows: Sequence[int] | None = None) -> pa.RecordBatch:
        """Return records of this frame, those at ``rows`` or all; what the frame does not have is cheap."""
        from walstore.core.batches.arrow import empty, of_columns, take_values

        if not len(records):
            return empty()
        values = self.values_array()
        if rows is not None:
            values = take_values(values, rows)
        has_times = self.has(ColumnKind.TIMESTAMP_DELTAS)
        return of_columns(
            records.offsets,
            records.timestamps_us if has_times else self.header.base_timestamp_us,
            values,
            records.keys if self.has(ColumnKind.KEYS) else None,
            records.streams if self.has(ColumnKind.STREAM_IDS) else None,
            records.headers if self.has(ColumnKind.HEADERS) else None,
        )

    def may_hold_stream(self, name: str) -> bool:
        """Return whether the frame holds a record of stream ``name``; decodes no record."""
        return name in self.stream_names

    def select_stream(self, name: str) -> Batch:
        """Return the records of stream ``name``, over the same interval; there may be none."""
        wanted = self.stream_names.get(name)
        rows: Sequence[int] = range(0)
        if wanted is not None:
            encoding, ids = self.column(ColumnKind.STREAM_IDS)
            rows = rows_of(wanted, ids, encoding, self.header.count)
            low, high = bisect_left(rows, self._low), bisect_left(rows, self._high)
            if high - low == len(self):
                return self
            rows = rows[low:high]
        return FrameSelection(
            self._part(self.header.start, self.header.limit, self._decoded),
            rows,
            self.start,
            self.limit,
        )

    @property
    def stream_names(self) -> Mapping[str, int]:
        """The streams with records in the frame, with their numbers in its column of ids."""
        names = self._names
        if not names:
            found: Sequence[str] = ()
            if self.has(ColumnKind.STREAM_NAMES):
                try:
                    found = unpack_names(self._blob(ColumnKind.STREAM_NAMES))
                except MalformedError as error:
                    self.refuse(str(error))
            names.append({name: number for number, name in enumerate(found, 1)})
        return names[0]

    def unpack_headers(
        self, data: memoryview | bytes, sizes: Sequence[int]
    ) -> Sequence[Mapping[str, bytes]]:
        """Return the headers of some of the records, decoded; ``sizes`` is 0 for those without any."""
        try:
            return unpack_headers(data, sizes, NO_HEADERS)
        except MalformedError as error:
            self.refuse(str(error))

    def value_buffer(self) -> tuple[memoryview, Sequence[int]]:
        """Return the values of the whole frame back to back, and their lengths."""
        values, lengths = self._blob(ColumnKind.VALUES), self.uints(ColumnKind.VALUE_LENGTHS)
        if sum(lengths) != len(values):
            self.refuse("lengths that are not those of its items")
        return values, lengths

    def check(self) -> None:
        """Decode all columns once; CorruptionError if no writer makes one of them."""
        self.value_buffer()
        for pair in (
            (ColumnKind.KEY_LENGTHS, ColumnKind.KEYS),
            (ColumnKind.HEADER_LENGTHS, ColumnKind.HEADERS),
        ):
            if self.has(pair[0]):
                self.sizes(*pair)
        _ = self.streams, self.headers, self.timestamps_us

    def refuse(self, why: str) -> NoReturn:
        """Raise CorruptionError: the frame has a right CRC and content that no writer makes."""
        path, position = self._origin or ("a batch in memory", 0)
        raise CorruptionError(
            f"batch at offset {self.header.start} holds {why}",
            path=str(path),
            position=position + self.header.position,
        )

    def rows(self) -> tuple[int, int]:
        """Return which rows of the frame this batch covers, half-open."""
        return self._low, self._high

    def has(self, kind: ColumnKind) -> bool:
        """Return whether the frame stores a column of that kind."""
        return kind in self._columns

    @property
    def kinds(self) -> Sequence[int]:
        """Which columns the frame stores."""
        return list(self._columns)

    def column(self, kind: int) -> tuple[int, memoryview]:
        """Return the encoding and the bytes of a column that the frame has."""
        return self._columns[kind]

    def encoded_columns(self) -> Iterator[frame.Column]:
        """Yield the columns of the frame's records as they are stored, uncompressed; no marks."""
        for kind, (encoding, data) in self._columns.items():
            if kind != ColumnKind.MARKS:
                yield frame.Column(kind, encoding, (data,), len(data))

    def uints(self, kind: ColumnKind) -> Sequence[int]:
        """Return an integer column that the frame has, decoded, one entry for each of its records."""
        if not self.header.count:
            return ()
        encoding, data = self._columns[kind]
        return frame.decode_uints(data, encoding, self.header.count)

    def sizes(self, lengths: ColumnKind, blob: ColumnKind) -> Sequence[int]:
        """Return the column of lengths n + 1, and 0 for None; they are those of the column of bytes."""
        sizes = self.uints(lengths)
        if _optional_bytes(sizes) != len(self._blob(blob)):
            self.refuse("lengths that are not those of its items")
        return sizes

    def _cut(self, column: Sequence[_T]) -> Sequence[_T]:
        if self._high - self._low == len(column):
            return column
        return column[self._low : self._high]

    def _split_values(self) -> list[bytes]:
        if not self.header.count:
            return []
        encoding, lengths = self._columns[ColumnKind.VALUE_LENGTHS]
        blob = self._blob(ColumnKind.VALUES)
        if encoding == frame.CONSTANT and blob:
            if self.header.count == 1:
                return [bytes(blob)]
            return split_even(blob, int.from_bytes(lengths, "little"))
        return self._split_all(blob, self.uints(ColumnKind.VALUE_LENGTHS))

    @property
    def _is_large(self) -> bool:
        """Whether readers unpack the frame in parts, so that no column is decoded whole for them."""
        return self.header.count > BATCH_RECORDS or self.nbytes > _LARGE_BYTES

    def _split_some_values(self) -> list[bytes]:
        begin, lengths = self._place(ColumnKind.VALUE_LENGTHS, sum)
        return _split(self._bytes_at(ColumnKind.VALUES, begin, sum(lengths)), lengths)

    def _bytes_at(self, kind: ColumnKind, begin: int, size: int) -> bytes:
        """Return some bytes of a column; all of them if the batch is a whole frame."""
        blob = self._blob(kind)
        is_all = len(self) == self.header.count
        if begin + size > len(blob) or (is_all and size != len(blob)):
            self.refuse("lengths that are not those of the column")
        return bytes(blob[begin : begin + size])

    def _optional(self, lengths: ColumnKind, blob: ColumnKind) -> Sequence[bytes | None]:
        """Decode a column in which length 0 means None and length n + 1 means n bytes."""
        if not self.has(blob):
            return [None] * len(self)
        if len(self) == self.header.count:
            sizes = self.uints(lengths)
            items = self._split_all(self._blob(blob), [size - 1 if size else 0 for size in sizes])
        else:
            begin, sizes = self._place(lengths, _optional_bytes)
            data = self._bytes_at(blob, begin, _optional_bytes(sizes))
            items = _split(data, [size - 1 if size else 0 for size in sizes])
        return [item if size else None for item, size in zip(items, sizes, strict=True)]

    def _split_all(self, blob: memoryview, lengths: Sequence[int]) -> list[bytes]:
        """Return the items of a whole column, which must add up to it."""
        ends = list(accumulate(lengths, initial=0))
        if ends[-1] != len(blob):
            self.refuse("lengths that are not those of its items")
        data = bytes(blob)
        return [data[low:high] for low, high in pairwise(ends)]

    def _place(
        self, lengths: ColumnKind, total: Callable[[Sequence[int]], int]
    ) -> tuple[int, Sequence[int]]:
        """Return where the rows of this batch begin in a column of bytes, and their length entries.

        ``total`` returns the bytes of some entries. The bytes before a row are summed once for every
        n-th row, or unpacking a frame would take quadratic time.
        """
        low = self._low
        places = (self._places or {}).get(lengths, (0,))
        while len(places) <= low // BATCH_RECORDS:
            at = (len(places) - 1) * BATCH_RECORDS
            places += (places[-1] + total(self._uints_of(lengths, at, at + BATCH_RECORDS)),)
            if self._places is not None:
                self._places[lengths] = places
        at = low // BATCH_RECORDS
        begin = places[at] + total(self._uints_of(lengths, at * BATCH_RECORDS, low))
        return begin, self._uints_of(lengths, low, self._high)

    def _uints_of(self, kind: ColumnKind, low: int, high: int) -> Sequence[int]:
        """Return the entries of some of the frame's rows in an integer column that it has."""
        encoding, data = self._columns[kind]
        high = max(low, min(high, self.header.count))
        if encoding != frame.CONSTANT:
            data = data[encoding * low : encoding * high]
        return frame.decode_uints(data, encoding, high - low)

    def _blob(self, kind: ColumnKind) -> memoryview:
        return self._columns[kind][1]


def _optional_bytes(sizes: Sequence[int]) -> int:
    """Return the bytes of entries in which 0 means None and n + 1 means n bytes."""
    return sum(sizes) - len(sizes) + sizes.count(0)


def _split(blob: bytes, lengths: Sequence[int]) -> list[bytes]:
    return [blob[low:high] for low, high in pairwise(accumulate(lengths, initial=0))]


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
        return self._source.records_to_arrow(self, self._rows)

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
