"""The sink in a real Spark: jobs, streams, restarts, replays and failures."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession, functions

from tests.spark_classes import python_path
from tests.walstore.spark.sink.writing import left_over, records, values
from walstore.spark import finish_commits, partition_rows, sweep_staging

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[4]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "store" / "orders"


@pytest.fixture
def url(directory: Path) -> str:
    return f"file://{directory}"


def rows_of(spark: SparkSession, count: int, first: int = 0):
    return spark.range(first, first + count).selectExpr(
        "cast(id % 7 as string) key", "cast(id as string) value"
    )


def write(rows, url: str, **options: object) -> None:
    rows.write.format("walstore").mode("append").options(**options).save(url)


def read(spark: SparkSession, url: str) -> Counter[int]:
    found = spark.read.format("walstore").load(url).selectExpr("cast(cast(value as string) as int)")
    return Counter(row[0] for row in found.collect())


def test_a_job_and_the_same_again(spark, url, directory):
    rows = rows_of(spark, 500)
    write(rows, url, partitions=3)
    write(partition_rows(rows, 3), url, queryId="again")
    write(partition_rows(rows, 3), url, queryId="again")
    assert read(spark, url) == Counter(dict.fromkeys(range(500), 2))
    wanted = rows.groupBy(functions.expr("pmod(crc32(cast(key as binary)), 3) partition")).count()
    counts = {row[0]: row[1] * 2 for row in wanted.collect()}
    assert {at: len(values(url, at)) for at in range(3) if values(url, at)} == counts
    assert left_over(directory) == []


def test_large_tasks_become_many_fragments(spark, url, directory):
    rows = spark.range(20_000).selectExpr("cast(id as string) value")
    write(rows, url, fragmentBytes=16_384)
    assert read(spark, url) == Counter(range(20_000))
    assert len(list(directory.rglob("FragmentSeqNo*"))) > 10
    found = [int(value) for value in values(url)]
    assert found[:10_000] == list(range(10_000))  # a task's rows in their order


def stream_into(spark: SparkSession, files: Path, url: str, checkpoint: Path, **options: object):
    stream = (
        spark.readStream.schema("key string, value string")
        .option("maxFilesPerTrigger", 1)
        .json(str(files))
    )
    writer = stream.writeStream.format("walstore").options(**options)
    return (
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start(url)
    )


def test_a_stream_restarts_and_replays(spark, url, directory, tmp_path):
    files, checkpoint = tmp_path / "files", tmp_path / "checkpoint"
    for part in range(3):
        rows_of(spark, 50, part * 50).coalesce(1).write.mode("append").json(str(files))
    stream_into(spark, files, url, checkpoint, partitions=2).awaitTermination()
    assert read(spark, url) == Counter(range(150))
    # Spark forgets that it committed the last micro-batch, as if it had died just then.
    for path in (checkpoint / "commits").iterdir():
        if path.name.strip(".").startswith("2"):
            path.unlink()
    rows_of(spark, 50, 150).coalesce(1).write.mode("append").json(str(files))
    stream_into(spark, files, url, checkpoint).awaitTermination()
    assert read(spark, url) == Counter(range(200))
    assert left_over(directory) == []
    # Another checkpoint is another stream; under the same name it is refused.
    stream_into(spark, files, url, tmp_path / "named", queryId="q").awaitTermination()
    assert read(spark, url) == Counter(dict.fromkeys(range(200), 2))
    with pytest.raises(StreamingQueryException, match="belongs to another stream"):
        stream_into(spark, files, url, tmp_path / "other", queryId="q").awaitTermination()
    assert read(spark, url) == Counter(dict.fromkeys(range(200), 2))


def test_all_columns_of_a_stream(spark, url, tmp_path):
    """They come as Arrow from every version of Spark; rows of 4.0 would have times without a zone."""
    files = tmp_path / "files"
    rows_of(spark, 50).coalesce(1).write.json(str(files))
    stream = spark.readStream.schema("key string, value string").json(str(files))
    rows = stream.selectExpr(
        "cast(key as binary) key",
        "value",
        "timestamp_seconds(cast(value as int)) timestamp",
        "array(struct('h' as key, cast(value as binary) as value)) headers",
    )
    query = rows.writeStream.format("walstore").trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start(url).awaitTermination()
    found = records(url)
    assert [int(record.value) for record in found] == list(range(50))
    assert all(record.timestamp_us == int(record.value) * 1_000_000 for record in found)
    assert all(dict(record.headers) == {"h": record.value} for record in found)
    assert all(record.key == b"%d" % (int(record.value) % 7) for record in found)


def test_each_micro_batch_of_foreach_batch(spark, url, tmp_path):
    files = tmp_path / "files"
    for part in range(2):
        rows_of(spark, 20, part * 20).coalesce(1).write.mode("append").json(str(files))

    def append(rows, epoch: int) -> None:
        for _ in range(2):
            write(rows, url, queryId="each", epoch=epoch)

    stream = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    query = stream.json(str(files)).writeStream.foreachBatch(append).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert read(spark, url) == Counter(range(40))


def test_a_job_that_fails_leaves_nothing(spark, url, directory):
    write(rows_of(spark, 10), url)
    broken = "if(id = 990, raise_error('broken row'), cast(id as string)) value"
    with pytest.raises(Exception, match="broken row"):
        write(spark.range(1000).selectExpr(broken), url)
    assert read(spark, url) == Counter(range(10))
    # Of several tasks one may still be staging when the job is given up: a sweep takes that.
    shutil.rmtree(directory / "sink", ignore_errors=True)
    with pytest.raises(Exception, match="broken row"):
        write(spark.range(0, 1000, 1, 1).selectExpr(broken), url)
    assert read(spark, url) == Counter(range(10))
    assert [path for path in left_over(directory) if "staging" in path] == []
    assert finish_commits(url) == 0
    assert sweep_staging(url).objects == 0


def test_mistakes_are_told_in_words(spark, url):
    rows = rows_of(spark, 10)
    with pytest.raises(AnalysisException, match="can only be appended to"):
        rows.write.format("walstore").mode("overwrite").save(url)
    with pytest.raises(AnalysisException, match="a log has no column 'id'"):
        write(spark.range(10).selectExpr("id", "cast(id as string) value"), url)
    write(rows, url, partitions=2)
    with pytest.raises(AnalysisException, match="has 2 partitions, not 3"):
        write(rows, url, partitions=3)
    with pytest.raises(Exception, match="a row has no value"):
        write(spark.range(10).selectExpr("cast(null as string) value"), url)


PROGRAM = """
import os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from walstore.spark import local_session

marks, url = Path(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[2, 4]").config("spark.ui.enabled", "false")
builder.config("spark.driver.memory", "1g").getOrCreate()
spark = local_session()

def once(value):
    mark = marks / value
    if value in {"15000", "35000"} and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return value

rows = spark.range(0, 40_000, numPartitions=2).selectExpr("cast(id as string) value")
rows = rows.select(udf(once)("value").alias("value"))
rows.write.format("walstore").mode("append").option("fragmentBytes", 16384).save(url)
print("rows", spark.read.format("walstore").load(url).count())
"""


@pytest.mark.kill
def test_tasks_whose_workers_are_killed_are_tried_again(url, directory, tmp_path, spark_jvm):
    """Each attempt dies after it staged some of its rows, until there is nothing to die of."""
    (tmp_path / "marks").mkdir()
    with spark_jvm.lend() as environment:
        more = {"PYTHONPATH": python_path(ROOT), "PYSPARK_PYTHON": sys.executable}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "marks"), url],
            cwd=tmp_path,
            env={**os.environ, **more, **environment},
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
    assert "rows 40000" in done.stdout, done.stderr[-4000:]
    assert sorted(int(record.value) for record in records(url)) == list(range(40_000))
    assert left_over(directory) == []
    assert len(list((tmp_path / "marks").iterdir())) == 2
