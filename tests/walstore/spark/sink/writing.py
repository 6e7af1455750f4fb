"""Writing as Spark does it, without Spark: every step takes a pickled copy of what the last one made."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.uploader.partitioned.writes import records_in
from tests.walstore.spark.versions import sparks_arrow_schema
from uploader.stores import open_store
from walstore import Record
from walstore.spark.sink.writers import MicroBatchWriter
from walstore.spark.source import WalstoreSource

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
TYPES = {
    "binary": BinaryType(),
    "headers": HEADERS,
    "int": IntegerType(),
    "long": LongType(),
    "map": MapType(StringType(), BinaryType()),
    "string": StringType(),
    "timestamp": TimestampType(),
}


def schema_of(columns: str) -> StructType:
    """Return a schema, as ``value string, key binary``; Spark's own parser needs a session."""
    pairs = [column.split() for column in columns.split(",")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def source(url: str, **options: object) -> WalstoreSource:
    given = CaseInsensitiveDict({name: str(value) for name, value in options.items()})
    given["path"] = url
    return copied(WalstoreSource(given))


def batch(schema: StructType, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows as Spark hands them over."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    target = sparks_arrow_schema(schema)
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def write_job(
    url: str, ddl: str, *tasks: Sequence[Sequence[Any]], commits: bool = True, **options: object
) -> list[WriterCommitMessage]:
    """Write a batch job of so many tasks."""
    schema = schema_of(ddl)
    writer = copied(source(url, **options).writer(schema, overwrite=False))
    messages = [
        copied(copied(writer).write(iter([batch(schema, rows)] if rows else []))) for rows in tasks
    ]
    if commits:
        copied(writer).commit(messages)
    else:
        copied(writer).abort([*messages, None])
    return messages


def write_epoch(
    url: str,
    ddl: str,
    epoch: int,
    *tasks: Sequence[Sequence[Any]],
    stream: str = "stream-1",
    commits: bool = True,
    **options: object,
) -> None:
    """Write a micro-batch of so many tasks."""
    schema = schema_of(ddl)
    writer = stream_writer(url, ddl, **options)
    messages = [
        copied(
            copied(writer).stage(
                iter([batch(schema, rows)]), stream=stream, epoch=str(epoch), task=number
            )
        )
        for number, rows in enumerate(tasks)
    ]
    other = stream_writer(url, ddl, **options)
    if commits:
        other.commit(messages, epoch)
    else:
        other.abort([*messages, None], epoch)


def stream_writer(url: str, ddl: str, **options: object) -> MicroBatchWriter:
    return source(url, **options).streamWriter(schema_of(ddl), overwrite=False)


def records(url: str, partition: int = 0) -> list[Record]:
    """Return all that is in one log, which must verify."""

    async def read() -> list[Record]:
        store = open_store(url)
        try:
            return await records_in(store, partition)
        finally:
            await store.aclose()

    return asyncio.run(read())


def values(url: str, partition: int = 0) -> list[bytes]:
    return [record.value for record in records(url, partition)]


def left_over(directory: Path) -> list[str]:
    """Return what lies in the sink's folders but for the records of queries."""
    found = (directory / "sink").rglob("*") if (directory / "sink").exists() else ()
    return [str(path) for path in found if path.is_file() and "queries" not in path.parts]
