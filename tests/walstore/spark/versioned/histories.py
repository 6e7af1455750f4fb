"""Random histories of collections in files, with what their readers return."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from uploader import Collection, Controller
from walstore.core.runtime.clock import SystemClock

KEYS: dict[str, Any] = {
    "numbers": (pa.schema([("k", pa.int32()), ("j", pa.int64()), ("v", pa.string())]), ("k", "j")),
    "text": (pa.schema([("k", pa.string()), ("j", pa.uint64()), ("v", pa.string())]), ("k",)),
    "nulls": (pa.schema([("k", pa.int64()), ("j", pa.int64()), ("v", pa.float64())]), ()),
    "floats": (pa.schema([("v", pa.float64()), ("k", pa.int64()), ("j", pa.bool_())]), ()),
    "bytes": (pa.schema([("k", pa.binary(2)), ("j", pa.bool_()), ("v", pa.int8())]), ("j", "k")),
}
"""Columns, and the key of a collection; without one it is ordered by all columns."""


def some(kind: pa.DataType, chance: random.Random, *, is_key: bool) -> Any:
    """Return a value; of those that are no key also null, and numbers that are none."""
    number = chance.randrange(12)
    if not is_key and number == 0:
        return None
    if pa.types.is_floating(kind):
        return chance.choice([float("nan"), 0.0, -0.0, float("-inf"), 1.5, 2.5])
    if pa.types.is_string(kind):
        return chance.choice(["", "a", "ab", "é", "z" * 40]) + str(number % 3)
    if pa.types.is_fixed_size_binary(kind):
        return bytes([number * 20, 255 - number])
    if pa.types.is_boolean(kind):
        return number % 2 == 1
    return number - (0 if pa.types.is_unsigned_integer(kind) else 5)


def table_of(
    columns: pa.Schema, key: Sequence[str], kind: str, times: range, chance: random.Random
) -> pa.Table:
    """Return some updates at some of the times."""
    count = chance.randrange(0, 12)
    rows = {
        field.name: pa.array(
            [some(field.type, chance, is_key=field.name in key) for _ in range(count)], field.type
        )
        for field in columns
    }
    rows["_t"] = pa.array([chance.choice(times) for _ in range(count)], pa.uint64())
    if kind == "diff":
        rows["_d"] = pa.array([chance.choice([1, 1, 2, -1]) for _ in range(count)], pa.int64())
    else:
        rows["_deleted"] = pa.array([chance.random() < 0.3 for _ in range(count)], pa.bool_())
    return pa.table(rows)


async def write_history(
    path: Path, name: str, kind: str, chance: random.Random, *, since: int | None = None
) -> tuple[str, int]:
    """Write a collection of some batches, some of them compacted; return its URL and where it ends."""
    url, upper = f"file://{path}", 0
    await create(url, name, kind)
    async with Collection.open(url) as collection, await collection.reader(since=0) as reader:
        for table, lower, upper in batches_of(name, kind, chance):
            await collection.writer().append(table, lower=lower, upper=upper)
            if chance.random() < 0.4:
                if since is not None:
                    await reader.downgrade_since(min(since, upper - 1))
                async with Controller.open(url) as controller:
                    await controller.compact(full=chance.random() < 0.3)
    return url, upper


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return the rows; numbers that are none are equal."""
    return Counter(
        tuple("nan" if value != value else value for value in row.values())  # noqa: PLR0124
        for row in table.to_pylist()
    )


def batches_of(name: str, kind: str, chance: random.Random) -> list[tuple[pa.Table, int, int]]:
    """Return batches that follow each other."""
    columns, key = KEYS[name]
    found, upper = [], 0
    for _ in range(chance.randrange(3, 9)):
        lower, upper = upper, upper + chance.randrange(1, 6)
        found.append((table_of(columns, key, kind, range(lower, upper), chance), lower, upper))
    return found


async def create(url: str, name: str, kind: str) -> None:
    columns, key = KEYS[name]
    async with Collection.open(url, create=True, schema=columns, key=key, kind=kind):  # type: ignore[arg-type]
        pass


async def append(url: str, table: pa.Table, lower: int, upper: int) -> None:
    async with Collection.open(url) as collection:
        await collection.writer().append(table, lower=lower, upper=upper)


class LaterClock(SystemClock):
    """Three hours ahead."""

    def now_us(self) -> int:
        return super().now_us() + 3 * 3600 * 1_000_000


async def compact(url: str, *, collects: bool = False) -> None:
    """Compact all; with ``collects`` also remove garbage, as if it was hours later."""
    async with Controller.open(url) as controller:
        await controller.compact(full=True)
    if collects:
        async with Controller.open(url, clock=LaterClock()) as controller:
            await controller.gc()


async def listened(url: str, upper: int) -> pa.Table:
    """Return all updates, as a listener gets them."""
    async with Collection.open(url) as collection, await collection.reader() as reader:
        found = []
        async for table, frontier in reader.listen(after=-1):
            found.append(table)
            if frontier >= upper:
                break
        return pa.concat_tables(found)


async def snapshot(url: str, as_of: int | None = None) -> pa.Table:
    async with Collection.open(url) as collection, await collection.reader() as reader:
        return await reader.snapshot(as_of=as_of)
