"""The streaming source, telling a pipe what Spark asks of it; it stops for ever where it is told to.

Spark makes it in processes of its own (one that plans for each query, others that read), which know the test
by their environment only. Each log has its pipe and its stop. The test kills everything once it stands still.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from walstore.spark.options import StreamOptions, parse_stream_options
from walstore.spark.rows import column_names
from walstore.spark.source import WalstoreSource
from walstore.spark.streaming.reader import JsonOffsets, StreamReader

PIPES = "WALSTORE_TEST_PIPES"
"""The pipes' directory: each kind of log has one of its name."""
STOPS = "WALSTORE_TEST_STOPS"
"""``kind:stage:number`` for each log: at which call in a process it stops."""

_calls: Counter[str] = Counter()


def kind_of(location: str) -> str:
    """Return the kind of a log: ``store`` or ``directory``."""
    return "store" if "://" in location else "directory"


class TellingReader(StreamReader):
    """Tells before each call, and within reading."""

    def __init__(self, kind: str, options: StreamOptions, names: Sequence[str]) -> None:
        super().__init__(options, names)
        self._kind = kind

    def _tell(self, stage: str) -> None:
        """Write a line to the pipe; stop here if that is wanted."""
        call = f"{self._kind}:{stage}"
        _calls[call] += 1
        is_last = f"{call}:{_calls[call]}" in os.environ[STOPS].split()
        with open(os.path.join(os.environ[PIPES], self._kind), "w") as pipe:
            pipe.write("stopped\n" if is_last else f"{stage}\n")
        while is_last:
            signal.pause()

    def initialOffset(self) -> JsonOffsets:
        self._tell("initial")
        return super().initialOffset()

    def latestOffset(self, start=None, limit=None) -> JsonOffsets:
        self._tell("latest")
        return super().latestOffset(start, limit)

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        self._tell("partitions")
        return super().partitions(start, end)

    def commit(self, end: JsonOffsets) -> None:
        self._tell("commit")
        super().commit(end)
        self._tell("committed")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._tell("read")
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            self._tell("reading")
            yield batch.slice(1)


class TellingSource(WalstoreSource):
    """In place of ``format("walstore")``."""

    @classmethod
    def name(cls) -> str:
        return "telling"

    def streamReader(self, schema: StructType) -> TellingReader:
        kind = kind_of(self.options["path"])
        return TellingReader(kind, parse_stream_options(self.options), column_names(schema))
