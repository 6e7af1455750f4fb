"""Several logs, few columns and filters in a real Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession, functions

from tests.walstore.spark.many import write, write_directory, write_partitioned
from tests.walstore.spark.versions import needs_filters
from walstore.spark.features import HAS_FILTERS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/bucket"
    for stream in ("eu", "us", "eu"):
        write(f"{url}/bills", [b"b"] * 100, stream=stream)
    write_partitioned(f"{url}/orders", 3, {0: [b"o"] * 4, 2: [b"o"] * 6})
    return url


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def counts(frame) -> dict[tuple[str, int], int]:
    rows = frame.groupBy("topic", "partition").count().collect()
    return {(row.topic, row["partition"]): row["count"] for row in rows}


def objects(bucket: str, log: str) -> list[Path]:
    return sorted(Path(bucket.removeprefix("file://"), log).glob("log/*/*.parquet"))


def test_several_logs(spark: SparkSession, bucket, tmp_path):
    orders = {("orders", 0): 4, ("orders", 2): 6}
    everything = {("bills", 0): 300, **orders}
    reader = spark.read.format("walstore")
    assert counts(reader.load(f"{bucket}/orders")) == orders
    reader = reader.option("subscribe", "bills,orders")
    assert counts(reader.load(bucket)) == everything
    reader = spark.read.format("walstore").option("subscribePattern", "b.*|orders")
    assert counts(reader.option("minPartitions", 6).load(bucket)) == everything
    reader = spark.read.format("walstore").option("assign", '{"orders":[2]}')
    assert counts(reader.load(bucket)) == {("orders", 2): 6}
    write_directory(tmp_path / "data", {"a": [b"1"], "b/0": [b"1"], "b/1": [b"1", b"2"]})
    reader = spark.read.format("walstore").option("subscribePattern", ".*")
    assert counts(reader.load(str(tmp_path / "data"))) == {("a", 0): 1, ("b", 0): 1, ("b", 1): 2}


def test_mistakes_with_several_logs(spark: SparkSession, bucket):
    reader = spark.read.format("walstore")
    with pytest.raises(AnalysisException, match=r"option subscribe: \"bills\", \"orders\""):
        reader.load(bucket).count()
    with pytest.raises(AnalysisException, match="subscribe or assign, not both"):
        reader.option("subscribe", "bills").option("assign", '{"orders":[2]}').load(bucket)
    reader = spark.read.format("walstore").option("subscribe", "orders")
    with pytest.raises(AnalysisException, match="must name every partition that is read"):
        reader.option("startingOffsets", '{"orders":{"0":1}}').load(bucket).count()


def test_counting_opens_no_object(spark: SparkSession, bucket):
    for path in objects(bucket, "bills"):
        path.unlink()
    reader = spark.read.format("walstore").option("subscribe", "bills,orders")
    assert reader.schema("offset bigint").load(bucket).count() == 310
    frame = reader.schema("topic string, offset bigint").load(bucket)
    found = frame.groupBy("topic").agg(functions.max("offset")).collect()
    assert {tuple(row) for row in found} == {("bills", 300), ("orders", 6)}


def test_one_stream(spark: SparkSession, bucket):
    reader = spark.read.format("walstore").option("stream", "eu")
    frame = reader.load(f"{bucket}/bills")
    assert frame.count() == 200
    assert [row.stream for row in frame.select("stream").distinct().collect()] == ["eu"]


def test_a_frame_shows_the_log_as_it_was_when_first_used(spark: SparkSession, bucket):
    frame = bills(spark, bucket)
    write(f"{bucket}/bills", [b"b"] * 7)
    assert frame.count() == 307
    write(f"{bucket}/bills", [b"b"] * 5)
    # Spark 4.0 plans anew for each query. It keeps plans since it hands over filters.
    assert frame.count() == (307 if HAS_FILTERS else 312)
    assert bills(spark, bucket).count() == 312


def damage(bucket: str, at: int) -> None:
    """Spoil what comes first in a fragment, and leave its footer."""
    path = objects(bucket, "bills")[at]
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes(byte ^ 255 for byte in data[4:200]) + data[200:])


def bills(spark: SparkSession, bucket: str, **options: str):
    return spark.read.format("walstore").options(**options).load(f"{bucket}/bills")


def test_filters_are_only_evaluated_by_default(spark: SparkSession, bucket):
    frame = bills(spark, bucket)
    assert frame.filter("offset > 290 and stream = 'eu' and topic = 'bills'").count() == 10
    damage(bucket, 0)
    with pytest.raises(PySparkException, match="CorruptionError"):
        frame.filter("offset > 290").count()


@pytest.mark.usefixtures("pushdown")
def test_sparks_setting_alone_changes_nothing(spark: SparkSession, bucket):
    frame = bills(spark, bucket)
    low, high = frame.filter("offset <= 10"), frame.filter("offset > 290")
    assert (low.count(), high.count(), frame.count()) == (10, 10, 300)
    assert low.union(high).count() == 20
    assert high.union(frame).count() == 310


@needs_filters
@pytest.mark.usefixtures("pushdown")
@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("offset > 290 and stream = 'eu'", 10),
        ("offset in (150, 250, 999)", 2),
        ("offset between 150 and 250 and offset != 200", 100),
        ("timestamp >= timestamp '2023-11-14 22:15:00Z'", 200),
        ("topic = 'orders'", 0),
        ("stream = 'us'", 100),
    ],
)
def test_filters_prune_what_is_read(spark: SparkSession, bucket, condition, count):
    damage(bucket, 0)
    with pytest.raises(PySparkException, match="CorruptionError"):
        bills(spark, bucket, pushdown="on").count()
    frame = bills(spark, bucket, pushdown="on").filter(condition)
    assert frame.count() == count
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter" in plan, "Spark evaluates what was pushed, too"


def test_the_setting_may_change_at_any_time(spark: SparkSession, bucket):
    frame = bills(spark, bucket, pushdown="on").filter("offset > 290")
    for setting in ("true", "false", "true"):
        spark.conf.set(PUSHDOWN, setting)
        assert frame.count() == 10
        assert bills(spark, bucket, pushdown="on").count() == 300
    spark.conf.unset(PUSHDOWN)
    assert frame.count() == 10


@needs_filters
@pytest.mark.usefixtures("pushdown")
def test_with_pushdown_a_frame_is_for_one_query(spark: SparkSession, bucket):
    """Spark's doing. If this fails, Spark plans anew: the manual need not warn any more."""
    frame = bills(spark, bucket, pushdown="on")
    assert frame.filter("offset > 290").count() == 10
    assert frame.count() == 10
