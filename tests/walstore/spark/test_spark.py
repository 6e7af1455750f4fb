"""The source in a real Spark: planning, workers, schema and errors as its users meet them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession, functions

from tests import local
from tests.walstore.spark.reading import fill
from uploader import CloudTier, UploadSettings
from walstore import Record, Wal
from walstore.core.files.posix import PosixFileSystem
from walstore.records import to_timestamp_us
from walstore.spark import register
from walstore.testing import FaultyFileSystem

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

DDL = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
    "timestampType:int,stream:string"
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/orders"


@pytest.fixture
def records(log_directory: Path, url: str) -> list[Record]:
    """A log whose older part lies in the store alone."""
    tier = CloudTier(url, settings=UploadSettings(fragment_bytes=16_384))
    settings = local.SMALL.replace(retention_bytes=0)
    return asyncio.run(fill(log_directory, settings=settings, tier=tier))


def collect(frame) -> list[Record]:
    rows = frame.orderBy("offset").collect()
    return [
        Record(
            row.offset,
            bytes(row.value),
            None if row.key is None else bytes(row.key),
            row.stream,
            {item.key: bytes(item.value) for item in row.headers or ()},
            to_timestamp_us(row.timestamp.astimezone()),
        )
        for row in rows
    ]


def test_columns(spark: SparkSession, log_directory, records):
    frame = spark.read.format("walstore").load(str(log_directory))
    assert frame.schema.simpleString() == DDL + ">"
    frame = spark.read.format("walstore").option("includeHeaders", "true").load(str(log_directory))
    assert frame.schema.simpleString() == DDL + ",headers:array<struct<key:string,value:binary>>>"


def test_every_record_from_store_and_directory(spark: SparkSession, log_directory, url, records):
    for place in (url, str(log_directory)):
        reader = spark.read.format("walstore").option("includeHeaders", "true")
        frame = reader.option("minPartitions", 4).load(place)
        assert frame.rdd.getNumPartitions() >= 4
        assert collect(frame) == records
        summary = frame.agg(
            functions.count("*"),
            functions.countDistinct("offset"),
            functions.sum(functions.length("value")),
            functions.min("topic"),
        ).first()
        size_bytes = sum(len(record.value) for record in records)
        topic = place.rpartition("/")[2]
        assert tuple(summary) == (len(records), len(records), size_bytes, topic)


def test_a_live_tail(spark: SparkSession, log_directory):
    frame = spark.read.format("walstore").schema("value binary").load

    async def append_and_look() -> None:
        fs = FaultyFileSystem(PosixFileSystem())
        async with Wal.open(log_directory, fs=fs) as wal:
            await wal.append_many([b"durable"] * 5)
            with fs.hold("datasync") as hold:
                wal.append_nowait(b"accepted")
                await hold.wait_entered()
                assert await asyncio.to_thread(frame(str(log_directory)).count) == 5
            await wal.flush()
            assert await asyncio.to_thread(frame(str(log_directory)).count) == 6

    asyncio.run(append_and_look())


def test_nothing_to_read(spark: SparkSession, url, records):
    frame = spark.read.format("walstore").option("startingOffsets", "latest").load(url)
    assert frame.count() == 0


def test_options_reach_the_source(spark: SparkSession, url, records):
    reader = spark.read.format("walstore").option("startingOffsets", '{"orders":{"0":100}}')
    assert reader.option("endingOffsets", 200).load(url).count() == 100
    with pytest.raises(AnalysisException, match=r"unknown option startingofset; known are path"):
        spark.read.format("walstore").option("startingOfset", 1).load(url)


def test_errors_say_what_happened(spark: SparkSession, tmp_path, url, records):
    reader = spark.read.format("walstore")
    for read in (reader, spark.readStream.format("walstore")):
        with pytest.raises(AnalysisException, match="LogNotFoundError: there is no log at"):
            read.load(str(tmp_path / "nothing"))
    frame = reader.schema("value binary").load(str(tmp_path / "nothing"))  # Spark asks nothing yet
    with pytest.raises(AnalysisException, match="LogNotFoundError: there is no log at"):
        frame.count()
    with pytest.raises(AnalysisException, match="OffsetNotWrittenError: the read would go beyond"):
        reader.option("endingOffsets", 5000).load(url).count()
    with pytest.raises(AnalysisException, match="a schema may only choose from the log's columns"):
        spark.read.format("walstore").schema("price int").load(url).count()


def test_workers_run_this_interpreter(spark: SparkSession):
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect() == [
        sys.executable
    ]


def test_registering_twice(spark: SparkSession):
    register(spark)
    register(spark)
