"""What this PySpark can do that an older one cannot. Asked here and nowhere else, and not by its number.

docs/spark.md has the table: what follows from it for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource

HAS_FILTERS: Final = hasattr(datasource.DataSourceReader, "pushFilters")
"""Whether a batch read is handed the query's filters. Since Spark 4.1."""

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS = True
    """Whether Spark says where a micro-batch begins and how much it may take. Since Spark 4.2."""
else:
    # Base class of stream writers that are handed Arrow batches. Since Spark 4.1; 4.0 hands them to whatever
    # is a batch writer of that kind, also of a stream. Its rows would do as well, but for times: those come
    # in the machine's time without a zone, and in the hour that autumn repeats nobody can tell which it is.
    DataSourceStreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceArrowWriter
    )

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_LIMITS: Final = True
    except ImportError:
        HAS_LIMITS: Final = False

        class ReadLimit:
            """Stands for Spark 4.2's; nobody makes one."""

        class ReadAllAvailable(ReadLimit):
            """Stands for Spark 4.2's."""

        class ReadMaxRows(ReadLimit):
            """Stands for Spark 4.2's."""

        class ReadMaxBytes(ReadLimit):
            """Stands for Spark 4.2's."""

        class SupportsTriggerAvailableNow:
            """Stands for Spark 4.2's."""


__all__ = [
    "HAS_FILTERS",
    "HAS_LIMITS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
