"""Which log a row goes to. Pure.

A key goes to ``crc32(key) % partitions``; so says Spark's ``pmod(crc32(key), partitions)``. Rows without a
key go where the task's other rows without one go.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc


def key_partitions(keys: pa.ChunkedArray, partitions: int, task: int) -> pa.Array:
    """Return the partition of each key; the task's own one for null."""
    own, crc32 = task % partitions, zlib.crc32
    return pa.array(
        [own if key is None else crc32(key) % partitions for key in keys.to_pylist()], pa.int64()
    )


def split(records: pa.Table, numbers: pa.Array) -> Iterator[tuple[int, pa.Table]]:
    """Yield the records of each partition, in their order; copied together once."""
    order = pc.sort_indices(numbers)  # stable
    counts = pc.value_counts(numbers.take(order))
    sorted_records = records.take(order)
    start = 0
    for number, count in zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True):
        yield number, sorted_records.slice(start, count)
        start += count
