"""The sink: ``df.write.format("walstore")`` and ``writeStream``, into partitioned logs, exactly once.

docs/spark_sink.md is its manual. Tasks stage fragments (``staging.py``), the driver commits them
(``writers.py``, ``uploader.partitioned``). Here are the functions for programs that write; this module can be
imported without PySpark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from walstore import InvalidSettingsError
from walstore.spark.environment import require_packages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from uploader.partitioned import Swept

WEEK_SECONDS: Final = 7 * 86_400.0


def partition_rows(df: DataFrame, partitions: int, by: str = "key") -> DataFrame:
    """Return the rows with a column ``partition``, all rows of one partition in one task.

    Then one task writes each log of a partitioned log, which is the sink's fastest case. The partition is
    ``pmod(crc32(by), partitions)``, the same that the sink computes for a key. Rows in which ``by`` is null
    use their ``value``. An existing column ``partition`` is replaced. ``by`` is a column of binary or text;
    InvalidSettingsError if it does not exist.
    """
    require_packages()
    from pyspark.sql import functions as f

    if partitions < 1:
        raise InvalidSettingsError(f"partitions must be at least 1, not {partitions}")
    missing = sorted({by, "value"} - set(df.columns))
    if missing:
        raise InvalidSettingsError(
            f"there is no column {missing[0]!r}; there are {', '.join(df.columns)}"
        )
    source = f.coalesce(f.col(by).cast("binary"), f.col("value").cast("binary"))
    number = f.pmod(f.crc32(source), f.lit(partitions)).cast("int")
    return df.withColumn("partition", number).repartition(partitions, "partition")


def finish_commits(url: str) -> int:
    """Publish writes that were committed under ``url`` and are not in the logs yet; return how many.

    For writes whose driver died and is not restarted; see :func:`uploader.partitioned.finish_commits`.
    Blocks.
    """
    require_packages()
    from uploader.partitioned import finish_commits as finish
    from walstore.spark.blocking import run_blocking

    return run_blocking(lambda: finish(url))


def sweep_staging(url: str, older_than_seconds: float = WEEK_SECONDS) -> Swept:
    """Finish committed writes under ``url``, and delete what was staged that long ago and never committed.

    As :func:`uploader.partitioned.sweep_staging`; blocks.
    """
    require_packages()
    from uploader.partitioned import sweep_staging as sweep
    from walstore.spark.blocking import run_blocking

    return run_blocking(lambda: sweep(url, older_than_seconds=older_than_seconds))
