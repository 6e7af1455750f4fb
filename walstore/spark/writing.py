"""What programs that write logs with Spark call beside the sink. Importable without PySpark."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from walstore import InvalidSettingsError
from walstore.spark.environment import require_packages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from uploader.partitioned import Swept

WEEK_SECONDS: Final = 7 * 86_400.0


def partition_rows(df: DataFrame, partitions: int, by: str = "key") -> DataFrame:
    """Return the rows with a column ``partition``, all rows of one partition in one task.

    So that each log of a partitioned log is written by one task, which is what the sink is fastest at.
    The partition is ``pmod(crc32(by), partitions)``, where the sink itself would send that key. Rows in
    which ``by`` is null go by their ``value``. A column ``partition`` that is there is replaced. ``by`` is a
    column of binary or text; InvalidSettingsError if it is not there.
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
    """Publish what was committed under ``url`` and is not in the logs yet; return how many writes.

    For writes whose driver died and is not started again; see :func:`uploader.partitioned.finish_commits`.
    Blocks.
    """
    require_packages()
    from uploader.partitioned import finish_commits as finish
    from walstore.spark.store import SyncRunner

    with closing(SyncRunner()) as runner:
        return runner.run(finish(url))


def sweep_staging(url: str, older_than_seconds: float = WEEK_SECONDS) -> Swept:
    """Finish what was committed under ``url``, and delete what was staged so long ago and never committed.

    As :func:`uploader.partitioned.sweep_staging`; blocks.
    """
    require_packages()
    from uploader.partitioned import sweep_staging as sweep
    from walstore.spark.store import SyncRunner

    with closing(SyncRunner()) as runner:
        return runner.run(sweep(url, older_than_seconds=older_than_seconds))
