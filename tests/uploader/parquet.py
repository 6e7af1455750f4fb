"""Parquet files of others: by arrow-rs, which wal3 uses, and by pyarrow bent to a purpose."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any

import arro3.io
import pyarrow as pa
import pyarrow.parquet as pq

from uploader.format.manifest import Fragment, Manifest
from uploader.fragments.fragment import verify_fragment
from uploader.fragments.fragment_file import fragment_timestamp
from uploader.stores.port import ObjectStore

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


async def copy_as_wal3(
    store: ObjectStore, manifest: Manifest, *, is_longer: bool = False, changed_us: int = 0
) -> None:
    """Write all fragments anew, as wal3's copy of a log does: the entries stay, the lengths are others.

    Keeps the records' values; their times become the fragments'. ``is_longer`` makes all objects longer than
    their entries say, else all are shorter. ``changed_us`` makes other records of them.
    """
    for entry in manifest.fragments:
        data = (await store.get(entry.path)).data
        made = await asyncio.to_thread(_by_wal3, data, entry, is_longer, changed_us)
        assert (len(made) > len(data)) == is_longer
        await store.delete([entry.path])
        await store.put_if_absent(entry.path, made)


def _by_wal3(data: bytes, entry: Fragment, is_longer: bool, changed_us: int) -> bytes:
    time_us = fragment_timestamp(data, path=entry.path) + changed_us
    table = wal3_table(entry.start, time_us, list(verify_fragment(data, entry).values))
    if is_longer:
        return by_pyarrow(table.replace_schema_metadata({"padding": "x" * len(data)}))
    return by_arrow_rs(table)
