"""Reading as Spark does it, without Spark: every step takes a pickled copy of what the last one made."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.types import StructType

from tests import local
from walstore import Record, Wal
from walstore.records import to_timestamp_us
from walstore.spark.partitions import LogPartition
from walstore.spark.reader import BatchReader
from walstore.spark.source import WalstoreSource
from walstore.testing import ManualClock

START_US = 1_700_000_000_000_000


async def fill(path: Path, count: int = 1000, **options: Any) -> list[Record]:
    """Write a log, some of its records with all there is, a millisecond apart each ten; return them."""
    clock = ManualClock(now_us=START_US)
    async with Wal.open(path, clock=clock, **options) as wal:
        for at in range(0, count, 10):
            values = [b"%d" % n * 180 for n in range(at, at + 9)]
            await wal.append_many(values, durability="memory")
            await wal.append(
                b"%d" % at,
                key=b"k%d" % at,
                stream="eu",
                headers={"h": b"%d" % at},
                durability="memory",
            )
            await wal.flush()
            clock.advance(0.001)
        return await local.read_all(wal)


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
