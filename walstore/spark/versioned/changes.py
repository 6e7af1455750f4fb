"""The change stream: the updates of a collection, each once, micro-batch by micro-batch. Blocking I/O.

An offset is a frontier: all updates at earlier times were read. A micro-batch depends on its two frontiers
alone: the updates between them never change, and compaction keeps their times while the critical reader holds
them. The reader also keeps where a query without a checkpoint began, so that Spark gets the same answer after
a crash.

A stream that begins with what was compacted before it (frontier 0) reads that as the content at the first
time that the reader holds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from uploader import Collection, CollectionReader, CollectionScan, ScanFile
from uploader.versioned import updates
from uploader.versioned.batch_groups import GroupedFile, RowGroup
from uploader.versioned.schema import CollectionSchema
from walstore import (
    ContentionError,
    CorruptionError,
    InvalidSettingsError,
    OutcomeUnknownError,
    SinceViolationError,
    StorageUnavailableError,
)
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.spark.features import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from walstore.spark.plan import PARTITION_BYTES, group
from walstore.spark.planned_log import SyncRunner
from walstore.spark.versioned.admission import Budget, Stretch, end_of
from walstore.spark.versioned.columns import CHANGE, change_schema, check_selected
from walstore.spark.versioned.objects import AT_ONCE, ScanObjects
from walstore.spark.versioned.options import StreamOptions
from walstore.spark.versioned.reading import (
    BATCH_ROWS,
    RangePartition,
    divide,
    narrowed,
    read_ranges,
)
from walstore.spark.versioned.types import to_spark

_GROUPS_AT_ONCE: Final = 4
"""So many row groups are decoded at a time."""

logger = logging.getLogger("walstore.spark")

JsonOffset = dict[str, int]


def as_changes(table: pa.Table, schema: CollectionSchema) -> pa.Table:
    """Return updates with the kind of each change; ``delete`` for removals and negative counts."""
    effect = table.column(schema.effect)
    if schema.kind == "diff":
        kind = pc.if_else(pc.greater(effect, 0), "insert", "delete")
    else:
        kind = pc.if_else(effect, "delete", "upsert")
    return table.append_column(pa.field(CHANGE, pa.string()), kind.cast(pa.string()))


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Some row groups of a file: piece ``number`` of ``pieces`` that are about equal."""

    file: ScanFile
    number: int
    pieces: int

    @property
    def size_bytes(self) -> int:
        """About how many bytes they have."""
        return self.file.size_bytes // self.pieces


class ChangePartition(InputPartition):
    """The updates of some files."""

    def __init__(self, url: str, scan: CollectionScan, pieces: Sequence[FilePiece]) -> None:
        """``scan`` without files."""
        super().__init__(tuple(piece.file.key for piece in pieces))
        self.url = url
        self.scan = scan
        self.pieces = tuple(pieces)


def divide_changes(url: str, scan: CollectionScan, min_partitions: int) -> list[ChangePartition]:
    """Return what each task reads: files, and parts of long ones. Pure."""
    size_bytes = sum(file.size_bytes for file in scan.files)
    most_bytes = max(1, min(PARTITION_BYTES, size_bytes // min_partitions))
    pieces = [
        FilePiece(file, number, count)
        for file in scan.files
        for count in [max(1, min(-(-file.size_bytes // most_bytes), file.rows))]
        for number in range(count)
    ]
    bare = scan.without_files()
    return [ChangePartition(url, bare, members) for members in group(pieces, most_bytes)]


def read_pieces(
    partition: ChangePartition, objects: ScanObjects, schema: CollectionSchema
) -> Iterator[pa.Table]:
    """Yield the updates that count, row group by row group, as callers see them."""
    for at in range(0, len(partition.pieces), AT_ONCE):
        pieces = partition.pieces[at : at + AT_ONCE]
        opened = objects.open(piece.file for piece in pieces)
        wanted = [
            (piece.file, one)
            for piece, file in zip(pieces, opened, strict=True)
            for one in _groups(piece, file)
        ]
        for first in range(0, len(wanted), _GROUPS_AT_ONCE):
            yield from objects.read(wanted[first : first + _GROUPS_AT_ONCE], schema)
        for piece in pieces:
            objects.forget(piece.file)


def _groups(piece: FilePiece, file: GroupedFile) -> list[RowGroup]:
    """Return the row groups of a piece that may have updates that count."""
    count = len(file.groups)
    first, last = (count * at // piece.pieces for at in (piece.number, piece.number + 1))
    start, limit = piece.file.start, piece.file.limit
    return [
        one
        for one in file.groups[first:last]
        if one.times is None or (one.times[1] >= start and one.times[0] < limit)
    ]


class ChangeReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a collection. Opens it on first use, so that a copy that only reads opens nothing.

    One copy, in a process of its own, returns offsets and plans; others, on the executors, read.
    """

    def __init__(
        self, options: StreamOptions, schema: StructType, *, clock: Clock | None = None
    ) -> None:
        """Follow the collection of ``options``, as the columns in ``schema``. Tests pass a clock."""
        limits = (options.most_times, options.most_rows, options.most_bytes)
        if not HAS_LIMITS and any(limit is not None for limit in limits):
            raise InvalidSettingsError(
                "maxTimesPerTrigger, maxRowsPerTrigger and maxBytesPerTrigger need Spark 4.2 or newer; this "
                "one asks a source for all there is"
            )
        self._options = options
        self._schema = schema
        self._clock = clock or SystemClock()
        self._hold: QueryHold | None = None
        self._upper = 0
        self._polled: float | None = None
        self._target: int | None = None

    # -- offsets -----------------------------------------------------------------------------

    def initialOffset(self) -> JsonOffset:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint starts; the same after a crash."""
        return _json(self._open().begin(self._options.starting))

    def latestOffset(  # noqa: N802
        self, start: JsonOffset | None = None, limit: ReadLimit | None = None
    ) -> JsonOffset:
        """Return where the micro-batch from ``start`` ends. Spark 4.0 and 4.1 pass no start."""
        hold = self._open()
        if start is None and not hold.has_begun:
            # The start is asked for later, and must not be beyond this end. A query that has a checkpoint
            # does not need it; then it does not matter whether the collection still has it.
            with suppress(SinceViolationError):
                hold.begin(self._options.starting)
        end = self._poll() if self._target is None else self._target
        begin = _frontier(start) if start is not None else hold.first
        if end <= (hold.since if begin == 0 else begin):
            return _json(begin)
        if start is None or limit is None or isinstance(limit, ReadAllAvailable):
            return _json(end)
        if begin == 0 and hold.since:
            return _json(hold.since + 1)  # the content, which cannot be divided by time
        return _json(max(self._admitted(hold, begin, end, limit), begin + 1))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch that the options set."""
        options = self._options
        if options.most_rows is not None:
            return ReadMaxRows(options.most_rows)
        if options.most_bytes is not None:
            return ReadMaxBytes(options.most_bytes)
        return ReadAllAvailable() if options.most_times is None else ReadMaxRows(1 << 62)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freeze the end: the query will read up to the collection's present end."""
        self._open()
        self._polled = None
        self._target = self._poll()

    def reportLatestOffset(self) -> JsonOffset:  # noqa: N802
        """Return the collection's end, so that Spark can report the query's lag."""
        self._open()
        return _json(self._poll())

    # -- planning and reading ----------------------------------------------------------------

    def partitions(self, start: JsonOffset, end: JsonOffset) -> list[InputPartition]:
        """Return the partitions of the updates between two frontiers."""
        hold = self._open()
        first, limit = _frontier(start), _frontier(end)
        if first >= limit:
            return []
        if limit > self._upper:
            self._polled = None
        if limit > self._poll():
            raise CorruptionError(
                f"the query has read up to {limit} and the collection ends at {self._upper}: it is another "
                "one than the checkpoint is of, or lost updates; start again with another checkpointLocation",
                path=self._options.location.text,
                expected=limit,
                found=self._upper,
            )
        found: list[InputPartition] = []
        after = first - 1
        url, least = self._options.location.text, self._options.min_partitions
        if first == 0 and hold.since:
            after = min(hold.since, limit - 1)
            content = self._planned(hold, as_of=after, after=None)
            found += divide(url, content, least)
        if after < limit - 1:
            scan = self._planned(hold, as_of=limit - 1, after=after)
            found += divide_changes(url, scan, least)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of one partition."""
        if not isinstance(partition, (RangePartition, ChangePartition)):
            return
        names = self._schema.fieldNames()
        whole = partition.scan.schema
        schema = narrowed(whole, names)
        with ScanObjects(partition.url, partition.scan) as objects:
            if isinstance(partition, RangePartition):
                at = partition.scan.as_of
                tables: Iterator[pa.Table] = (
                    updates.as_updates(table, schema, at=at)
                    for table in read_ranges(partition, objects, schema)
                )
            else:
                tables = read_pieces(partition, objects, schema)
            for table in tables:
                rows = as_changes(table, schema).select(names)
                yield from to_spark(rows).to_batches(BATCH_ROWS)

    # -- behind the query --------------------------------------------------------------------

    def commit(self, end: JsonOffset) -> None:
        """Give up what was read. Spark calls this one batch late, and never for the last batch."""
        hold = self._open()
        try:
            hold.give_up(_frontier(end))
        except (StorageUnavailableError, OutcomeUnknownError, ContentionError) as error:
            logger.warning(
                "the reader %s stays where it is for now: %s", self._options.reader, error
            )

    def stop(self) -> None:
        """Release connections; the reader keeps its hold."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.close()

    # -- inside ------------------------------------------------------------------------------

    def _open(self) -> QueryHold:
        if self._hold is None:
            self._hold = QueryHold.open(self._options)
        return self._hold

    def _poll(self) -> int:
        """Return the collection's end; looks at most once in the poll interval."""
        now = self._clock.monotonic()
        if self._polled is None or now - self._polled >= self._options.poll_seconds:
            self._upper = self._open().upper()
            self._polled = now
        return self._upper

    def _planned(self, hold: QueryHold, *, as_of: int, after: int | None) -> CollectionScan:
        scan = hold.planned_scan(self._options, as_of=as_of, after=after)
        check_selected(self._schema, change_schema(scan.schema))  # it may have changed since load()
        return scan

    def _admitted(self, hold: QueryHold, start: int, end: int, limit: ReadLimit) -> int:
        """Return where a micro-batch of the wanted size from ``start`` ends."""
        options = self._options
        rows, size_bytes = options.most_rows, options.most_bytes
        if isinstance(limit, ReadMaxRows):
            rows = min(limit.max_rows, rows or limit.max_rows)
        elif isinstance(limit, ReadMaxBytes):
            size_bytes = min(limit.max_bytes, size_bytes or limit.max_bytes)
        if options.most_times is not None:
            end = min(end, start + options.most_times)
        if options.most_rows is None and options.most_bytes is None and (rows or 0) >= 1 << 62:
            return end
        return end_of(hold.stretches(start, end), start, end, Budget(rows, size_bytes))


class QueryHold:
    """The collection of a query, and the critical reader that holds what it has not read."""

    def __init__(
        self, runner: SyncRunner, collection: Collection, reader: CollectionReader
    ) -> None:
        """Made by :meth:`open`."""
        self._runner = runner
        self._collection = collection
        self._reader = reader
        self.first, self.since = 0, reader.frontier
        """Where the query began, and the first time that was held then."""
        self.has_begun = False
        """Whether the reader has the answer."""
        if reader.token:
            self.first, self.since = _parse_token(reader)
            self.has_begun = True

    @classmethod
    def open(cls, options: StreamOptions) -> QueryHold:
        """Open the collection and register the reader, or continue it; another query with it loses it."""
        with ExitStack() as stack:
            runner = SyncRunner()
            stack.callback(runner.close)
            collection = runner.run(_opened(options.location.text))
            stack.callback(lambda: runner.run(collection.aclose()))
            reader = runner.run(collection.critical(options.reader))
            found = cls(runner, collection, reader)
            stack.pop_all()
            return found

    def begin(self, starting: int | None) -> int:
        """Return where a query without a checkpoint begins, and keep the answer.

        SinceViolationError if the reader no longer holds that, or never did.
        """
        reader = self._reader
        if not self.has_begun:
            first = self.upper() if starting is None else starting
            since = max(reader.frontier, first - 1)
            if first and first - 1 < reader.frontier:
                raise SinceViolationError(
                    "the stream cannot begin at this time: earlier ones were compacted; begin with earliest",
                    as_of=first - 1,
                    since=reader.frontier,
                )
            token = json.dumps({"first": first, "since": since})
            self._runner.run(reader.compare_and_downgrade("", token, since))
            self.first, self.since, self.has_begun = first, since, True
        elif reader.frontier > self.since:
            raise SinceViolationError(
                f"a query has read further with the reader {reader.name}, and its checkpoint is another one: "
                "go on with that checkpointLocation, or begin again with another reader",
                as_of=self.first,
                since=reader.frontier,
            )
        return self.first

    def upper(self) -> int:
        """Return where the collection ends."""
        return self._runner.run(self._reader.upper())

    def planned_scan(
        self, options: StreamOptions, *, as_of: int, after: int | None
    ) -> CollectionScan:
        """Return the objects of a micro-batch, which stay readable for a while."""
        try:
            return self._runner.run(
                self._collection.planned_scan(
                    hold_seconds=options.lease_seconds, as_of=as_of, after=after
                )
            )
        except SinceViolationError as error:
            error.add_note(
                f"the reader {options.reader} does not hold what the query's checkpoint needs: it was "
                "released, or another query used it; begin again with another checkpointLocation"
            )
            raise

    def stretches(self, start: int, end: int) -> list[Stretch]:
        """Return how much is stored of ``[start, end)``."""
        return self._runner.run(self._stretches(start, end))

    def give_up(self, frontier: int) -> None:
        """Let compaction have the times before a frontier."""
        if frontier > 1:
            self._runner.run(self._reader.downgrade_since(frontier - 1))

    def close(self) -> None:
        """Release the connections; the reader keeps its hold."""
        try:
            self._runner.run(self._collection.aclose())
        finally:
            self._runner.close()

    async def _stretches(self, start: int, end: int) -> list[Stretch]:
        status = await self._collection.status()
        found = [
            Stretch(batch.lower, batch.upper, batch.rows, batch.size_bytes)
            for batch in status.batches
            if batch.upper > start and batch.lower < end
        ]
        async with self._reader.scan(after=start - 1, as_of=end - 1) as scan:
            found += [
                Stretch(file.start, file.limit, file.rows, file.size_bytes)
                for file in scan.files
                if file.limit > status.merged_upper and file.start >= status.merged_upper
            ]
        return found


async def _opened(url: str) -> Collection:
    return await Collection.open(url)


def _parse_token(reader: CollectionReader) -> tuple[int, int]:
    try:
        found = json.loads(reader.token)
        first, since = found["first"], found["since"]
        if type(first) is not int or type(since) is not int or first < 0 or since < 0:
            raise ValueError("no frontiers")
    except (ValueError, KeyError, TypeError):
        raise InvalidSettingsError(
            f"the critical reader {reader.name} belongs to another program; name another one"
        ) from None
    return first, since


def _frontier(offset: JsonOffset) -> int:
    found = offset.get("frontier")
    if type(found) is not int or found < 0:
        raise CorruptionError(
            "the checkpoint has an offset that is no frontier",
            path="checkpointLocation",
            found=offset,
        )
    return found


def _json(frontier: int) -> JsonOffset:
    return {"frontier": frontier}
