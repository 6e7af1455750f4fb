"""``format("walstore")`` as Spark finds it, also as tables. Importable with nothing but PySpark.

Spark imports this whenever it looks for data sources, also for other formats. Packages that may be missing
(pyarrow, those of the cloud tier) are therefore imported on first use, with an error that names the extra.

A table is ``CREATE TABLE orders USING walstore LOCATION '/logs/orders'``. Spark passes a table's options to
the source once, when the table is created, among properties of the catalog. It stores only the columns; a
query on the table gets the columns and no options. So the options are stored with the columns, in the
metadata of the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from walstore.core.runtime.extras import needs_extra
from walstore.spark.environment import require_packages

with needs_extra("spark", 'format("walstore")'):
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


_METADATA: Final = "walstore.options"
_OPTION: Final = "option."
"""Prefix of an option's name in the catalog, which distinguishes it from properties."""
_MARK: Final = "provider"
"""A property of every table that a read without a table never has."""
_DEEPEST: Final = 3


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options among what the catalog passes, by lower-case name; None if it is no table.

    The path is in the form for ``load``. Reads the directory that it names.
    """
    given = {name.lower(): value for name, value in options.items()}
    if _MARK not in given:
        return None
    found = {
        name.removeprefix(_OPTION): value
        for name, value in given.items()
        if name.startswith(_OPTION)
    }
    if "path" in given:
        found["path"] = _plain(given["path"])
    return found


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the columns of a table with its options in their metadata."""
    first, *others = schema.fields
    metadata = {_METADATA: json.dumps(options)}
    return StructType([StructField(first.name, first.dataType, metadata=metadata), *others])


def all_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of a read: those in the columns of the table, if any, and those of the query."""
    found: dict[str, str] = {}
    for field in schema.fields:
        found |= json.loads((field.metadata or {}).get(_METADATA, "{}"))
    return found | {name.lower(): value for name, value in options.items()}


def _plain(path: str) -> str:
    """Return the path or URL that the user gave: the catalog turns either into ``file:/dir``.

    The directory of a log, or of several, has ``.wal`` files in it or below it; any other is a store.
    """
    scheme, _, rest = path.partition(":")
    if scheme != "file" or not rest.startswith("/"):
        return path
    directory = unquote("/" + rest.lstrip("/"))
    patterns = ["*/" * depth + "*.wal" for depth in range(_DEEPEST)]
    if any(True for pattern in patterns for _ in Path(directory).glob(pattern)):
        return directory
    return f"file:///{rest.lstrip('/')}"


class WalstoreSource(DataSource):
    """Logs as tables: ``spark.read.format("walstore").load(location)``. docs/spark.md is its manual.

    ``location`` is the URL of an object store (``s3://bucket/prefix``, ``file:///dir``) or a directory. It
    contains a log or a partitioned log; or several, among which an option selects. Columns are those of the
    Kafka source, and ``stream``: ``key binary, value binary, topic string, partition int, offset long,
    timestamp timestamp, timestampType int, stream string``, with ``includeHeaders`` also ``headers
    array<struct<key string, value binary>>``. ``.schema("value binary")`` selects some of them; the others
    are not decoded.

    Options of a batch read, case-insensitive:

    * ``subscribe``: names of logs at the location, with commas between them; ``subscribePattern``: a regular
      expression that whole names match; ``assign``: ``{"topic": [0, 2]}``. At most one of them.
    * ``startingOffsets``: ``earliest`` (default), ``latest``, an offset, or ``{"topic": {"0": n}}`` with
      -2 for earliest and -1 for latest. ``endingOffsets``: the same without earliest, exclusive; ``latest``
      (default) is the durable limit at the time of planning.
    * ``startingTimestamp``, ``endingTimestamp``: milliseconds since 1970, instead of offsets: from the
      first record at or after that time, up to the first at or after the other. One for each log:
      ``startingOffsetsByTimestamp``, ``endingOffsetsByTimestamp``, as ``{"topic": {"0": ms}}``.
      ``startingOffsetsByTimestampStrategy``: ``error`` (default) or ``latest`` if no record is that new.
    * ``stream``: only the records of that stream.
    * ``pushdown``: ``off`` (default), or ``on`` to skip what the query's filters exclude, if Spark passes
      them. The DataFrame is then for one query only: docs/spark.md.
    * ``minPartitions``: at least this many tasks, as far as fragments and batches allow.
    * ``failOnDataLoss``: ``true`` (default) fails if requested offsets are trimmed or not written.
    * ``includeHeaders``: ``false`` (default) or ``true``.
    * ``tier``: ``auto`` (default) continues a local log backwards in the store it was shipped to;
      ``off`` reads its directory alone.
    * ``store.*``: parameters of the store's URL, as ``store.endpoint_url``. Credentials come from the
      environment of driver and executors, never from options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "walstore"

    def schema(self) -> StructType:
        """Return the columns; checks options and location too, so that ``load`` reports mistakes.

        Spark does not call this if the caller gave a schema; planning reports mistakes then.
        """
        require_packages()
        from walstore.spark.options import STREAM_ONLY, parse_options
        from walstore.spark.reader import check_location
        from walstore.spark.rows import spark_schema

        table = table_options(self.options)
        # Spark does not say whether it is going to read a batch or a stream.
        streaming = {name.lower() for name in STREAM_ONLY}
        given = self.options if table is None else table
        options = parse_options(
            {name: value for name, value in given.items() if name.lower() not in streaming}
        )
        check_location(options)
        schema = spark_schema(include_headers=options.include_headers)
        return schema if table is None else with_options(schema, table)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader that reads logs once, as the columns in ``schema``."""
        require_packages()
        from walstore.spark.options import parse_options
        from walstore.spark.reader import BatchReader
        from walstore.spark.rows import column_names

        options = parse_options(all_options(self.options, schema))
        return BatchReader(options, column_names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader that follows logs, as the columns in ``schema``."""
        require_packages()
        from walstore.spark.options import parse_stream_options
        from walstore.spark.rows import column_names
        from walstore.spark.streaming.reader import StreamReader

        options = parse_stream_options(all_options(self.options, schema))
        return StreamReader(options, column_names(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return a writer that appends rows of ``schema`` once."""
        require_packages()
        from walstore.spark.sink.log_sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return a writer that appends rows of ``schema`` micro-batch by micro-batch."""
        require_packages()
        from walstore.spark.sink.log_sink import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
