"""Reading as Spark does it, without Spark: every step takes a pickled copy of what the last one made."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import StructType

from walstore import Record
from walstore.records import to_timestamp_us
from walstore.spark.partition import LogPartition
from walstore.spark.reader import BatchReader
from walstore.spark.source import WalstoreSource


def copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def reader_of(
    location: str | Path, schema: StructType | None = None, **options: object
) -> BatchReader:
    given = CaseInsensitiveDict({name: str(value) for name, value in options.items()})
    given["path"] = str(location)
    source = copied(WalstoreSource(given))
    return copied(source.reader(schema or source.schema()))


def planned(location: str | Path, **options: object) -> list[LogPartition]:
    return [p for p in reader_of(location, **options).partitions() if isinstance(p, LogPartition)]


def read_batches(
    reader: BatchReader, partitions: Sequence[InputPartition]
) -> list[list[pa.RecordBatch]]:
    return [list(copied(reader).read(copied(partition))) for partition in partitions]


def read_rows(
    location: str | Path, schema: StructType | None = None, **options: object
) -> list[dict[str, Any]]:
    reader = reader_of(location, schema, **options)
    found = read_batches(reader, reader.partitions() or [InputPartition(None)])
    return [row for batches in found for batch in batches for row in batch.to_pylist()]


def to_record(row: dict[str, Any]) -> Record:
    headers = {item["key"]: item["value"] for item in row.get("headers") or ()}
    return Record(
        row["offset"],
        row["value"],
        row["key"],
        row["stream"],
        headers,
        to_timestamp_us(row["timestamp"]),
    )


def read_records(location: str | Path, **options: object) -> list[Record]:
    rows = read_rows(location, includeHeaders="true", **options)
    return [to_record(row) for row in rows]
