"""What is read for few columns or for one stream: no more than that takes, and nothing is missing."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from tests import local
from tests.walstore.spark.many import write
from tests.walstore.spark.reading import (
    fill,
    planned,
    read_batches,
    read_rows,
    reader_of,
)
from uploader import CloudTier, UploadSettings, open_store
from uploader.stores.metering import MeteredStore
from walstore import Record, Settings, Wal
from walstore.errors import CorruptionError, OffsetTrimmedError
from walstore.spark.partitions import FragmentPartition
from walstore.spark.rows import Projection, spark_schema
from walstore.spark.task import FragmentSource

ALL = spark_schema(include_headers=True)


def only(*names: str) -> StructType:
    return StructType([ALL[name] for name in names])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That log, made once: tests have copies."""
    path = tmp_path_factory.mktemp("made") / "store"
    for stream in ("eu", "us", "eu", "us", None):
        write(f"{path.as_uri()}/orders", [os.urandom(2000) for _ in range(100)], stream=stream)
    return path


@pytest.fixture
def url(made: Path, tmp_path: Path) -> str:
    """A log of five fragments with long values: streams eu and us by turns, and one without."""
    return f"file://{shutil.copytree(made, tmp_path / 'store')}/orders"


def objects(url: str) -> list[Path]:
    return sorted(Path(url.removeprefix("file://")).glob("log/*/*.parquet"))


# -- counting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4])
def test_offsets_are_told_without_the_objects(url, count):
    reader = reader_of(url, only("offset", "topic", "partition"), minPartitions=count)
    for path in objects(url):
        path.unlink()
    rows = [
        row
        for found in read_batches(reader, reader.partitions())
        for x in found
        for row in x.to_pylist()
    ]
    expected = [{"offset": at, "topic": "orders", "partition": 0} for at in range(1, 501)]
    assert rows == expected
    assert read_rows(url, only("offset"), startingOffsets=7, endingOffsets=450) == [
        {"offset": at} for at in range(7, 450)
    ]


def test_offsets_of_a_directory_are_told_without_its_batches(log_directory):
    records = asyncio.run(fill(log_directory, settings=local.SMALL))
    reader = reader_of(log_directory, only("offset", "timestampType"))
    partitions = reader.partitions()
    for path in local.segments(log_directory):
        path.unlink()
    found = read_batches(reader, partitions)
    rows = [row for batches in found for batch in batches for row in batch.to_pylist()]
    assert rows == [{"offset": record.offset, "timestampType": 0} for record in records]


# -- columns ---------------------------------------------------------------------------------------


def test_few_columns_take_few_bytes(url):
    (partition,) = planned(url)
    assert isinstance(partition, FragmentPartition)
    received = {}
    for names in (("timestamp", "stream"), ("value",)):
        store = MeteredStore(open_store(url))
        with FragmentSource(url, Projection(names), store=store) as source:
            for part in partition.parts:
                source.read(part)
        received[names] = store.usage().received_bytes
    few, all_of_it = received.values()
    assert all_of_it > 1_000_000
    assert few < all_of_it / 20


@pytest.mark.parametrize(
    "names", [("timestamp",), ("stream", "offset"), ("timestamp", "topic", "stream"), ("key",)]
)
def test_few_columns_are_those_of_all(url, names):
    whole = read_rows(url)
    options = {"startingOffsets": 37, "endingOffsets": 444}
    assert read_rows(url, only(*names), **options) == [
        {name: row[name] for name in names} for row in whole[36:443]
    ]


# -- streams ---------------------------------------------------------------------------------------


def records_of(rows) -> list[int]:
    return [row["offset"] for row in rows]


def test_a_stream_is_read_alone(url):
    eu = [*range(1, 101), *range(201, 301)]
    assert records_of(read_rows(url, stream="eu")) == eu
    assert records_of(read_rows(url, only("offset"), stream="eu")) == eu
    assert read_rows(url, only("value"), stream="none") == []
    assert records_of(read_rows(url, stream="us", startingOffsets=150, minPartitions=9)) == [
        *range(150, 201),
        *range(301, 401),
    ]


def test_fragments_without_the_stream_are_not_fetched(url):
    (partition,) = planned(url)
    assert isinstance(partition, FragmentPartition)
    store = MeteredStore(open_store(url))
    with FragmentSource(url, Projection(("value",), frozenset(["eu"])), store=store) as source:
        found = [part.start for part, may_hold in source.holding(partition.parts) if may_hold]
    assert found == [1, 201]
    assert store.usage().received_bytes <= 5 * 4096
    assert store.usage().requests == 5
    for path in objects(url)[1::2]:
        data = path.read_bytes()
        path.write_bytes(bytes(len(data) - 4096) + data[-4096:])
    assert len(read_rows(url, stream="eu")) == 200
    with pytest.raises(CorruptionError):
        read_rows(url, stream="us")


def test_a_fragment_whose_footer_is_damaged_is_not_passed_over(url):
    path = objects(url)[1]
    data = path.read_bytes()
    path.write_bytes(data[:-8] + bytes(8))
    with pytest.raises(CorruptionError):
        read_rows(url, stream="eu")


def test_a_fragment_that_is_gone_is_not_passed_over(url):
    objects(url)[1].unlink()
    with pytest.raises(CorruptionError, match="missing"):
        read_rows(url, stream="eu")


async def test_a_stream_of_a_directory(log_directory):
    async with Wal.open(log_directory, settings=Settings(batch_bytes=4096)) as wal:
        for at in range(300):
            await wal.append(b"%d" % at, stream=("eu", "us", None)[at % 3], durability="memory")
        await wal.flush()
    for name, first in (("eu", 0), ("us", 1)):
        rows = await asyncio.to_thread(
            read_rows, log_directory, only("value", "stream"), stream=name
        )
        expected = [{"value": b"%d" % at, "stream": name} for at in range(first, 300, 3)]
        assert rows == expected
    assert await asyncio.to_thread(read_rows, log_directory, stream="asia") == []


def shipped(directory: Path, url: str) -> list[Record]:
    tier = CloudTier(url, settings=UploadSettings(fragment_bytes=16_384))
    return asyncio.run(fill(directory, settings=local.SMALL, tier=tier))


@pytest.mark.slow
def test_a_stream_of_files_that_were_deleted_meanwhile(log_directory, tmp_path):
    records = shipped(log_directory, f"file://{tmp_path}/store/orders")
    reader = reader_of(log_directory, only("offset", "value"), stream="eu")
    partitions = reader.partitions()
    for path in local.segments(log_directory)[:-1]:
        path.unlink()
    rows = [row for x in read_batches(reader, partitions) for y in x for row in y.to_pylist()]
    expected = [
        {"offset": record.offset, "value": record.value}
        for record in records
        if record.stream == "eu"
    ]
    assert rows == expected


def test_a_lost_file_fails_a_stream_too(log_directory):
    asyncio.run(fill(log_directory, settings=local.SMALL))
    reader = reader_of(log_directory, stream="eu")
    partitions = reader.partitions()
    local.segments(log_directory)[1].unlink()
    with pytest.raises(OffsetTrimmedError):
        read_batches(reader, partitions)
