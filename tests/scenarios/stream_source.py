"""The streaming source, telling a pipe what Spark asks of it; it stops for ever where it is told to.

Spark makes it in processes of its own (one that plans, others that read), which know the test by their
environment only. The test kills everything once it stands still.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from walstore.spark.options import parse_stream_options
from walstore.spark.rows import column_names
from walstore.spark.source import WalstoreSource
from walstore.spark.streaming.reader import JsonOffsets, StreamReader

PIPE = "WALSTORE_TEST_PIPE"
STOP_AT = "WALSTORE_TEST_STOP_AT"
"""``stage:number``: at which call in a process it stops."""

_calls: Counter[str] = Counter()


def tell(stage: str) -> None:
    """Write a line to the pipe; stop here if that is wanted."""
    _calls[stage] += 1
    is_last = os.environ[STOP_AT] == f"{stage}:{_calls[stage]}"
    with open(os.environ[PIPE], "w") as pipe:
        pipe.write("stopped\n" if is_last else f"{stage}\n")
    while is_last:
        signal.pause()


class TellingReader(StreamReader):
    """Tells before each call, and within reading."""

    def initialOffset(self) -> JsonOffsets:
        tell("initial")
        return super().initialOffset()

    def latestOffset(self, start=None, limit=None) -> JsonOffsets:
        tell("latest")
        return super().latestOffset(start, limit)

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        tell("partitions")
        return super().partitions(start, end)

    def commit(self, end: JsonOffsets) -> None:
        tell("commit")
        super().commit(end)
        tell("committed")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        tell("read")
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            tell("reading")
            yield batch.slice(1)


class TellingSource(WalstoreSource):
    """In place of ``format("walstore")``."""

    @classmethod
    def name(cls) -> str:
        return "telling"

    def streamReader(self, schema: StructType) -> TellingReader:
        return TellingReader(parse_stream_options(self.options), column_names(schema))
