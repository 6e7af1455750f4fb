"""Rows of ``format("walstore")``: Kafka's columns and ``stream``, built from the batches of a log. No I/O.

One table has the types of Spark and of Arrow. Spark compares the Arrow schema of a task's batches with its
own exactly, but only for the first batch; so every batch is built from :func:`arrow_schema`.

Values, keys and offsets keep their buffers. Constant columns (topic, partition, absent keys and streams) are
built once and sliced, because Spark needs a value in every row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from walstore import Batch, InvalidSettingsError
from walstore.core.batches.arrow import offsets_array
from walstore.core.batches.derived import ConcatBatch

_HEADER_FIELDS: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
HEADERS_ARROW: Final = pa.list_(pa.field("element", pa.struct(_HEADER_FIELDS)))
_HEADERS_SPARK: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
HEADERS: Final = "headers"

_COLUMNS: Final[dict[str, tuple[DataType, pa.DataType]]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (IntegerType(), pa.int32()),
    "stream": (StringType(), pa.string()),
    HEADERS: (_HEADERS_SPARK, HEADERS_ARROW),
}


def spark_schema(*, include_headers: bool) -> StructType:
    """Return all columns; ``headers`` only on request, since it costs the most to decode."""
    return StructType(
        [
            StructField(name, spark)
            for name, (spark, _) in _COLUMNS.items()
            if include_headers or name != HEADERS
        ]
    )


def column_names(schema: StructType) -> tuple[str, ...]:
    """Return the names in a schema, which the caller may have passed to ``.schema(...)``.

    It may leave columns out, which saves decoding them, and order them freely; the types are fixed.
    InvalidSettingsError otherwise.
    """
    known = {name: spark for name, (spark, _) in _COLUMNS.items()}
    refusal = (
        "a schema may only choose from the log's columns ({columns}), all nullable; not {field}"
    )
    return check_chosen(schema, known, refusal)


def check_chosen(
    schema: StructType, known: Mapping[str, DataType], refusal: str
) -> tuple[str, ...]:
    """Return the names in a schema that chooses from ``known`` columns, in any order.

    InvalidSettingsError for no column, and for one that is named twice; for one that is not known, by its
    name and type, it says ``refusal``, which has ``{columns}`` and ``{field}``.
    """
    for field in schema.fields:
        if known.get(field.name) != field.dataType or not field.nullable:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            found = f"{field.name} {field.dataType.simpleString()}"
            raise InvalidSettingsError(refusal.format(columns=columns, field=found))
    names = tuple(schema.fieldNames())
    if not names or len(set(names)) != len(names):
        raise InvalidSettingsError("a schema needs one or more columns, each named once")
    return names


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema that Spark expects for these columns."""
    return pa.schema([pa.field(name, _COLUMNS[name][1]) for name in names])


_STORED_AS: Final = {
    "key": "key",
    "value": "value",
    "timestamp": "timestamp_us",
    "stream": "stream",
    HEADERS: "headers",
}
"""Columns that are stored in the log, as ``arrow.SCHEMA`` names them; the others are known without it."""


@dataclass(frozen=True, slots=True)
class Projection:
    """Which columns and which records a read returns."""

    names: tuple[str, ...]
    """Columns of the rows, in order."""
    streams: frozenset[str] | None = None
    """The streams whose records are read; None for all records, also those without a stream."""

    @property
    def columns(self) -> frozenset[str]:
        """Stored columns to read; empty if topic, partition and offsets are enough."""
        filtered = {"stream"} if self.streams is not None else set()
        return frozenset(filtered | {_STORED_AS[name] for name in self.names if name in _STORED_AS})


MOST_ROWS: Final = 16 * 1024
"""Most rows of one Arrow batch. Spark scans a batch once for each column, so it should fit the processor's
cache: eight times as many rows took a fifth longer, half as many a tenth (bench/test_spark.py)."""
MOST_BYTES: Final = 16 << 20
"""Most bytes of one Arrow batch, approximately, if its rows have similar sizes."""
ENOUGH_BYTES: Final = 4 << 20
"""Small batches of a log are combined until they reach this size, or :data:`MOST_ROWS`."""

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
            rows = (parts[0] if len(parts) == 1 else ConcatBatch(parts)).to_arrow()
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


def _headers(found: pa.MapArray) -> pa.ListArray:
    """Return a map column as the list of pairs of Spark's Kafka source; null stays null."""
    low, high = (found.offsets[0].as_py(), found.offsets[-1].as_py()) if len(found) else (0, 0)
    pairs = pa.StructArray.from_arrays(
        [found.keys[low:high], found.items[low:high]], fields=list(HEADERS_ARROW.value_type)
    )
    offsets = pc.subtract(found.offsets, low)  # a new array: Arrow refuses a slice with a mask
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS_ARROW, mask=found.is_null())
