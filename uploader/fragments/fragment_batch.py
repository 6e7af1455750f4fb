"""FragmentBatch: records of a fragment as readers see them, over Arrow columns.

Columns become Python objects on first use, and only for the part that a slice covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from walstore.batches.arrow import SCHEMA
from walstore.batches.batch import Batch
from walstore.batches.selection import SelectedBatch
from walstore.records import NO_HEADERS


class FragmentBatch(Batch):
    """A batch over a table with the columns of ``walstore.batches.arrow.SCHEMA``."""

    __slots__ = ("_table", "_values")

    def __init__(self, table: pa.Table, *, start: int) -> None:
        """Wrap consecutive records, the first of which has the offset ``start``.

        The caller vouches for the offsets. ValueError for a table of other columns.
        """
        if table.schema != SCHEMA:
            raise ValueError(
                f"the columns must be those of walstore.batches.arrow.SCHEMA, not {table.schema}"
            )
        self.start = start
        self.limit = start + int(table.num_rows)
        self._table = table
        self._values: list[bytes] | None = None

    def slice(self, start: int, limit: int) -> FragmentBatch:
        """Return the part in ``[start, limit)``, sharing the bytes; ValueError if outside."""
        self._check_inside(start, limit)
        if start == self.start and limit == self.limit:
            return self
        return FragmentBatch(self._table.slice(start - self.start, limit - start), start=start)

    @property
    def nbytes(self) -> int:
        """Bytes of the records it covers. The memory goes when the last slice of a fragment goes."""
        return int(self._table.nbytes)

    @property
    def values(self) -> Sequence[bytes]:
        """The values, in offset order."""
        if self._values is None:
            self._values = cast(list[bytes], self._list("value"))
        return self._values

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return cast(list[bytes | None], self._list("key"))

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return cast(list[str | None], self._list("stream"))

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        if self._is_void("headers"):
            return [NO_HEADERS] * len(self)
        found = cast(list[list[tuple[str, bytes]] | None], self._list("headers"))
        return [dict(item) if item else NO_HEADERS for item in found]

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing. wal3's records have their fragment's."""
        return cast(list[int], self._list("timestamp_us"))

    def may_hold_stream(self, name: str) -> bool:
        """Return whether a record of stream ``name`` is in the batch; decodes none."""
        return int(pc.index(self._table.column("stream"), name).as_py()) >= 0

    def select_stream(self, name: str) -> Batch:
        """Return the records of stream ``name``, over the same interval; there may be none."""
        rows = pc.indices_nonzero(pc.equal(self._table.column("stream"), name)).to_pylist()
        if len(rows) == len(self):
            return self
        return FragmentSelection(self, rows, self.start, self.limit)

    def take(self, rows: Sequence[int]) -> pa.Table:
        """Return the records at these rows, counted from 0, copied together."""
        return self._table.take(pa.array(rows, pa.int64()))

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; see :meth:`Batch.to_arrow`.

        The bytes are shared as long as the records are in one row group of the fragment, else copied
        once; :meth:`to_arrow_batches` never copies.
        """
        columns = [_joined(column) for column in self._table.columns]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def to_arrow_batches(self) -> list[pa.RecordBatch]:
        """Return the records as RecordBatches, one per row group, sharing the bytes."""
        return cast(list[pa.RecordBatch], self._table.to_batches())

    def _is_void(self, name: str) -> bool:
        column = self._table.column(name)
        return bool(column.null_count == len(column))

    def _list(self, name: str) -> list[object]:
        if self._is_void(name):
            return [None] * len(self)
        return cast(list[object], self._table.column(name).to_pylist())


class FragmentSelection(SelectedBatch):
    """Some records of a fragment, copied together when their content is first used."""

    __slots__ = ("_taken",)

    _source: FragmentBatch

    def __init__(self, source: FragmentBatch, rows: Sequence[int], start: int, limit: int) -> None:
        """As :class:`walstore.batches.selection.SelectedBatch`."""
        super().__init__(source, rows, start, limit)
        self._taken: FragmentBatch | None = None

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The keys; None where a record has none."""
        return self._take().keys

    @property
    def streams(self) -> Sequence[str | None]:
        """The stream names; None where a record has none."""
        return self._take().streams

    @property
    def headers(self) -> Sequence[Mapping[str, bytes]]:
        """The headers; an empty mapping where a record has none."""
        return self._take().headers

    @property
    def timestamps_us(self) -> Sequence[int]:
        """Microseconds since 1970 UTC, never decreasing."""
        return self._take().timestamps_us

    def to_arrow(self) -> pa.RecordBatch:
        """Return a pyarrow RecordBatch; see :meth:`Batch.to_arrow`."""
        return self._take().to_arrow()

    def _pick_values(self) -> Sequence[bytes]:
        return self._take().values

    def _take(self) -> FragmentBatch:
        """Return the records back to back: the start of that batch means nothing."""
        if self._taken is None:
            self._taken = FragmentBatch(self._source.take(self._rows), start=0)
        return self._taken


def _joined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
