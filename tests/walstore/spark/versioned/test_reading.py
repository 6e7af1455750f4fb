"""Batch reads of collections, without Spark: tasks together read what a snapshot is."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.effort import first_seed
from tests.walstore.spark.versioned.histories import (
    KEYS,
    append,
    compact,
    counted,
    create,
    snapshot,
    table_of,
    write_history,
)
from uploader import Collection, CollectionStatus, Controller
from uploader.versioned import batch_file
from uploader.versioned.batch_groups import Key, RowGroup
from walstore import CollectionNotFoundError, InvalidSettingsError, LeaseExpiredError
from walstore.spark.versioned import reading
from walstore.spark.versioned.reading import ContentReader, cut, join
from walstore.spark.versioned.source import CollectionSource
from walstore.spark.versioned.types import to_spark


def reader_of(url: str, **options: Any) -> ContentReader:
    source = CollectionSource(
        {"path": url, **{name: str(value) for name, value in options.items()}}
    )
    found = source.reader(source.schema())
    assert isinstance(found, ContentReader)
    return found


def read(url: str, **options: Any) -> list[list[pa.RecordBatch]]:
    """Return what each task reads."""
    reader = reader_of(url, **options)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return [list(reader.read(partition)) for partition in partitions]


def rows_of(reader: ContentReader, partitions: Sequence[InputPartition]) -> Counter[Any]:
    rows: Counter[Any] = Counter()
    for partition in partitions:
        for batch in reader.read(partition):
            rows += counted(pa.table(batch))
    return rows


async def status_of(url: str) -> CollectionStatus:
    async with Collection.open(url) as collection:
        return await collection.status()


async def release_all(url: str) -> None:
    async with Controller.open(url) as controller:
        for name in (await status_of(url)).readers:
            await controller.expire(name)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(reading, "STEP_ROWS", 5)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("kind", ["diff", "upsert"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))]
)
def test_tasks_read_a_snapshot(name: str, kind: str, seed: int, tmp_path: Path) -> None:
    if kind == "upsert" and not KEYS[name][1]:
        pytest.skip("needs a key")
    chance = random.Random(seed + first_seed("tasks"))
    url, upper = asyncio.run(write_history(tmp_path, name, kind, chance))
    for as_of in sorted({0, upper - 1, chance.randrange(upper)}):
        found = read(url, asOf=as_of, minPartitions=chance.randrange(1, 6))
        expected = asyncio.run(snapshot(url, as_of))
        rows: Counter[Any] = Counter()
        for task in found:
            for batch in task:
                rows += counted(pa.table(batch))
        assert rows == counted(to_spark(expected))


def test_one_row_group_is_in_several_ranges(tmp_path: Path) -> None:
    """Small batches over all keys next to a large one: tasks read the same row groups, and each row once."""
    url = f"file://{tmp_path}"
    many = pa.table({"k": pa.array(range(400), pa.int32()), "j": [0] * 400, "v": ["x"] * 400})
    few = pa.table({"k": pa.array([0, 399], pa.int32()), "j": [0, 0], "v": ["y", "y"]})
    asyncio.run(create(url, "numbers", "upsert"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_file, "ROW_GROUP_ROWS", 50)
        asyncio.run(append(url, many, 0, 1))
        asyncio.run(append(url, few, 1, 2))
    tasks = read(url, minPartitions=4)
    assert len(tasks) == 4
    values = [row for task in tasks for batch in task for row in batch.to_pylist()]
    assert [row["k"] for row in values] == list(range(400)), "in the order of the keys"
    assert [row["k"] for row in values if row["v"] == "y"] == [0, 399]


def test_columns_that_are_chosen(tmp_path: Path) -> None:
    url, _ = asyncio.run(write_history(tmp_path, "numbers", "upsert", random.Random(3)))
    source = CollectionSource({"path": url})
    schema = StructType([StructField("v", StringType()), StructField("j", LongType())])
    reader = source.reader(schema)
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    expected = asyncio.run(snapshot(url)).select(["v", "j"]).to_pylist()
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
    wrong = StructType([StructField("j", StringType())])
    with pytest.raises(InvalidSettingsError, match="not j string"):
        source.reader(wrong).partitions()


def test_what_cannot_be_read(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    with pytest.raises(CollectionNotFoundError):
        read(url)
    asyncio.run(create(url, "numbers", "upsert"))
    assert read(url) == []
    with pytest.raises(InvalidSettingsError, match="no updates"):
        read(url, asOf=0)
    asyncio.run(append(url, table_of(*KEYS["numbers"], "upsert", range(5), random.Random(1)), 0, 5))
    with pytest.raises(InvalidSettingsError, match="the latest time is 4"):
        read(url, asOf=5)
    with pytest.raises(InvalidSettingsError, match="unknown option asoff"):
        read(url, asOff=1)


def test_reading_gives_up_no_time(tmp_path: Path) -> None:
    url, upper = asyncio.run(write_history(tmp_path, "numbers", "upsert", random.Random(3)))
    expected = counted(asyncio.run(snapshot(url, 0)))
    for _ in range(3):
        read(url)
    asyncio.run(compact(url))
    assert counted(asyncio.run(snapshot(url, 0))) == expected
    status = asyncio.run(status_of(url))
    assert [name.partition("-")[0] for name in status.readers] == ["shared"]
    assert upper == status.upper


def test_objects_stay_for_the_lease_and_no_longer(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    asyncio.run(create(url, "numbers", "upsert"))
    asyncio.run(append(url, pa.table({"k": [1, 2], "j": [1, 2], "v": ["a", "b"]}), 0, 5))
    expected = counted(asyncio.run(snapshot(url)))
    reader = reader_of(url, leaseSeconds=10 * 3600)
    partitions = reader.partitions()
    asyncio.run(compact(url, collects=True))
    assert rows_of(reader, partitions) == expected
    asyncio.run(release_all(url))
    asyncio.run(compact(url, collects=True))
    with pytest.raises(LeaseExpiredError, match="with more leaseSeconds"):
        rows_of(reader, partitions)
    assert rows_of(reader, reader.partitions()) == expected


def group_of(low: Key, high: Key, rows: int = 10) -> RowGroup:
    return RowGroup(number=0, rows=rows, start=0, limit=1, low=low, high=high, times=None)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_all_keys_and_about_equal(seed: int) -> None:
    chance = random.Random(seed + first_seed("ranges of keys"))
    lows = [(chance.randrange(50),) for _ in range(chance.randrange(1, 40))]
    groups = [group_of(low, (low[0] + chance.randrange(9),)) for low in lows]
    ranges = cut(groups, 30)
    assert (ranges[0].low, ranges[-1].high) == ((), None)
    assert all(one.high == other.low for one, other in pairwise(ranges))
    assert all(one.low < other.low for one, other in pairwise(ranges))
    for one in groups:
        assert any(range_.may_have(one) for range_ in ranges)
    pieces = list(join(ranges, chance.randrange(1, 9)))
    assert [range_ for piece in pieces for range_ in piece] == ranges
    assert all(pieces)


def test_what_cannot_be_divided() -> None:
    assert len(cut([group_of((), ())] * 9, 1)) == 1
    assert len(cut([group_of((7,), (7,))] * 9, 1)) == 2, "before it there may be others"
    assert len(cut([], 1)) == 1
