"""The JVM that Spark tests share: no test and no program leaves anything in it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark_jvm import SparkJvm

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = """
import os, signal
from walstore.spark import local_session
spark = local_session(config={"spark.sql.shuffle.partitions": "7"})
spark.range(3).createOrReplaceTempView("numbers")
print(spark.conf.get("spark.sql.shuffle.partitions"), spark.table("numbers").count(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def taken(session: SparkSession) -> list[int]:
    """Return rows that come through a function of this process, which the JVM calls."""
    found: list[int] = []

    def take(batch: DataFrame, _: int) -> None:
        found.append(batch.count())

    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    query = rows.writeStream.foreachBatch(take).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    return found


def test_a_program_that_does_not_end_well(spark_jvm: SparkJvm) -> None:
    before = spark_jvm.session
    assert taken(before) == [5]
    with spark_jvm.lend() as environment:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stdout, done.returncode) == ("7 3\n", -9), done.stderr
    session = spark_jvm.session
    assert session is not before
    assert session.conf.get("spark.sql.shuffle.partitions") == "2"
    assert session.catalog.listTables() == []
    assert taken(session) == [5]


def test_what_a_test_leaves_fails_it(spark_jvm: SparkJvm) -> None:
    from tests.spark_jvm import unchanged

    with (
        pytest.raises(pytest.fail.Exception, match="numbers"),
        unchanged(spark_jvm) as session,
    ):
        session.range(3).createOrReplaceTempView("numbers")
    with unchanged(spark_jvm) as session:
        assert session.catalog.listTables() == []
