"""Features of this PySpark that older releases lack. Detected only here, and not by version number.

docs/spark.md has a table of what this means for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource

HAS_FILTERS: Final = hasattr(datasource.DataSourceReader, "pushFilters")
"""Whether Spark passes the query's filters to a batch read. Since Spark 4.1."""

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
    """Whether Spark passes the start and the limit of a micro-batch. Since Spark 4.2."""
else:
    # Base class of stream writers that receive Arrow batches. Since Spark 4.1; 4.0 passes Arrow batches to
    # any Arrow batch writer, also of a stream. Rows would do except for timestamps: they are in the machine's
    # local time without a zone, which is ambiguous in the hour that daylight saving repeats.
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
            """Stands in for Spark 4.2's; never instantiated."""

        class ReadAllAvailable(ReadLimit):
            """Stands in for Spark 4.2's."""

        class ReadMaxRows(ReadLimit):
            """Stands in for Spark 4.2's."""

        class ReadMaxBytes(ReadLimit):
            """Stands in for Spark 4.2's."""

        class SupportsTriggerAvailableNow:
            """Stands in for Spark 4.2's."""


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
