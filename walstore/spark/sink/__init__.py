"""The sink: ``df.write.format("walstore")`` and ``writeStream``, into partitioned logs, exactly once.

docs/spark_sink.md is its manual. Tasks stage fragments, the driver commits them (``uploader.partitioned``).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from walstore import InvalidSettingsError
from walstore.spark.sink.columns import check_columns
from walstore.spark.sink.options import BATCH_OPTIONS, STREAM_OPTIONS, parse_sink_options
from walstore.spark.sink.writers import BatchWriter, make_stream_writer

__all__ = ["batch_writer", "stream_writer"]


def batch_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceWriter:
    """Return a writer that appends the rows of one job; opens the partitioned log, or creates it.

    Raises InvalidSettingsError for invalid options and columns, and for ``overwrite``; else as
    :func:`uploader.partitioned.open_partitions`.
    """
    _check_append(overwrite=overwrite)
    found = parse_sink_options(options, BATCH_OPTIONS)
    return BatchWriter.open(found, check_columns(schema, found.partition_by))


def stream_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamWriter:
    """Return a writer that appends the rows of a micro-batch. Raises as :func:`batch_writer`."""
    _check_append(overwrite=overwrite)
    found = parse_sink_options(options, STREAM_OPTIONS)
    return make_stream_writer(found, check_columns(schema, found.partition_by))


def _check_append(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidSettingsError(
            'a log can only be appended to: use mode("append"), or outputMode("append") for a stream'
        )
