"""What a Spark task does: from a partition to Arrow batches, checked, in bounded memory.

Runs on an executor, in a process that knows nothing but the partition. Holds one fragment at a time, or a
few megabytes of a local file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from walstore.batch import Batch
from walstore.errors import CorruptionError, LogNotFoundError, OffsetTrimmedError
from walstore.posix import PosixFileSystem
from walstore.segment_file import Segment, iter_chunks
from walstore.spark.location import Location
from walstore.spark.partition import FilePart, FilePartition, FragmentPartition, LogPartition
from walstore.spark.rows import RowBuilder
from walstore.spark.store import StoreLog, read_fragments

logger = logging.getLogger("walstore.spark")

CHUNK_BYTES: Final = 4 << 20
"""How much of a local file is read at once."""


def read_rows(
    partition: LogPartition, names: Sequence[str], *, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the partition's rows with the columns ``names``.

    Raises CorruptionError if what is stored is not what was planned, and OffsetTrimmedError if it was
    removed since; with ``fail_on_data_loss=False`` a removed rest is left out with a warning.
    """
    batches = _whole(_batches(partition), partition)
    if not fail_on_data_loss:
        batches = _tolerate_loss(batches, partition)
    return RowBuilder(names, topic=partition.topic).build(batches)


def _batches(partition: LogPartition) -> Iterator[Batch]:
    if isinstance(partition, FilePartition):
        return _read_files(partition)
    if isinstance(partition, FragmentPartition):
        return read_fragments(partition.url, partition.parts)
    raise TypeError(f"not a partition of this source: {partition!r}")


def _read_files(partition: FilePartition) -> Iterator[Batch]:
    """Yield from local files, and from the tier what retention has deleted since the planning."""
    position = partition.start
    for part in partition.parts:
        try:
            for batch in _read_file(Path(partition.directory, part.name), part):
                yield batch
                position = batch.limit
        except FileNotFoundError:
            yield from _read_tier(partition, position)
            return


def _read_file(path: Path, part: FilePart) -> Iterator[Batch]:
    file = PosixFileSystem().open(path, "r")
    try:
        source = Segment(path, part.segment_start)
        for chunk in iter_chunks(file, source, part.position, part.limit, CHUNK_BYTES):
            for batch in chunk:
                if batch.limit > part.start:
                    yield batch.slice(max(part.start, batch.start), min(part.limit, batch.limit))
    finally:
        file.close()


def _read_tier(partition: FilePartition, position: int) -> Iterator[Batch]:
    gone = OffsetTrimmedError(
        f"a file in {partition.directory} was deleted since the read was planned, or this machine does"
        " not see the directory",
        requested=position,
        head=partition.limit,
        tail=partition.limit,
    )
    if partition.tier_url is None:
        raise gone
    try:
        log = StoreLog(Location(partition.tier_url, is_store=True, topic=partition.topic))
    except LogNotFoundError:
        raise gone from None
    try:
        if position < log.head or partition.limit > log.limit:
            raise gone
        found = log.partitions(position, partition.limit, partition.size_bytes)
    finally:
        log.close()
    for fragments in found:
        yield from _batches(fragments)


def _whole(batches: Iterable[Batch], partition: LogPartition) -> Iterator[Batch]:
    """Pass batches on while they follow each other, from the partition's start to its limit."""
    position = partition.start
    for batch in batches:
        if batch.start != position:
            raise _hole(partition, position, batch.start)
        yield batch
        position = batch.limit
    if position != partition.limit:
        raise _hole(partition, position, partition.limit)


def _hole(partition: LogPartition, expected: int, found: int) -> CorruptionError:
    return CorruptionError(
        f"records [{expected}, {found}) are missing or repeated",
        path=repr(partition),
        expected=expected,
        found=found,
    )


def _tolerate_loss(batches: Iterable[Batch], partition: LogPartition) -> Iterator[Batch]:
    try:
        yield from batches
    except OffsetTrimmedError as error:
        logger.warning("%r: left out what was removed: %s", partition, error)
