"""How much Spark wants, and Sparks that do not say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.walstore.spark.versions import needs_limits
from walstore.errors import InvalidSettingsError
from walstore.spark.features import HAS_LIMITS, ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from walstore.spark.streaming.admission import Budget, budget_of, check_limits
from walstore.spark.streaming.stream_options import parse_stream_options


def options(**given: str):
    return parse_stream_options({"path": "s3://bucket/orders"} | given)


@needs_limits
def test_the_stricter_limit_holds():
    from pyspark.sql.streaming.datasource import ReadMaxFiles

    rows = options(maxOffsetsPerTrigger="10")
    both = options(maxOffsetsPerTrigger="10", maxBytesPerTrigger="100")
    assert budget_of(ReadMaxRows(5), rows) == Budget(5, None)
    assert budget_of(ReadMaxRows(50), both) == Budget(10, 100)
    assert budget_of(ReadMaxBytes(50), both) == Budget(10, 50)
    assert budget_of(ReadMaxBytes(50), options()) == Budget(None, 50)
    assert budget_of(ReadMaxFiles(1), both) == Budget(10, 100)


def test_all_means_all():
    both = options(maxOffsetsPerTrigger="10", maxBytesPerTrigger="100")
    assert budget_of(ReadAllAvailable(), both) == budget_of(None, both) == Budget()


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_limits_need_a_spark_that_says_where_a_batch_begins(name):
    check_limits(options(**{name: "10"}), has_limits=True)
    with pytest.raises(InvalidSettingsError, match=r"need Spark 4\.2 or newer"):
        check_limits(options(**{name: "10"}), has_limits=False)
    check_limits(options(), has_limits=False)
    if not HAS_LIMITS:
        with pytest.raises(InvalidSettingsError, match=r"need Spark 4\.2 or newer"):
            check_limits(options(**{name: "10"}))


OLDER = """
import sys
import pyspark.sql.datasource  # this version's needs them itself
sys.modules["pyspark.sql.streaming.datasource"] = None  # as before Spark 4.2
from walstore.spark.streaming import stream_reader
from walstore.spark.schema import spark_schema
schema = spark_schema(include_headers=False)
reader = stream_reader({"path": "/tmp/none"}, schema)
assert not hasattr(reader, "pushFilters")
try:
    stream_reader({"path": "/tmp/none", "maxOffsetsPerTrigger": "5"}, schema)
except ValueError as error:
    print(error)
"""


def test_an_older_spark_without_the_classes():
    """Everything is there but limits; the import does not fail."""
    done = subprocess.run(
        [sys.executable, "-c", OLDER], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("maxOffsetsPerTrigger and maxBytesPerTrigger need Spark 4.2")
