"""Batch reads of collections, without Spark: tasks together read what a snapshot is."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.walstore.spark.versioned.histories import KEYS, counted, write_history
from uploader import Collection
from uploader.versioned import batch_file
from walstore.spark.versioned import reading
from walstore.spark.versioned.reading import BatchReader
from walstore.spark.versioned.source import CollectionSource
from walstore.spark.versioned.types import to_spark


def reader_of(url: str, **options: Any) -> BatchReader:
    source = CollectionSource(
        {"path": url, **{name: str(value) for name, value in options.items()}}
    )
    found = source.reader(source.schema())
    assert isinstance(found, BatchReader)
    return found


def read(url: str, **options: Any) -> list[list[pa.RecordBatch]]:
    """Return what each task reads."""
    reader = reader_of(url, **options)
    partitions = pickle.loads(pickle.dumps(reader.partitions()))
    return [list(reader.read(partition)) for partition in partitions]


async def snapshot(url: str, as_of: int | None = None) -> pa.Table:
    async with Collection.open(url) as collection, await collection.reader() as reader:
        return await reader.snapshot(as_of=as_of)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_file, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(reading, "STEP_ROWS", 5)


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("kind", ["diff", "upsert"])
@pytest.mark.parametrize("seed", range(6))
def test_tasks_read_a_snapshot(name: str, kind: str, seed: int, tmp_path: Path) -> None:
    if kind == "upsert" and not KEYS[name][1]:
        pytest.skip("needs a key")
    chance = random.Random(seed)
    url, upper = asyncio.run(write_history(tmp_path, name, kind, chance))
    for as_of in sorted({0, upper - 1, chance.randrange(upper)}):
        found = read(url, asOf=as_of, minPartitions=chance.randrange(1, 6))
        expected = asyncio.run(snapshot(url, as_of))
        rows: Counter[Any] = Counter()
        for task in found:
            for batch in task:
                rows += counted(pa.table(batch))
        assert rows == counted(to_spark(expected))
