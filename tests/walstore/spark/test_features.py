"""What older Sparks lack is found out, and made up for; here with this one's classes taken away."""

from __future__ import annotations

import subprocess
import sys

from pyspark.sql.datasource import DataSourceStreamWriter

from walstore.spark import features
from walstore.spark.sink.writers import MicroBatchWriter

OLDER = """
import sys
from pyspark.sql import datasource
for name in ("DataSourceStreamArrowWriter", "EqualTo"):
    if hasattr(datasource, name):
        delattr(datasource, name)
if hasattr(datasource.DataSourceReader, "pushFilters"):
    del datasource.DataSourceReader.pushFilters
sys.modules["pyspark.sql.streaming.datasource"] = None
from walstore.spark import features
from walstore.spark.options import parse_options
from walstore.spark.reader import BatchReader
from walstore.spark.sink.writers import MicroBatchWriter
assert not features.HAS_FILTERS and not features.HAS_LIMITS
# Spark 4.0 asks whether it is one of these, and then hands over Arrow batches; also to a stream's.
assert issubclass(MicroBatchWriter, (datasource.DataSourceArrowWriter,))
assert issubclass(MicroBatchWriter, (datasource.DataSourceStreamWriter,))
reader = BatchReader(parse_options({"path": "/tmp/none", "pushdown": "on"}), ["value"])
assert not hasattr(reader, "pushFilters")
print("all of 4.0")
"""


def test_spark_4_0():
    done = subprocess.run(
        [sys.executable, "-c", OLDER], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "all of 4.0\n", done.stderr


def test_a_stream_is_handed_arrow_by_the_spark_that_is_installed():
    assert issubclass(MicroBatchWriter, features.DataSourceStreamArrowWriter)
    assert issubclass(MicroBatchWriter, DataSourceStreamWriter)
