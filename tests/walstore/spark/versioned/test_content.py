"""Spark reads what a reader's snapshot has: by its own Parquet reader, and by Python tasks."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.effort import first_seed, some
from tests.walstore.spark.versioned.columns import EVERY
from tests.walstore.spark.versioned.random_collections import STEPS, build, counted, expected, run
from uploader import Collection, Controller, Purged
from walstore.core.runtime.clock import SystemClock
from walstore.errors import CollectionNotFoundError, InvalidSettingsError
from walstore.spark import FastPathError, read_collection
from walstore.spark.fast_path import jvm

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]
BATCHES = some(2000)


class Fixed(SystemClock):
    """A clock that stands still."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/c"


@pytest.mark.parametrize("steps", [(EVERY,), STEPS], ids=["every", "evolved"])
@pytest.mark.parametrize("kind", ["diff", "upsert"])
@pytest.mark.parametrize("seed", range(2))
def test_it_is_the_snapshot(spark, url, kind, steps, seed):
    for as_of in run(build(url, kind, seed + first_seed("collections"), steps=steps)):
        wanted = expected(url, as_of)
        for path in ("always", "never"):
            found = read_collection(spark, url, as_of, fast_path=path)
            assert counted(found.toArrow()) == wanted


def test_many_pending_batches(spark, url):
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])

    async def fill() -> None:
        async with Collection.open(
            url, create=True, schema=columns, key=("id",), kind="upsert"
        ) as collection:
            writer = collection.writer()
            for at in range(BATCHES):
                rows = pa.table({"id": [at % 100], "name": [str(at)]})
                await writer.append(rows, lower=at, upper=at + 1)

    run(fill())
    found = read_collection(spark, url, fast_path="always")
    assert counted(found.toArrow()) == expected(url)
    assert len(found.inputFiles()) == BATCHES
    assert counted(
        read_collection(spark, url, BATCHES - 51, fast_path="never").toArrow()
    ) == expected(url, BATCHES - 51)


@pytest.fixture
def small(url):
    """A collection with two batches, merged, and one that is pending."""

    async def fill() -> None:
        columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("a.`b", pa.float64())])
        async with (
            Collection.open(
                url, create=True, schema=columns, key=("id",), kind="upsert"
            ) as collection,
            Controller.open(url) as keeper,
        ):
            writer = collection.writer()
            for at in range(3):
                rows = pa.table({"id": [1, 2 + at], "a.`b": [float(at), math.nan]})
                await writer.append(rows, lower=at, upper=at + 1)
                if at == 1:
                    await keeper.compact(full=True)

    run(fill())
    return url


def readers(url: str) -> set[str]:
    async def find() -> set[str]:
        async with Collection.open(url) as collection:
            return set((await collection.status()).readers)

    return run(find())


def test_its_reader_stays_and_holds_the_objects(spark, small):
    found = read_collection(spark, small, name="report")
    assert readers(small) == {"report"}
    wanted = expected(small)

    async def collect() -> None:
        hours = [SystemClock().now_us() + 3600_000_000 * hour for hour in (0, 3)]
        for now_us in hours:
            clock = Fixed(now_us)
            async with Controller.open(small, take_over=True, clock=clock) as keeper:
                await keeper.compact(full=True)
                purged.append(await keeper.gc())

    purged: list[Purged] = []
    run(collect())
    assert purged[0].held_by == "report"
    assert purged[1].held_by is None  # its lease has ended
    assert readers(small) == set()
    assert purged[1].merged
    with pytest.raises((PySparkException, Py4JJavaError)):
        found.collect()
    assert counted(read_collection(spark, small).toArrow()) == wanted


def test_a_failed_call_leaves_no_reader_of_its_own(spark, small, monkeypatch):
    monkeypatch.setattr(jvm, "scan", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read_collection(spark, small, name="report")
    assert readers(small) == set()


def test_calls_without_a_name_share_a_reader(spark, small, monkeypatch):
    monkeypatch.setattr(jvm, "scan", lambda *_, **__: 1 / 0)  # the reader is registered before
    for _ in range(120):
        with pytest.raises(ZeroDivisionError):
            read_collection(spark, small)
    (name,) = readers(small)
    assert name.startswith("shared-")


def test_python_reads_where_the_jvm_cannot(spark, small, monkeypatch, caplog):
    def refuse(*_, **__):
        raise FastPathError("no access")

    monkeypatch.setattr(jvm, "require_access", refuse)
    with caplog.at_level("INFO", "walstore.spark"):
        assert counted(read_collection(spark, small).toArrow()) == expected(small)
    assert "no access" in caplog.text
    with pytest.raises(FastPathError):
        read_collection(spark, small, fast_path="always")


@pytest.mark.parametrize("path", ["always", "never"])
def test_a_collection_without_updates(spark, url, path):
    async def create() -> None:
        async with Collection.open(
            url, create=True, schema=pa.schema([("a", pa.int64())]), kind="diff"
        ):
            pass

    run(create())
    found = read_collection(spark, url, fast_path=path)
    assert (found.columns, found.collect()) == (["a", "_d"], [])


def test_without_sparks_vectorised_reader(spark, url):
    run(build(url, "upsert", 3, steps=STEPS))
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", "false")
    try:
        found = read_collection(spark, url, fast_path="always").toArrow()
    finally:
        spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
    assert counted(found) == expected(url)


def test_what_it_refuses(spark, url):
    async def create() -> None:
        columns = pa.schema([("a", pa.int64()), ("A", pa.int64())])
        async with Collection.open(url, create=True, schema=columns, kind="diff"):
            pass

    run(create())
    with pytest.raises(InvalidSettingsError, match="does not distinguish"):
        read_collection(spark, url)
    with pytest.raises(InvalidSettingsError, match="memory:"):
        read_collection(spark, "memory://here")
    with pytest.raises(InvalidSettingsError, match="fast_path"):
        read_collection(spark, url, fast_path="maybe")
    with pytest.raises(CollectionNotFoundError):
        read_collection(spark, url + "-not")


@pytest.mark.parametrize("path", ["always", "never"])
@pytest.mark.parametrize("as_of", [10, 2**63 - 1, 2**63, 2**64 - 3, None])
def test_times_of_64_bits(spark, tmp_path, as_of, path):
    url = f"file://{tmp_path}/c"

    async def fill() -> None:
        columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.uint64())])
        async with Collection.open(
            url, create=True, schema=columns, key=("id",), kind="upsert"
        ) as collection:
            times = pa.array([5, 2**63 - 1, 2**63, 2**64 - 2], pa.uint64())
            rows = pa.table({"id": [1] * 4, "at": times, "_t": times})
            await collection.writer().append(rows, lower=0, upper=2**64 - 1)

    run(fill())
    found = read_collection(spark, url, as_of, fast_path=path)
    assert counted(found.toArrow()) == expected(url, as_of)
