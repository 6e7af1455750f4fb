"""Who reads, what is found wrong and when, and what the JVM's reader spares."""

from __future__ import annotations

import asyncio
import logging
import random
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tests.walstore.spark.fast_path.building import (
    drop_first,
    is_native,
    ours,
    put_log,
    records,
    rows_of,
    wal3,
)
from tests.walstore.spark.reading import fill
from walstore.errors import (
    CorruptionError,
    InvalidSettingsError,
    LogNotFoundError,
    OffsetNotWrittenError,
    OffsetTrimmedError,
)
from walstore.spark import FastPathError, read
from walstore.spark.fast_path import jvm
from walstore.spark.fast_path.jvm import hadoop_store


@pytest.fixture
def log(tmp_path):
    """Three fragments of 50 records."""
    return put_log(tmp_path / "store", [ours(records(1 + 50 * at, 50, at)) for at in range(3)])


@pytest.fixture
def url(tmp_path, log) -> str:
    return f"file://{tmp_path}/store"


# -- without Spark -----------------------------------------------------------------------------


def session(master: str) -> SimpleNamespace:
    """What a session shows of where it runs; this is as far as the question goes."""
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master), _jvm=object())


def test_a_directory_needs_all_on_one_machine():
    store = hadoop_store("file:///data", {})
    for master in ("local", "local[2]", "local-cluster[2,1,1024]"):
        jvm.require_access(session(master), store, is_shared=False)
    with pytest.raises(FastPathError, match=r"the executors of spark://h:7077 may not see"):
        jvm.require_access(session("spark://h:7077"), store, is_shared=False)
    jvm.require_access(session("spark://h:7077"), store, is_shared=True)


def test_a_session_without_a_jvm():
    with pytest.raises(FastPathError, match="a Spark Connect session"):
        jvm.require_jvm(SimpleNamespace())
    jvm.require_jvm(session("local"))


def test_mistakes_are_named(url):
    with pytest.raises(InvalidSettingsError, match="fast_path must be auto, always or never"):
        read(session("local"), url, fast_path="sometimes")
    with pytest.raises(InvalidSettingsError, match="unknown option startingofset"):
        read(session("local"), url, startingOfset=1)


# -- with Spark --------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
class TestReading:
    """What happens in a real session."""

    def test_who_reads(self, spark, url, log, caplog):
        assert is_native(read(spark, url))
        assert not is_native(read(spark, url, fast_path="never"))
        with (
            caplog.at_level(logging.INFO, "walstore.spark"),
            pytest.raises(PySparkException, match="no usable credentials"),  # it looks at once
        ):
            read(spark, "s3://nowhere/at-all", {"store.region": "eu-west-1"})
        assert "s3://nowhere/at-all is read by Python: the JVM has no S3A connector" in caplog.text
        with pytest.raises(
            FastPathError, match=r"spark.jars.packages=org.apache.hadoop:hadoop-aws:3"
        ):
            read(spark, "s3://nowhere/at-all", fast_path="always")

    def test_what_was_planned_is_read(self, spark, tmp_path, log_directory):
        """A frame does not grow with its log."""
        asyncio.run(fill(log_directory, 100))
        frame = read(spark, log_directory)
        assert frame.count() == 100
        asyncio.run(fill(log_directory, 50))
        assert frame.count() == 100
        assert read(spark, log_directory).count() == 150

    def test_offsets_that_are_not_there(self, spark, url, tmp_path):
        with pytest.raises(LogNotFoundError):
            read(spark, tmp_path / "nothing")
        with pytest.raises(OffsetNotWrittenError, match="failOnDataLoss=false reads what is there"):
            read(spark, url, endingOffsets=1000)
        assert read(spark, url, endingOffsets=1000, failOnDataLoss=False).count() == 150

    def test_what_was_collected_before(self, spark, url, tmp_path):
        drop_first(tmp_path / "store")
        with pytest.raises(OffsetTrimmedError, match="failOnDataLoss=false starts at the head"):
            read(spark, url, startingOffsets=1)
        for options in ({}, {"startingOffsets": 1, "failOnDataLoss": False}):
            frame = read(spark, url, options, fast_path="always")
            assert [row[4] for row in rows_of(frame)] == list(range(51, 151))

    @pytest.mark.parametrize("way", ["auto", "always"])
    def test_damage_that_shows_at_once(self, spark, url, log, way):
        whole = log[1].read_bytes()
        for data in (whole[:-1], whole + b"x", ours(records(51, 49, 1)), None):
            log[1].unlink()
            if data is not None:
                log[1].write_bytes(data)
            with pytest.raises(CorruptionError):
                read(spark, url, fast_path=way)

    @pytest.mark.parametrize("ignore", ["true", "false"])
    def test_damage_and_loss_later(self, spark, url, log, ignore):
        """Also where the session says that damaged and missing files may be passed over."""
        names = ["spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"]
        for name in names:
            spark.conf.set(name, ignore)
        try:
            frame = read(spark, url)
            damaged = bytearray(log[1].read_bytes())
            damaged[len(damaged) // 3] ^= 1  # in a value: only the page's checksum tells
            log[1].write_bytes(damaged)
            with pytest.raises((Py4JError, PySparkException), match=r"(?s)verify|CRC"):
                frame.selectExpr("sum(length(value))").collect()
            log[1].unlink()
            for query in (frame, frame.select("offset")):
                with pytest.raises((Py4JError, PySparkException), match="FILE_NOT_EXIST"):
                    query.collect()
            with pytest.raises((Py4JError, PySparkException), match="FILE_NOT_EXIST"):
                frame.count()
        finally:
            for name in names:
                spark.conf.unset(name)

    def test_what_is_collected_later_may_be_left_out(self, spark, url, tmp_path):
        frame = read(spark, url, failOnDataLoss=False)
        drop_first(tmp_path / "store")
        assert [row[4] for row in rows_of(frame)] == list(range(51, 151))

    def test_files_that_the_jvm_does_not_see_so(self, spark, url, log, tmp_path):
        schema = "offset long"
        store = hadoop_store(url, {})
        keys = [str(path.relative_to(tmp_path / "store")) for path in log]
        size = sum(path.stat().st_size for path in log)
        with pytest.raises(FastPathError, match="they do not look at the same store"):
            jvm.scan(spark, schema, store, keys, size_bytes=size + 1, fail_on_data_loss=True)
        for fails in (True, False):
            with pytest.raises(FastPathError, match=r"cannot open the fragments .*PATH_NOT_FOUND"):
                jvm.scan(
                    spark,
                    schema,
                    store,
                    [*keys, "log/missing"],
                    size_bytes=size,
                    fail_on_data_loss=fails,
                )

    def test_settings_of_the_session_stay(self, spark, url, log):
        names = [
            "spark.sql.sources.parallelPartitionDiscovery.threshold",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism",
        ]
        before = [spark.conf.get(name) for name in names]
        read(spark, url, fast_path="always")
        assert [spark.conf.get(name) for name in names] == before

    def test_more_tasks_on_request(self, spark, url, log):
        assert read(spark, url, minPartitions=3).rdd.getNumPartitions() >= 3

    def test_columns_that_are_not_needed_are_not_read(self, spark, tmp_path):
        """Counting reads footers alone, other columns not the values."""
        chance = random.Random(1)
        found = [found._replace(value=chance.randbytes(1000)) for found in records(1, 2000, 1)]
        log = put_log(tmp_path, [ours(found), wal3(records(2001, 10, 2))])
        size = sum(path.stat().st_size for path in log)
        assert size > 2_000_000
        settings = spark._jsc.hadoopConfiguration()
        name = "parquet.hadoop.vectored.io.enabled"  # such reads are not in the statistics
        settings.set(name, "false")
        try:
            frame = read(spark, f"file://{tmp_path}", fast_path="always")
            assert bytes_read(spark, frame.count) < 50_000
            assert bytes_read(spark, frame.select("offset", "timestamp").collect) < 100_000
            assert bytes_read(spark, frame.selectExpr("sum(length(value))").collect) > size * 0.9
        finally:
            settings.unset(name)


def bytes_read(spark, call) -> int:
    """Return how many bytes the JVM reads from files in a call."""

    def total() -> int:
        statistics = spark._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
        return sum(found.getBytesRead() for found in statistics)

    before = total()
    call()
    return total() - before
