"""Parquet files of others: by arrow-rs, which wal3 uses, and by pyarrow bent to a purpose."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import arro3.io
import pyarrow as pa
import pyarrow.parquet as pq

WAL3_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp_us", pa.uint64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)


def wal3_table(start: int, timestamp_us: int, bodies: Sequence[bytes]) -> pa.Table:
    """Return the three columns of wal3."""
    rows = len(bodies)
    columns = [range(start, start + rows), [timestamp_us] * rows, bodies]
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, WAL3_SCHEMA, strict=True)], schema=WAL3_SCHEMA
    )


def by_arrow_rs(table: pa.Table, **options: Any) -> bytes:
    """Return a file written by arrow-rs; with wal3's compression unless told otherwise."""
    sink = io.BytesIO()
    arro3.io.write_parquet(table, sink, **({"compression": "snappy"} | options))
    return sink.getvalue()


def by_pyarrow(table: pa.Table, **options: Any) -> bytes:
    """Return a file written by pyarrow."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def read_by_arrow_rs(data: bytes) -> pa.Table:
    """Return what arrow-rs makes of a file."""
    return pa.table(arro3.io.read_parquet(io.BytesIO(data)))
