"""``format("walstore")`` as Spark finds it. Importable with nothing but PySpark.

Spark imports this whenever it looks for data sources, also on behalf of others; what may be missing
(pyarrow, the cloud tier's packages) is therefore imported when it is needed, and asked for by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from walstore.spark.environment import require_packages

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from walstore.spark.reader import BatchReader


class WalstoreSource(DataSource):
    """A log as a table: ``spark.read.format("walstore").load(location)``.

    ``location`` is the URL of an object store (``s3://bucket/prefix``, ``file:///dir``) or a log's
    directory. Columns are those of Spark's Kafka source, and ``stream``: ``key binary, value binary,
    topic string, partition int, offset long, timestamp timestamp, timestampType int, stream string``,
    with ``includeHeaders`` also ``headers array<struct<key string, value binary>>``. ``.schema("value
    binary")`` chooses some of them and spares the rest.

    Options, case-insensitive:

    * ``startingOffsets``: ``earliest`` (default), ``latest``, an offset, or ``{"topic": {"0": n}}`` with
      -2 for earliest and -1 for latest. ``endingOffsets``: the same without earliest; exclusive; default
      ``latest``, the durable limit at the time of planning.
    * ``startingTimestamp``, ``endingTimestamp``: milliseconds since 1970, instead of offsets: from the
      first record that is not older, up to the first that is not older.
      ``startingOffsetsByTimestampStrategy``: ``error`` (default) or ``latest`` if none is that new.
    * ``minPartitions``: at least so many tasks, as far as fragments and batches allow.
    * ``failOnDataLoss``: ``true`` (default) fails if offsets asked for are not there (any more).
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
        """Return the columns; checks the options too, so that mistakes show at ``load``."""
        require_packages()
        from walstore.spark.options import parse_options
        from walstore.spark.schema import spark_schema

        return spark_schema(include_headers=parse_options(self.options).include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        """Return a reader for the columns in ``schema``."""
        require_packages()
        from walstore.spark.options import parse_options
        from walstore.spark.reader import BatchReader
        from walstore.spark.schema import column_names

        return BatchReader(parse_options(self.options), column_names(schema))
