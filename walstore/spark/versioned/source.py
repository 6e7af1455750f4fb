"""``format("walstore.collection")``: versioned collections as Spark finds them. Importable with only PySpark.

Packages that may be missing (pyarrow, those of the cloud tier) are imported on first use, with an error that
names the extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from walstore.core.runtime.extras import needs_extra
from walstore.spark.environment import require_packages

with needs_extra("spark", 'format("walstore.collection")'):
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class CollectionSource(DataSource):
    """Versioned collections: ``spark.read.format("walstore.collection").load(url)``.

    docs/spark_collections.md is its manual. Options are case-insensitive; one that is not known is an error.
    ``store.*`` are parameters of the store's URL; credentials come from the environment of driver and
    executors.

    A batch read returns the content at one time: the columns, and in a ``diff`` collection the count ``_d``.

    * ``asOf``: ``latest`` (default), or a time.
    * ``minPartitions``: at least this many tasks, as far as row groups allow.
    * ``leaseSeconds``: for so long, 3600 by default, what was planned stays readable.

    A stream returns the changes: the columns, ``_t decimal(20,0)``, ``_change string`` and in a ``diff``
    collection ``_d bigint``.

    * ``reader``: the name of the critical reader that keeps what the query has not read. Required, and what
      tells Spark's questions about a stream from those about a batch.
    * ``startingFrom``: ``earliest`` (default), ``latest``, or the first time that is read.
    * ``maxTimesPerTrigger``, ``maxRowsPerTrigger``, ``maxBytesPerTrigger``: limits of a micro-batch, with
      Spark 4.2 or newer; rows and bytes approximately.
    * ``pollIntervalMs``: time between two looks for updates, 500 by default.
    * ``minPartitions``, ``leaseSeconds``: as for a batch.

    A batch write appends rows at the times ``lower`` to ``upper``, exclusive; by default at the time where
    the shard ``writer`` (``main``) ends. A streaming write appends each micro-batch at the time of its
    number, to which ``start`` (0) is added.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "walstore.collection"

    def schema(self) -> StructType:
        """Return the columns; checks options and collection too, so that ``load`` reports mistakes."""
        require_packages()
        from walstore.spark.versioned.options import (
            READER,
            parse_batch_options,
            parse_stream_options,
        )
        from walstore.spark.versioned.reading import schema_at
        from walstore.spark.versioned.types import change_schema, spark_schema

        if any(name.lower() == READER for name in self.options):
            options = parse_stream_options(self.options)
            return change_schema(schema_at(options.location.text))
        location = parse_batch_options(self.options).location
        return spark_schema(schema_at(location.text))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader that reads the content once, as the columns in ``schema``."""
        require_packages()
        from walstore.spark.versioned.options import parse_batch_options
        from walstore.spark.versioned.reading import ContentReader

        return ContentReader(parse_batch_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader that follows the changes, as the columns in ``schema``."""
        require_packages()
        from walstore.spark.versioned.changes import ChangeReader
        from walstore.spark.versioned.options import parse_stream_options

        return ChangeReader(parse_stream_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Return a writer that appends rows of ``schema`` once."""
        require_packages()
        from walstore.spark.versioned.writing import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001
    ) -> DataSourceStreamWriter:
        """Return a writer that appends rows of ``schema`` micro-batch by micro-batch."""
        require_packages()
        from walstore.spark.versioned.writing import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite)
