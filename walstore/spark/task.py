"""What a Spark task does: from a partition to Arrow batches, checked, in bounded memory.

Runs on an executor, with no input but the partition. Holds one fragment at a time, or a few megabytes of a
local file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from uploader.read.fragment_reader import FragmentReader
from uploader.stores import ObjectStore
from walstore import Batch, CorruptionError, LogNotFoundError, OffsetTrimmedError, WalError
from walstore.core.files.posix import PosixFileSystem
from walstore.core.files.segment_file import Segment, iter_chunks
from walstore.core.offset_range import OffsetRange
from walstore.spark.blocking import StoreReading
from walstore.spark.partitions import (
    FilePart,
    FilePartition,
    FragmentPart,
    FragmentPartition,
    LogPartition,
)
from walstore.spark.planned_log import StoreLog
from walstore.spark.rows import Projection, RowBuilder

logger = logging.getLogger("walstore.spark")

_PartBatches = tuple[FilePart | FragmentPart, Iterator[Batch]]

CHUNK_BYTES: Final = 4 << 20
"""Size of one read of a local file."""
FOOTERS_AT_ONCE: Final = 16
_MOST_COLUMNS: Final = frozenset({"timestamp_us", "stream"})
"""Columns that are short next to values, keys and headers, so that reading them alone is worth requests."""


def read_rows(
    partition: InputPartition, projection: Projection, *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the partition's rows of the projection; none if it is not one of ours.

    If the projection needs no stored column, nothing is read: the plan has the offsets. Raises
    CorruptionError if the stored records are not those of the plan, and OffsetTrimmedError for a file or
    fragment that was removed since; without ``fail_on_data_loss`` it is left out, with a warning.
    """
    if not isinstance(partition, LogPartition):
        return  # Spark plans one if there is nothing to read
    rows = RowBuilder(projection, topic=partition.topic, partition=partition.partition)
    if not projection.columns:
        yield from rows.count(partition.start, partition.limit)
        return
    with closing(_read(partition, projection, fail_on_data_loss=fail_on_data_loss)) as batches:
        yield from rows.build(batches)


def _read(
    partition: LogPartition, projection: Projection, *, fail_on_data_loss: bool
) -> Generator[Batch, None, None]:
    with closing(_read_parts(partition, projection)) as parts:
        for part, batches in parts:
            try:
                for batch in _whole(batches, part, partition):
                    if _may_hold(batch, projection):
                        yield batch
            except OffsetTrimmedError as error:
                if fail_on_data_loss:
                    raise
                logger.warning("left out of [%d, %d): %s", part.start, part.limit, error)


def _read_parts(
    partition: LogPartition, projection: Projection
) -> Generator[_PartBatches, None, None]:
    """Yield each part with its batches, which the caller consumes before it takes the next part.

    Parts without a record of the projection may be skipped. Holds connections and threads: close it. The
    garbage collector would release them at any point of any thread, which may hold locks that this needs.
    """
    if isinstance(partition, FilePartition):
        for file in partition.parts:
            yield file, _read_file_or_tier(partition, file, projection)
    elif isinstance(partition, FragmentPartition):
        with (
            FragmentSource(partition.url, projection) as source,
            closing(source.holding(partition.parts)) as parts,
        ):
            for fragment, may_hold in parts:
                if may_hold:
                    yield fragment, map(source.read, (fragment,))
    else:
        raise TypeError(f"not a partition of this source: {partition!r}")


def _may_hold(batch: Batch, projection: Projection) -> bool:
    streams = projection.streams
    return streams is None or any(batch.may_hold_stream(name) for name in streams)


def _whole(
    batches: Iterable[Batch], part: FilePart | FragmentPart, partition: LogPartition
) -> Iterator[Batch]:
    """Yield the batches after checking that they are contiguous from the part's start to its limit."""
    position = part.start
    for batch in batches:
        if batch.start != position:
            raise _hole(partition, position, batch.start)
        yield batch
        position = batch.limit
    if position != part.limit:
        raise _hole(partition, position, part.limit)


def _hole(partition: LogPartition, expected: int, found: int) -> CorruptionError:
    return CorruptionError(
        f"the batch at offset {expected} is missing, the next one begins at {found}",
        path=repr(partition),
        expected=expected,
        found=found,
    )


def _read_file_or_tier(
    partition: FilePartition, part: FilePart, projection: Projection
) -> Iterator[Batch]:
    """Yield from the file or, if retention has deleted it since planning, from the tier."""
    path = Path(partition.directory, part.name)
    try:
        file = PosixFileSystem().open(path, "r")
    except FileNotFoundError:
        yield from _read_tier(partition, part, projection)
        return
    try:
        source = Segment(path, part.segment_start)
        for chunk in iter_chunks(file, source, part.position, part.limit, CHUNK_BYTES):
            for batch in chunk:
                if batch.limit > part.start and len(batch):
                    yield batch.slice(max(part.start, batch.start), min(part.limit, batch.limit))
    finally:
        file.close()


def _read_tier(partition: FilePartition, part: FilePart, projection: Projection) -> Iterator[Batch]:
    gone = OffsetRange(part.limit, partition.limit).trimmed(
        part.start,
        f"{part.name} in {partition.directory} was deleted since the read was planned, or this machine"
        " does not see the directory",
    )
    if partition.tier_url is None:
        raise gone
    try:
        log = StoreLog.open(partition.tier_url, partition.topic)
    except LogNotFoundError:
        raise gone from None
    with closing(log):
        if log.is_trimmed(part.start) or part.limit > log.limit:
            raise gone
        found = log.partitions(part.start, part.limit, part.size_bytes)
    for fragments in found:
        if isinstance(fragments, FragmentPartition):
            with FragmentSource(fragments.url, projection) as source:
                yield from map(source.read, fragments.parts)


class FragmentSource(StoreReading):
    """Reads the fragments of one log.

    Fragments whose footers exclude the requested streams are not read; footers are read some at a time."""

    def __init__(
        self, url: str, projection: Projection, *, store: ObjectStore | None = None
    ) -> None:
        """Read ``projection`` from the store at ``url``, or from ``store``, which is closed with this."""
        super().__init__(url, store=store)
        self._projection = projection
        self._fragments = FragmentReader(store=self.store, worker=self.worker, cache_bytes=0)

    def holding(
        self, parts: Sequence[FragmentPart]
    ) -> Generator[tuple[FragmentPart, bool], None, None]:
        """Yield each part and whether it may contain a record of the projection."""
        if self._projection.streams is None:
            yield from ((part, True) for part in parts)
            return
        for at in range(0, len(parts), FOOTERS_AT_ONCE):
            window = parts[at : at + FOOTERS_AT_ONCE]
            yield from zip(window, self.run(self._ask(window)), strict=True)

    def read(self, part: FragmentPart) -> Batch:
        """Return the records of a part, with all columns of the projection; others may be null.

        The fragment is checked against its entry (length, offsets). Raises OffsetTrimmedError for a
        fragment that was collected meanwhile, CorruptionError, StorageUnavailableError.
        """
        columns = self._projection.columns
        if columns <= _MOST_COLUMNS:
            reading = self._fragments.read_columns(part.entry, columns)
        else:
            reading = self._fragments.read(part.entry)
        return self.run(reading).slice(part.start, part.limit)

    async def _ask(self, parts: Sequence[FragmentPart]) -> list[bool]:
        return list(await asyncio.gather(*map(self._may_hold, parts)))

    async def _may_hold(self, part: FragmentPart) -> bool:
        try:
            streams = (await self._fragments.footers.get(part.entry)).streams
        except WalError:
            return True  # reading it raises the error
        return any(streams.may_hold(name) for name in self._projection.streams or ())
