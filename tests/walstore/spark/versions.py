"""What tests need to hold on every PySpark that is supported: marks, and calls that went by other names."""

from __future__ import annotations

import inspect

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from walstore.spark.features import HAS_FILTERS, HAS_LIMITS

NO_LIMITS = "Spark 4.0 and 4.1 do not say where a micro-batch begins, so it cannot be limited"

needs_filters = pytest.mark.skipif(
    not HAS_FILTERS, reason="Spark 4.0 does not hand its filters to sources"
)
needs_limits = pytest.mark.skipif(not HAS_LIMITS, reason=NO_LIMITS)


def limit(rows: int) -> dict[str, int]:
    """Return options for micro-batches of so many rows, where Spark has such."""
    return {"maxOffsetsPerTrigger": rows} if HAS_LIMITS else {}


def sizes(total: int, rows: int) -> list[int]:
    """Return how many rows the micro-batches have that take ``total`` rows with :func:`limit`."""
    if not HAS_LIMITS:
        return [total]
    return [min(rows, total - at) for at in range(0, total, rows)]


def sparks_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark derives for a source of this schema."""
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # since Spark 4.2
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)
