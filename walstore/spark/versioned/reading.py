"""The batch reader: the content of a collection at one time. Plans on the driver, reads on the executors.

The plan reads the footers of the objects and divides the keys between tasks, in ranges that begin where row
groups do. A task reads the row groups that may have keys of its range, range by range, and adds their updates
up as ``CollectionReader.snapshot`` does. So no shuffle is needed, and each row is in one task, however the
row groups of different objects overlap. Blocking I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from uploader import Collection, CollectionScan, ScanFile
from uploader.versioned import updates
from uploader.versioned.batch_groups import Key, RowGroup, key_columns, keys_at_least
from uploader.versioned.schema import CollectionSchema
from walstore import InvalidSettingsError
from walstore.spark.blocking import off_loop, run_blocking
from walstore.spark.partitions import PARTITION_BYTES
from walstore.spark.versioned.objects import ScanObjects
from walstore.spark.versioned.options import ContentOptions
from walstore.spark.versioned.types import check_selected, spark_schema, to_spark

STEP_ROWS: Final = 256 * 1024
"""About so many updates are added up at a time, in a task."""
BATCH_ROWS: Final = 16 * 1024
"""Most rows of one Arrow batch."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys in ``[low, high)``; an empty ``low`` is before all, no ``high`` after all and nulls."""

    low: Key = ()
    high: Key | None = None

    def may_have(self, group: RowGroup) -> bool:
        """Return whether a row group may have such keys."""
        return group.may_have(self.low, self.high)

    def select(self, table: pa.Table, schema: CollectionSchema) -> pa.Table:
        """Return the updates of a table whose keys are in the range."""
        columns = key_columns(schema)
        if self.low:
            table = table.filter(keys_at_least(table, self.low, columns))
        if self.high is not None:
            table = table.filter(pc.invert(keys_at_least(table, self.high, columns)))
        return table


def cut(groups: Iterable[RowGroup], most_rows: int) -> list[KeyRange]:
    """Return ranges of about ``most_rows`` rows that are all keys together, in their order.

    They begin where row groups do, so keys that fill several row groups, and row groups without statistics,
    make a range larger.
    """
    cuts: list[Key] = [()]
    rows = 0
    for group in sorted(groups, key=lambda group: group.low):
        if rows >= most_rows and group.low > cuts[-1]:
            cuts.append(group.low)
            rows = 0
        rows += group.rows
    return [KeyRange(low, high) for low, high in pairwise([*cuts, None])]  # type: ignore[arg-type]


def join(ranges: Sequence[KeyRange], pieces: int) -> Iterator[Sequence[KeyRange]]:
    """Yield ``pieces`` runs of about equally many ranges that follow each other; fewer if there are fewer."""
    count = min(pieces, len(ranges))
    for number in range(count):
        yield ranges[number * len(ranges) // count : (number + 1) * len(ranges) // count]


class RangePartition(InputPartition):
    """The rows of consecutive key ranges."""

    def __init__(self, url: str, scan: CollectionScan, ranges: Sequence[KeyRange]) -> None:
        """``scan`` with the files that may have such keys."""
        super().__init__((ranges[0].low, ranges[-1].high))
        self.url = url
        self.scan = scan
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"RangePartition([{self.ranges[0].low}, {self.ranges[-1].high}))"


def in_collection(url: str, act: Callable[[Collection], Awaitable[_T]]) -> _T:
    """Return what ``act`` returns for the collection at ``url``. Blocks, also inside an event loop."""

    async def run() -> _T:
        async with Collection.open(url) as collection:
            return await act(collection)

    return run_blocking(run)


async def plan_content(
    collection: Collection, as_of: int | None, hold_seconds: float
) -> CollectionScan | None:
    """Return the objects of the content at a time, by default the latest, which stay readable.

    None for a collection without updates. InvalidSettingsError for a time that the collection has not
    reached, SinceViolationError for one that was compacted.
    """
    upper = (await collection.status()).upper
    at = upper - 1 if as_of is None else as_of
    if as_of is not None and as_of >= upper:
        raise InvalidSettingsError(
            f"asOf={as_of} is not published yet: the collection ends at {upper}, so the latest time is "
            f"{upper - 1}"
            if upper
            else f"asOf={as_of} is not published yet: the collection has no updates"
        )
    if not upper:
        return None
    return await collection.planned_scan(hold_seconds=hold_seconds, as_of=at)


def divide(url: str, scan: CollectionScan, min_partitions: int) -> list[RangePartition]:
    """Return what each task reads; reads the footers of all objects."""
    if not scan.files:
        return []
    with ScanObjects(url, scan) as objects:
        opened = objects.open(scan.files)
    groups = [
        (file, group) for file, one in zip(scan.files, opened, strict=True) for group in one.groups
    ]
    rows = sum(group.rows for _, group in groups)
    size_bytes = sum(group.limit - group.start for _, group in groups)
    wanted = max(1, min_partitions, -(-size_bytes // PARTITION_BYTES))
    step = max(1, min(STEP_ROWS, rows // wanted))
    ranges = cut((group for _, group in groups), step)
    return [
        RangePartition(url, replace(scan, files=_within(scan.files, groups, run)), run)
        for run in join(ranges, wanted)
    ]


def _within(
    files: Sequence[ScanFile],
    groups: Sequence[tuple[ScanFile, RowGroup]],
    ranges: Sequence[KeyRange],
) -> tuple[ScanFile, ...]:
    whole = KeyRange(ranges[0].low, ranges[-1].high)
    wanted = {file.key for file, group in groups if whole.may_have(group)}
    return tuple(file for file in files if file.key in wanted)


def read_ranges(
    partition: RangePartition, objects: ScanObjects, schema: CollectionSchema
) -> Iterator[pa.Table]:
    """Yield the content of each range in the columns of ``schema``, sorted by key.

    Holds the row groups that may have keys of a range; of those that end beyond it, until they do not.
    """
    scan = partition.scan
    opened = objects.open(scan.files)
    groups = [(at, group) for at, one in enumerate(opened) for group in one.groups]
    held: dict[tuple[int, int], pa.Table] = {}
    for range_ in partition.ranges:
        wanted = {(at, group.number): group for at, group in groups if range_.may_have(group)}
        held = {name: table for name, table in held.items() if name in wanted}
        missing = [name for name in wanted if name not in held]
        tables = objects.read(
            [(scan.files[at], wanted[at, number]) for at, number in missing], schema
        )
        held |= zip(missing, tables, strict=True)
        parts = [range_.select(held[name], schema) for name in sorted(wanted)]
        yield updates.snapshot(parts, schema, as_of=scan.as_of)


def narrowed(schema: CollectionSchema, names: Sequence[str]) -> CollectionSchema:
    """Return the schema of the columns that must be read for some of them: all that identify a row."""
    if schema.kind == "diff":
        return schema
    columns = [field for field in schema.columns if field.name in names or field.name in schema.key]
    return replace(schema, columns=pa.schema(columns))


class ContentReader(DataSourceReader):
    """Reads a collection as of one time. Picklable: Spark plans with one copy and reads with others."""

    def __init__(self, options: ContentOptions, schema: StructType) -> None:
        """Read according to ``options``, as the columns in ``schema``."""
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Plan the read and divide it; reads the head, and the footers of the objects."""
        url = self._options.location.text
        scan = in_collection(
            url,
            lambda collection: plan_content(
                collection, self._options.as_of, self._options.lease_seconds
            ),
        )
        if scan is None:
            return []
        check_selected(self._schema, spark_schema(scan.schema))  # it may have changed since load()
        return [*off_loop(lambda: divide(url, scan, self._options.min_partitions))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition."""
        if not isinstance(partition, RangePartition):
            return  # Spark plans one if there is nothing to read
        names = self._schema.fieldNames()
        schema = narrowed(partition.scan.schema, names)
        with ScanObjects(partition.url, partition.scan) as objects:
            for table in read_ranges(partition, objects, schema):
                yield from to_spark(table.select(names)).to_batches(BATCH_ROWS)


def schema_at(url: str) -> CollectionSchema:
    """Return the schema of the collection at ``url``; CollectionNotFoundError if there is none. Blocks."""

    async def found(collection: Collection) -> CollectionSchema:
        return (await collection.status()).schema

    return in_collection(url, found)
