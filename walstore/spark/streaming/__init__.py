"""Logs as streams: ``spark.readStream.format("walstore").load(location)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from walstore.spark.rows import column_names
from walstore.spark.streaming.reader import StreamReader
from walstore.spark.streaming.stream_options import parse_stream_options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["stream_reader"]


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    """Return a reader that follows the logs of ``options``, as the columns of ``schema``.

    InvalidSettingsError for unknown options or columns.
    """
    return StreamReader(parse_stream_options(options), column_names(schema))
