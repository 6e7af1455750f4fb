"""LogTable: the fragments of a log in object storage, registered as they are in an Iceberg table.

A commit of the table adds the fragments that come after those it has, and its snapshot says how far they
reach; so each record is in the table once, whatever fails and however many programs do this. A cursor of the
log, named after the table, keeps the log's collection from the fragments that the table refers to. It is
there before the first commit, and moves on only after :meth:`LogTable.release` took rows out of the table.

A table of copies has the records in files of its own instead: without unsigned columns, which some
engines refuse, and with typed columns of records that are JSON, if some are given. Then the cursor stands
where the table ends.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import pyarrow as pa

from uploader.format.entries import Fragment
from uploader.iceberg.iceberg_table import SOURCE, CommitLostError, IcebergTable, Marks
from uploader.iceberg.iceberg_target import IcebergTarget, as_target
from uploader.iceberg.json_columns import JsonColumn, check_columns, table_schema
from uploader.iceberg.record_copy import copy_records
from uploader.read import log_file
from uploader.read.cloud_log import CloudLog
from uploader.runtime.shared_worker import SharedWorker
from uploader.stores.port import ObjectStore
from walstore.core.batches.arrow import HEADERS_TYPE
from walstore.core.ports import Clock
from walstore.core.runtime.backoff import Backoff
from walstore.core.runtime.clock import SystemClock
from walstore.core.runtime.resource import Opening
from walstore.core.validation.arguments import as_bool, as_int, as_seconds
from walstore.errors import (
    ContentionError,
    CorruptionError,
    CursorMovedError,
    InvalidSettingsError,
    OffsetTrimmedError,
    OutcomeUnknownError,
    StorageUnavailableError,
)

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

logger = logging.getLogger("walstore.iceberg")

POLL_SECONDS: Final = 0.5
_AT_ONCE: Final = 200
"""Most fragments in one commit. pyiceberg reads the footer of each."""
_COPY_BYTES: Final = 64 << 20
"""About so many bytes of fragments become one file."""
_ATTEMPTS: Final = 20

_START: Final = "walstore.start"
_LIMIT: Final = "walstore.limit"
_COLUMNS: Final = "walstore.columns"

COLUMNS: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp_us", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("record_timestamp_us", pa.int64()),
        pa.field("stream", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Columns of the table. Fragments of wal3's own have only the first three; the others are null then."""
_PROPERTIES: Final = {
    # The files belong to the log: maintenance of the table must never remove them.
    "gc.enabled": "false",
    # Fragments have statistics of these columns only.
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.offset": "full",
    "write.metadata.metrics.column.timestamp_us": "full",
    "write.metadata.metrics.column.record_timestamp_us": "full",
}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """What the table has of a log, and what a call added to it, or would add."""

    start: int
    """Offset of the first record in the table."""
    limit: int
    """Offset after the last record in the table."""
    records: int
    """How many records were added."""
    fragments: int
    """How many fragments were added."""
    misfits: int = 0
    """How many of the records have a null where a value does not fit its typed column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """What a release took out of the table, or would take."""

    start: int
    """Offset of the first record that stays."""
    limit: int
    """Offset after the last record in the table."""
    records: int
    """How many records the table loses."""


class LogTable:
    """A log's Iceberg table. Made by :meth:`open`; one task at a time uses it.

    All methods pass on the store's errors, and raise StorageUnavailableError for the catalog's,
    OutcomeUnknownError if a commit may have happened, ContentionError if others change the table all the
    time. Each may be called again after any error, and after it was cancelled.
    """

    def __init__(
        self,
        log: CloudLog,
        target: IcebergTarget,
        worker: SharedWorker,
        clock: Clock,
        columns: tuple[JsonColumn, ...] = (),
        *,
        has_copies: bool = False,
        is_strict: bool = False,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self._log = log
        self._columns = columns
        self._has_copies = has_copies
        self._is_strict = is_strict
        self._target = target
        self._worker = worker
        self._clock = clock
        self._table: IcebergTable | None = None
        self._prefix = file_prefix(log.url)

    @classmethod
    def open(
        cls,
        url: str,
        target: IcebergTarget | str,
        *,
        columns: Iterable[JsonColumn | str] | None = None,
        copy: bool = False,
        strict: bool = False,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
    ) -> Opening[LogTable]:
        """Open the log; the table is created by the first call that adds to it.

        Args:
            url: The log's location, ``s3:`` or ``file:``. The table refers to the fragments by it.
            target: The table, or the text that names it: ``iceberg:[catalog/]namespace.table``.
            columns: Typed columns, as :class:`JsonColumn` or ``name:type[:/pointer]``. Records are copied
                into the table then, with these columns beside their own. Default: fragments as they are.
                The same columns are given each time; more may follow later, with nulls in older rows.
            copy: Whether records are copied into the table without typed columns, too; given each time.
                Default: fragments as they are, whose offsets and times are unsigned; Polars refuses these,
                and Iceberg's Java readers may.
            strict: Whether a value that does not fit its column stops with an error. Default: it is null.
            store: Replaces the store that the URL names; also closed with the log.
            clock: For tests.

        Raises:
            InvalidSettingsError: An Iceberg table cannot refer to files at ``url``, or a column cannot be.
            LogNotFoundError: There is no log.
        """
        chosen = as_target(target)
        typed = () if columns is None else check_columns(columns)
        has_copies = as_bool(copy, "copy") or bool(typed)
        if strict and not typed:
            raise InvalidSettingsError("strict is for typed columns; give columns")

        async def open_it() -> LogTable:
            file_prefix(url)
            log = await CloudLog.open(url, store=store, clock=clock)
            worker = SharedWorker("store", 1)
            try:
                return cls(
                    log,
                    chosen,
                    worker,
                    clock or SystemClock(),
                    typed,
                    has_copies=has_copies,
                    is_strict=strict,
                )
            except BaseException:
                await log.aclose()
                raise

        return Opening(open_it)

    @property
    def log(self) -> CloudLog:
        """The log."""
        return self._log

    async def cursor(self) -> str | None:
        """Return the name of the cursor that keeps the fragments; None if there is no table yet."""
        table = await self._opened(create=False)
        return None if table is None else _cursor_name(table)

    async def plan(self) -> Registered:
        """Return what there is to add; changes nothing."""
        await self._log.refresh()
        table = await self._opened(create=False)
        marks = {} if table is None else await self._on_thread(table.refresh)
        head = self._log.head
        start, limit = _span(marks, head)
        self._check_reach(limit)
        entries = await self._log.fragments(limit, self._log.tail) if limit < self._log.tail else []
        return Registered(
            start=start, limit=limit, records=self._log.tail - limit, fragments=len(entries)
        )

    async def step(self) -> Registered:
        """Add the next fragments, at most 200; none if the table has all that the log's manifest names.

        Raises:
            OffsetTrimmedError: The log has collected records that the table does not have yet, or fragments
                that it refers to: the cursor was removed.
            InvalidSettingsError: The table has the rows of something else.
            CorruptionError: A fragment is not what the manifest says.
        """
        return await self._repeatedly(self._step)

    async def follow(self, *, poll_seconds: float = POLL_SECONDS) -> AsyncIterator[Registered]:
        """Add fragments as they appear, for ever or until the log is sealed; yield what each commit added.

        ``poll_seconds``: time between two looks at the log while nothing is new, above 0; one request each.
        Once something was found, a store or catalog that fails is asked again, after up to 30 s.
        """
        interval = as_seconds(poll_seconds, "poll_seconds")
        if not interval > 0:
            raise InvalidSettingsError(f"poll_seconds must be above 0, not {interval:g}")
        done = await self.step()
        backoff = Backoff(first_seconds=interval, longest_seconds=30.0)
        while True:
            if done.fragments:
                yield done
            try:
                while self._log.tail <= done.limit:
                    if self._log.manifest.is_sealed:
                        return
                    await self._clock.sleep(interval)
                    await self._log.refresh()
                done = await self.step()
                backoff.reset()
            except (StorageUnavailableError, OutcomeUnknownError, ContentionError) as error:
                wait = backoff.next_seconds()
                logger.warning("%s; next attempt in %g s", error, wait)
                done = replace(done, records=0, fragments=0)
                await self._clock.sleep(wait)

    async def release(self, before: int, *, dry_run: bool = False) -> Released:
        """Take the fragments wholly before an offset out of the table, then let the log collect them.

        The rows are gone from the table's present state with one commit. Its older snapshots still refer to
        the fragments, and cannot be read any more once the log has collected them.

        Args:
            before: First offset that must stay. At the table's end or beyond: nothing stays.
            dry_run: Only return what it would do.
        """
        place = as_int(before, "before")
        if self._has_copies:
            raise InvalidSettingsError(
                f"{self._target} has files of its own and holds nothing of the log; delete rows as you like"
            )
        return await self._repeatedly(partial(self._release, place, dry_run=dry_run))

    async def aclose(self) -> None:
        """Close the catalog and the log. Idempotent."""
        try:
            if self._table is not None:
                await self._on_thread(self._table.close)
                self._table = None
        finally:
            self._worker.close()
            await self._log.aclose()

    # -- inside ------------------------------------------------------------------------------

    async def _step(self) -> Registered:
        table = await self._opened()
        assert table is not None
        await self._log.refresh()
        marks = await self._on_thread(table.refresh)
        start, limit = _span(marks, self._log.head)
        self._check_columns(marks)
        await self._hold(_cursor_name(table), limit if self._has_copies else start)
        self._check_reach(limit)
        entries = await self._next(limit)
        if not entries:
            return Registered(start=start, limit=limit, records=0, fragments=0)
        reached = entries[-1].limit
        added = {SOURCE: self._source, _START: str(start), _LIMIT: str(reached)}
        misfits = 0
        if self._has_copies:
            added[_COLUMNS] = _described(self._columns)
            misfits = await copy_records(
                self._log,
                entries,
                table,
                added,
                columns=self._columns,
                is_strict=self._is_strict,
                worker=self._worker,
            )
            await self._advance(_cursor_name(table), reached)
        else:
            await self._log.put_inline()
            paths = [f"{self._prefix}/{entry.path}" for entry in entries]
            await self._on_thread(
                partial(table.commit, partial(_add_files, paths, reached - limit), added)
            )
        return Registered(
            start=start,
            limit=reached,
            records=reached - limit,
            fragments=len(entries),
            misfits=misfits,
        )

    async def _next(self, limit: int) -> list[Fragment]:
        """Return the fragments of the next commit."""
        entries: list[Fragment] = []
        size_bytes = 0
        async with aclosing(self._log.scan(limit, max_fragments=_AT_ONCE)) as scanned:
            async for entry in scanned:
                entries.append(entry)
                size_bytes += entry.num_bytes
                if self._has_copies and size_bytes >= _COPY_BYTES:
                    break
        if entries and entries[0].start != limit:
            raise CorruptionError(
                f"{self._target} ends at offset {limit}, within a fragment of the log: it has the rows of "
                "another log that was there",
                path=entries[0].path,
                expected=limit,
                found=entries[0].start,
            )
        return entries

    def _check_columns(self, marks: Marks) -> None:
        """InvalidSettingsError if the table has other typed columns, but for those that come after them."""
        there = json.loads(marks.get(_COLUMNS, "[]"))
        given = [str(column) for column in self._columns]
        changed = [column for column in there if column not in given]
        if changed:
            raise InvalidSettingsError(
                f"{self._target} has the typed column {changed[0]}; give it as it is, new ones beside it, or "
                "another table"
            )

    async def _release(self, before: int, *, dry_run: bool) -> Released:
        await self._log.refresh()
        table = await self._opened(create=False)
        marks = {} if table is None else await self._on_thread(table.refresh)
        start, limit = _span(marks, self._log.head)
        if table is None or not marks:
            return Released(start=start, limit=limit, records=0)
        self._check_reach(limit)
        first = min(before, limit)
        if start < first < limit:
            first = (await self._log.fragments(first, first + 1))[0].start
        done = Released(start=max(first, start), limit=limit, records=max(first - start, 0))
        if dry_run:
            return done
        if done.records:
            left = {SOURCE: self._source, _START: str(done.start), _LIMIT: str(limit)}
            await self._on_thread(
                partial(table.commit, partial(_drop_files, table, done.start), left)
            )
        await self._advance(_cursor_name(table), done.start)
        return done

    @property
    def _source(self) -> str:
        return f"{'records' if self._has_copies else 'log'} {self._prefix}"

    async def _opened(self, *, create: bool = True) -> IcebergTable | None:
        if self._table is None:
            self._table = await self._on_thread(
                partial(
                    IcebergTable.open,
                    self._target,
                    source=self._source,
                    schema=table_schema(self._columns) if self._has_copies else COLUMNS,
                    properties={} if self._has_copies else _PROPERTIES,
                    create=create,
                )
            )
        return self._table

    async def _hold(self, name: str, start: int) -> None:
        """Let the cursor stand at the first record that the table has or will have.

        It only ever stands too early: it moves on after the commit that released rows, and back at once
        if the table was rolled back to a snapshot that has them. OffsetTrimmedError if they are collected.
        """
        while True:
            cursor = await self._log.cursor(name, start=start)
            with suppress(CursorMovedError):  # by another program, since
                await cursor.rewind(start)
                return

    async def _advance(self, name: str, position: int) -> None:
        """Move the cursor forward, unless another program has moved it."""
        cursor = await self._log.cursor(name, start=position)
        if cursor.position < position:
            with suppress(CursorMovedError):
                await cursor.commit(position)

    def _check_reach(self, limit: int) -> None:
        if limit > self._log.tail:
            raise CorruptionError(
                f"{self._target} has records that the log does not have: another log was at its location",
                path=self._log.url,
                expected=limit,
                found=self._log.tail,
            )

    async def _repeatedly(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Return what ``attempt`` returns; begin again if another program changed table or cursor first."""
        refused: tuple[int, int] | None = None
        for _ in range(_ATTEMPTS):
            try:
                return await attempt()
            except CommitLostError:
                continue
            except OffsetTrimmedError as error:
                # The table, or the log's head, may have moved on since they were read.
                if refused == (error.requested, error.head):
                    raise
                refused = (error.requested, error.head)
        raise ContentionError(
            f"other programs changed {self._target} {_ATTEMPTS} times meanwhile; nothing was changed; run it "
            "again"
        )

    async def _on_thread(self, call: Callable[[], _T]) -> _T:
        return await self._worker.run(call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def file_prefix(url: str) -> str:
    """Return where a log's objects are, as Iceberg names files; InvalidSettingsError if it cannot."""
    return log_file.file_prefix(url, reader="an Iceberg table", schemes={"s3", "file"})


def _cursor_name(table: IcebergTable) -> str:
    return f"iceberg_{table.uuid}"


def _span(marks: Marks, head: int) -> tuple[int, int]:
    """Return the offsets of the first record in the table and after the last one, ``head`` if it is empty."""
    if not marks:
        return head, head
    return int(marks[_START]), int(marks[_LIMIT])


def _add_files(
    paths: list[str], records: int, transaction: Transaction, marks: dict[str, str]
) -> None:
    try:
        # Their marks say that the table has none of them; looking would read all its manifests.
        transaction.add_files(paths, snapshot_properties=marks, check_duplicate_files=False)
    except FileNotFoundError as error:
        raise CorruptionError(
            "a fragment that the manifest names is missing", path=str(error)
        ) from error
    except ValueError as error:
        raise InvalidSettingsError(
            f"the table cannot take the fragments; nothing was changed: {error}"
        ) from error
    added: Any = transaction.table_metadata.current_snapshot()
    found = int(added.summary["added-records"] or 0)
    if found != records:
        raise CorruptionError(
            "fragments have other numbers of records than the manifest says",
            path=paths[0],
            expected=records,
            found=found,
        )


def _described(columns: Iterable[JsonColumn]) -> str:
    return json.dumps([str(column) for column in columns])


def _drop_files(
    table: IcebergTable, start: int, transaction: Transaction, marks: dict[str, str]
) -> None:
    """Take out the files before an offset. None contains it, so none is written anew."""
    from pyiceberg.expressions import LessThan

    condition = LessThan("offset", start)  # type: ignore[call-arg,arg-type,unused-ignore]
    if table.data_files(condition):
        transaction.delete(condition, snapshot_properties=marks)
    else:  # somebody else has deleted them
        transaction.add_files([], snapshot_properties=marks)
