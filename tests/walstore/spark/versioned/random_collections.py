"""Random histories of collections in a directory, and what Spark should read of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import pyarrow as pa

from tests.walstore.spark.versioned.columns import EVERY, table
from tests.walstore.spark.versioned.histories import snapshot
from uploader import Collection, Controller
from uploader.versioned.schema import Kind
from walstore.spark.versioned.types import to_spark

NARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("a", pa.int8()), ("b", pa.uint8()), ("c", pa.uint16()), ("d", pa.uint32()),
        ("e", pa.float32()), ("f", pa.string()), ("g", pa.decimal128(5, 2)), ("h", pa.int32()),
    ]
)  # fmt: skip
"""What becomes wider and longer in :data:`STEPS`."""
STEPS = (
    NARROW,
    pa.schema(
        [
            NARROW.field("id"),
            ("a", pa.int32()), ("b", pa.uint64()), ("c", pa.uint32()), ("d", pa.uint64()),
            ("e", pa.float64()), ("f", pa.large_string()), ("g", pa.decimal128(12, 2)),
            ("h", pa.int64()), ("i", pa.uint32()),
        ]
    ),
    pa.schema(
        [
            NARROW.field("id"),
            ("a", pa.int64()), ("b", pa.uint64()), ("c", pa.uint64()), ("d", pa.uint64()),
            ("e", pa.float64()), ("f", pa.large_string()), ("g", pa.decimal128(30, 2)),
            ("h", pa.int64()), ("i", pa.uint64()), ("j", pa.timestamp("us")),
        ]
    ),
)  # fmt: skip

_T = TypeVar("_T")


def run(call: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run(call)


async def build(
    url: str,
    kind: Kind,
    seed: int,
    *,
    steps: tuple[pa.Schema, ...] = (EVERY,),
    batches: int = 12,
    compactions: float = 0.3,
) -> list[int]:
    """Write random batches, evolve, compact at random; return times as of which it can be read."""
    rng = random.Random(seed)
    async with (
        Collection.open(url, create=True, schema=steps[0], key=("id",), kind=kind) as collection,
        Controller.open(url) as keeper,
        await collection.reader() as reader,
    ):
        upper = 0
        ends = {"w0": 0, "w1": 0}
        written: list[tuple[int, pa.Table]] = []

        async def catch_up(name: str) -> None:
            """Publish what a shard lacks as one batch: the shards' batches end at different times."""
            lower = max(ends[name], (await collection.status()).merged_upper)
            tables = [rows for at, rows in written if at >= lower]
            if lower < upper:
                rows = pa.concat_tables(tables)
                await collection.writer(name).append(rows, lower=lower, upper=upper)
            ends[name] = upper

        for number in range(batches):
            columns = steps[number * len(steps) // batches]
            if not collection.schema.columns.equals(columns):
                for name in ends:
                    await catch_up(name)
                written = []
                await collection.evolve(columns)
            length = rng.randint(1, 9)
            written.append((upper, updates_of(kind, columns, rng, upper, length)))
            upper += length
            await catch_up(rng.choice(sorted(ends)))
            if rng.random() < 0.2:
                await reader.downgrade_since(rng.randrange(reader.frontier, upper))
            if rng.random() < compactions:
                await keeper.compact(full=rng.random() < 0.3)
        return sorted({reader.frontier, upper - 1, rng.randrange(reader.frontier, upper)})


def updates_of(
    kind: Kind, columns: pa.Schema, rng: random.Random, lower: int, length: int
) -> pa.Table:
    count = rng.randrange(20)
    found = table(count, rng, columns)
    if kind == "diff" and count:  # some rows again, so that they add up
        found = pa.concat_tables([found, found.take([rng.randrange(count) for _ in range(count)])])
    rows = found.num_rows
    times = sorted(rng.randrange(lower, lower + length) for _ in range(rows))
    found = found.append_column("_t", pa.array(times, pa.uint64()))
    if kind == "diff":
        return found.append_column(
            "_d", pa.array([rng.choice([-1, 1, 2]) for _ in range(rows)], pa.int64())
        )
    return found.append_column(
        "_deleted", pa.array([rng.random() < 0.3 for _ in range(rows)], pa.bool_())
    )


def expected(url: str, as_of: int | None = None) -> Counter[str]:
    """Return the rows that Spark should show, in its types."""
    return counted(to_spark(run(snapshot(url, as_of))))


def counted(rows: pa.Table) -> Counter[str]:
    """Return how often each row occurs; text, since NaN is not equal to itself."""
    zoneless = [
        column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column
        for column in rows.columns
    ]
    plain: Iterable[dict[str, Any]] = pa.table(zoneless, names=rows.column_names).to_pylist()
    return Counter(str(sorted(row.items())) for row in plain)
