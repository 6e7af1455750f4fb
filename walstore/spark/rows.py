"""Batches of a log as Arrow batches in Spark's schema. No I/O.

Values, keys and offsets keep their buffers. Constant columns (topic, partition, absent keys and streams) are
built once and sliced, because Spark needs a value in every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from walstore import Batch
from walstore.batches.arrow import HEADERS_TYPE, SCHEMA, offsets_array, offsets_of
from walstore.batches.concat import ConcatBatch
from walstore.spark.schema import HEADERS, HEADERS_ARROW, Projection, arrow_schema

MOST_ROWS: Final = 16 * 1024
"""Most rows of one Arrow batch. Spark scans a batch once for each column, so it should fit the processor's
cache: eight times as many rows took a fifth longer, half as many a tenth (bench/test_spark.py)."""
MOST_BYTES: Final = 16 << 20
"""Most bytes of one Arrow batch, approximately, if its rows have similar sizes."""
ENOUGH_BYTES: Final = 4 << 20
"""Small batches of a log are combined until they reach this size, or :data:`MOST_ROWS`."""
_SMALL_ROWS: Final = 64
"""Below this many rows each, Python lists cost less than concatenating Arrow arrays."""

PRODUCER_TIME: Final = 0
"""``timestampType`` in Kafka for a timestamp that the producer set."""


class RowBuilder:
    """Converts a log's batches to Arrow batches in Spark's schema."""

    def __init__(self, projection: Projection, *, topic: str, partition: int = 0) -> None:
        """Build the columns and records of ``projection``, for one log."""
        self._schema = arrow_schema(projection.names)
        self._streams = (
            None if projection.streams is None else pa.array(projection.streams, pa.string())
        )
        self._topic = topic
        self._partition = partition
        self._repeated: dict[str, pa.Array] = {}

    def build(self, batches: Iterable[Batch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of batches in order; buffers up to :data:`ENOUGH_BYTES` of small ones."""
        for parts in gather(batches):
            rows = _join(parts)
            if self._streams is not None:
                rows = rows.filter(pc.is_in(rows.column("stream"), value_set=self._streams))
            row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
            step = max(1, min(MOST_ROWS, MOST_BYTES // row_bytes))
            for at in range(0, rows.num_rows, step):
                part = rows.slice(at, step)
                columns = [self._column(part, name) for name in self._schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def count(self, start: int, limit: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ``[start, limit)`` for a projection that needs no stored column."""
        for low in range(start, limit, MOST_ROWS):
            offsets = offsets_array(low, min(low + MOST_ROWS, limit))
            rows = pa.RecordBatch.from_arrays([offsets], names=["offset"])
            columns = [self._column(rows, name) for name in self._schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        match name:
            case "offset" | "timestamp":
                source = rows.column("offset" if name == "offset" else "timestamp_us")
                return source.view(self._schema.field(name).type)
            case "topic":
                return self._constant(name, self._topic, len(rows))
            case "partition":
                return self._constant(name, self._partition, len(rows))
            case "timestampType":
                return self._constant(name, PRODUCER_TIME, len(rows))
        found = rows.column(name)
        if found.null_count == len(found):
            return self._constant(name, None, len(rows))
        return _headers(found) if name == HEADERS else found

    def _constant(self, name: str, value: object, rows: int) -> pa.Array:
        known = self._repeated.get(name)
        if known is None or len(known) < rows:
            scalar = pa.scalar(value, self._schema.field(name).type)
            known = self._repeated[name] = pa.repeat(scalar, rows)
        return known.slice(0, rows)


def gather(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Group small consecutive batches, so that many small commits make few Arrow batches."""
    parts: list[Batch] = []
    rows = size_bytes = 0
    for batch in batches:
        if parts and batch.start != parts[-1].limit:
            yield parts
            parts, rows, size_bytes = [], 0, 0
        parts.append(batch)
        rows += len(batch)
        size_bytes += batch.nbytes
        if rows >= MOST_ROWS or size_bytes >= ENOUGH_BYTES:
            yield parts
            parts, rows, size_bytes = [], 0, 0
    if parts:
        yield parts


def _join(parts: list[Batch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0].to_arrow()
    whole = ConcatBatch(parts)
    if len(whole) >= _SMALL_ROWS * len(parts):
        return whole.to_arrow()
    return pa.RecordBatch.from_arrays(
        [
            offsets_of(whole),
            pa.array(whole.timestamps_us, pa.uint64()),
            pa.array(whole.values, pa.binary()),
            pa.array(whole.keys, pa.binary()),
            pa.array(whole.streams, pa.string()),
            pa.array([list(item.items()) or None for item in whole.headers], HEADERS_TYPE),
        ],
        schema=SCHEMA,
    )


def _headers(found: pa.MapArray) -> pa.ListArray:
    """Return a map column as the list of pairs of Spark's Kafka source; null stays null."""
    low, high = (found.offsets[0].as_py(), found.offsets[-1].as_py()) if len(found) else (0, 0)
    pairs = pa.StructArray.from_arrays(
        [found.keys[low:high], found.items[low:high]], fields=list(HEADERS_ARROW.value_type)
    )
    offsets = pc.subtract(found.offsets, low)  # a new array: Arrow refuses a slice with a mask
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_ARROW, mask=found.is_null())
