"""CloudWriter: appends straight to object storage, without a local log.

The public face; appends go through ``append_queue.py`` and ``commit_loop.py``. Any number of writers,
in any number of processes, may append to one log: see docs/cloud_writer.md.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import get_running_loop
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

from uploader.chain.chain_root import ChainSettings
from uploader.format.manifest import Manifest
from uploader.layouts.log_session import Layout, LogSession, needs_swaps
from uploader.positions.cursors.cloud_cursors import CloudCursors
from uploader.root.ownership import check_direct, direct_writer_name
from uploader.root.root import Note
from uploader.root.write_guard import check_exists, check_unsealed, has_records
from uploader.runtime.task_groups import main_error
from uploader.stores.port import ObjectStore
from uploader.stores.probe import require_conditional_puts
from uploader.stores.retry import RetryPolicy
from uploader.write.commit_loop import CommitLoop
from uploader.write.stall_guard import StallGuard, WriteContext
from uploader.write.stream_guard import StreamDoor, StreamGuard
from uploader.write.writer_settings import WRITER_METRICS, WriterSettings, WriterStatistics
from walstore.core.batches.append_request import check_records, make_group, make_record
from walstore.core.batches.batch_builder import AppendRequest
from walstore.core.format.ledger import StreamInfo
from walstore.core.ports import Clock
from walstore.core.runtime.metric import Metric
from walstore.core.runtime.owned import Owned, checks_itself
from walstore.core.runtime.resource import (
    MustClose,
    Opening,
    Unclosed,
    abandon_in_children,
    wait_closed,
)
from walstore.core.runtime.tasks import start_task
from walstore.core.validation.arguments import TimestampCheck, as_settings
from walstore.errors import OffsetMismatchError, WalClosedError


class CloudWriter(Owned, MustClose):
    """A log in object storage, for appending. Make one with :meth:`open`.

    All methods belong to the event loop that opened it: from another thread or event loop they raise
    WrongLoopError, in a forked child WalClosedError, and so do those of :attr:`cursors`. Only properties and
    statistics may be read anywhere. Appends of this writer that are under way together are committed in
    their order, unless another writer comes between.
    """

    @classmethod
    def open(
        cls,
        url: str,
        *,
        settings: WriterSettings | None = None,
        layout: Layout | None = None,
        chain: ChainSettings | None = None,
        note: Note | None = None,
        create: bool = True,
        store: ObjectStore | None = None,
        retry: RetryPolicy | None = None,
        clock: Clock | None = None,
    ) -> Opening[CloudWriter]:
        """Open the log under ``url`` for appending, creating it if there is none and ``create`` is true.

        Use as ``async with CloudWriter.open(url) as log`` or ``log = await CloudWriter.open(url)`` with a
        later ``await log.aclose()``. Fragments that a writer put and died before publishing are published
        first. A new log gets the layout ``"swap"``, wal3's, unless ``layout`` says ``"chain"``
        (docs/chain.md), which answers sooner; ``chain`` has its settings. ``note`` is awaited with
        fragments before they are published (:meth:`uploader.DirtyLog.note_for`). ``store`` replaces the one
        that the URL names; it is also closed with the log. ``retry`` says how conditional puts are repeated.

        Raises ContentionError if a local log ships to that place, InvalidSettingsError if the log has the
        other layout than ``layout``, LogSealedError, LogNotFoundError if it was destroyed, or there is none
        and ``create`` is false, CorruptionError for damaged objects, UnsupportedStoreError, and
        StorageUnavailableError once the store fulfilled no request for ``patience_seconds``.
        """
        session = LogSession(url, store=store, retry=retry, clock=clock)
        chosen = as_settings(settings, WriterSettings)

        async def open_it() -> CloudWriter:
            stall_guard = StallGuard(
                url=session.store.url,
                retry=session.retry,
                clock=session.clock,
                silent_seconds=chosen.patience_seconds,
            )

            async def find() -> None:
                root = await session.find_root(
                    layout=layout, chain=chain, roll_up=chosen.roll_up, note=note
                )
                if not create:
                    await check_exists(session.store, root)
                await require_conditional_puts(
                    session.store,
                    with_swaps=needs_swaps(root),
                    is_new=not root.is_known,
                    retry=session.retry,
                )

            async with session.closed_on_error():
                await stall_guard.guard(partial(stall_guard.call, find))
                log = cls(session, WriteContext.of(session, session.root, stall_guard), chosen)
            try:
                await log._start()
            except BaseException:
                await log._release()
                raise
            return log

        return Opening(open_it)

    def __init__(
        self, session: LogSession, context: WriteContext, settings: WriterSettings
    ) -> None:
        """Private; use :meth:`open`."""
        self._session = session
        self.settings = settings
        self.writer = direct_writer_name(secrets.token_hex(8))
        """This writer's name in manifests; no other writer has it."""
        self._store = context.store
        self._root = context.root
        self._timestamp = TimestampCheck(context.clock.now_us, settings.max_timestamp_lead_seconds)
        self._guard = StreamGuard(context, self.writer)
        self._commit_loop = CommitLoop(context, self._guard, settings)
        self._queue = self._commit_loop.queue
        self._loop = get_running_loop()
        self._cursors = CloudCursors.of_store(
            context.store,
            retry=context.retry,
            clock=context.clock,
            worker=context.worker,
            check_home=self._queue.check_home,
            known=lambda: context.root.manifest.next_offset,
        )
        self._streams = StreamDoor(
            context,
            self._guard,
            settle=self._commit_loop.settle,
            check_open=self._queue.check_open,
        )
        self._supervisor: asyncio.Task[None] | None = None
        self._is_abandoned = False

    # -- appending ---------------------------------------------------------------------------

    @checks_itself
    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
        *,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset once a manifest in the store names it.

        With ``expect_offset`` it is appended only if it gets that offset (OffsetMismatchError); the newest
        manifest is read before it is refused. ``timestamp_us`` is an aware datetime or microseconds since
        1970 UTC, now if left out; one older than the record before is raised to that. Waits while too much is
        pending.

        If cancelled while it waits for room, nothing is appended; later, the record will be in the log.

        Raises:
            ContentionError: Other writers were quicker, again and again. Not written: append again.
            OutcomeUnknownError: The store did not answer. Read the log before appending again.
            StorageUnavailableError: The store did not answer before anything was put, or refused to put it,
                as without permission. Not written.
            RecordTooLargeError: It exceeds ``max_record_bytes``.
            LogSealedError: The log takes no more records.
            StreamClosedError: The stream is closed. Not written.
            LimitExceededError: The log has as many streams as it can have. Not written.
            WalClosedError: The writer is closed.
        """
        if get_running_loop() is not self._loop:
            self.check_owner()
        times = None if timestamp_us is None else self._timestamp(timestamp_us)
        group = make_record(value, key, stream, headers, times)
        return await self._append(group, expect_offset)

    @checks_itself
    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | datetime | None = None,
        expect_offset: int | None = None,
    ) -> range:
        """Append records as one atomic group and return their offsets; else as :meth:`append`.

        They are in one fragment: all of them are in the log or none. The options apply to each record.
        The group may have up to ``pending_bytes``. An empty group is a ValueError.
        """
        if get_running_loop() is not self._loop:
            self.check_owner()
        times = None if timestamp_us is None else self._timestamp(timestamp_us)
        group = make_group(values, key, stream, headers, times)
        check_records(group, self.settings.max_record_bytes)
        start = await self._append(group, expect_offset)
        return range(start, start + group.count)

    async def flush(self) -> None:
        """Return when everything accepted before the call is committed, or its append has raised.

        Appends that wait to be cut are shipped at once. Cancelling has no effect on the records.
        """
        await self._commit_loop.settle()

    # -- streams -----------------------------------------------------------------------------

    async def open_stream(self, name: str, *, metadata: Mapping[str, str] | None = None) -> None:
        """Open a stream, or open it again, with ``metadata``; in the store when this returns.

        The first append to a stream opens it too, without metadata. A name has 1 to 256 characters, metadata
        4096 together. LimitExceededError if the log has 65 536 streams already, or the table of streams would
        be longer than 16 MiB; UnsupportedStoreError if the store has no swaps.

        OutcomeUnknownError, or StorageUnavailableError, if the store does not answer. After those, or if
        cancelled, the stream may be open or not, or be opened later; call again.
        """
        await self._streams.open(name, metadata)

    async def close_stream(self, name: str) -> None:
        """Close a stream: appends to it, by any writer, raise StreamClosedError until it is opened again.

        Its records stay. Appends to it that this writer accepted before come first. When it returns the
        stream has no records but those that the newest manifest names. StreamClosedError if there is no such
        stream, LogNotFoundError if the log was destroyed. Closing one twice is allowed, and finishes what an
        interrupted call began. Otherwise as :meth:`open_stream`.
        """
        await self._streams.close(name)

    async def streams(self) -> dict[str, StreamInfo]:
        """Return every stream that was opened or appended to, by name, in the order of opening.

        The answer is the table of streams, which decides about this writer's appends: one request, and
        another one if the table is empty. It lacks streams of records that were appended before there was
        a table; see :meth:`uploader.CloudLog.streams`. LogNotFoundError if the log was destroyed.
        """
        table = await self._streams.table()
        return table.infos()

    # -- state -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Location of the log, without credentials."""
        return self._store.url

    @property
    def cursors(self) -> CloudCursors:
        """Named positions; garbage collection keeps everything from them on."""
        return self._cursors

    @property
    def manifest(self) -> Manifest:
        """The newest manifest that this writer knows; others may have appended since."""
        return self._root.manifest

    @property
    def head(self) -> int:
        """First retained offset, by :attr:`manifest`."""
        return self.manifest.oldest_offset

    @property
    def tail(self) -> int:
        """Offset after the last committed record, by :attr:`manifest`."""
        return self.manifest.next_offset

    @property
    def metrics(self) -> Sequence[Metric]:
        """What ``PrometheusMetrics.watch`` shows of it."""
        return WRITER_METRICS

    def statistics(self) -> WriterStatistics:
        """Return a snapshot of the writer's counters, also after closing."""
        commits, queue = self._commit_loop, self._queue
        return WriterStatistics(
            head=self.head,
            tail=self.tail,
            waiting_bytes=queue.waiting_bytes,
            waiting_records=queue.waiting_records,
            blocked_appends=queue.blocked,
            fragments_under_way=commits.fragments_under_way,
            committed_records=commits.committed_records,
            committed_bytes=commits.committed_bytes,
            put_fragments=commits.puts.put_fragments,
            put_bytes=commits.puts.put_bytes,
            adopted_fragments=commits.adopted_fragments,
            contentions=commits.contentions,
            reappended_fragments=commits.reappended_fragments,
            unknown_records=commits.unknown_records,
            put_seconds=commits.schedule.put_seconds,
            publish_seconds=commits.schedule.publish_seconds,
        )

    # -- closing -----------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether the writer is closed, has failed, or is about to close: appends are refused."""
        return self._queue.is_closed

    async def aclose(self) -> None:
        """Refuse further appends, ship what was accepted, and release connections and threads.

        Twice is allowed. Cancelling the wait does not stop the closing. If the store fulfils no request for
        ``patience_seconds``, it is given up and the appends raise.
        """
        assert self._supervisor is not None
        self._commit_loop.close(WalClosedError("the log is closed"))
        await wait_closed(self._supervisor)

    def check_owner(self) -> None:
        """Not for callers: as of :class:`walstore.core.runtime.owned.Owned`."""
        self._queue.check_home()

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything in a child process, which has none of the threads."""
        self._is_abandoned = True
        self._queue.abandon(error)

    def _left_open(self) -> Unclosed | None:
        supervisor = getattr(self, "_supervisor", None)
        if supervisor is None or supervisor.done() or self._is_abandoned:
            return None
        pending = self._queue.waiting_records
        return Unclosed(
            f"the writer of {self.url}", f"; {pending} accepted records may not be committed"
        )

    def __repr__(self) -> str:
        return f"<CloudWriter {self.url}>"

    # -- inside ------------------------------------------------------------------------------

    async def _start(self) -> None:
        check_unsealed(self._root.manifest, url=self.url)
        check_direct(self._root.manifest, url=self.url)
        await self._commit_loop.start(is_loaded=has_records(self._root.manifest))
        self._supervisor = start_task(self._supervise(), name=f"walstore {self.url}")
        abandon_in_children(self)

    async def _supervise(self) -> None:
        """Own the writer's tasks until it is closed. Never cancelled by us.

        A defect is raised as WalClosedError, from the appends and from :meth:`aclose`. If the writer was
        garbage-collected, no caller is left, and there may be no event loop to wait on.
        """
        try:
            await self._commit_loop.run()
        except Exception as found:  # noqa: BLE001 - whatever it is, the appends fail and it is raised
            if self._is_forgotten:
                return
            cause = main_error(found) if isinstance(found, ExceptionGroup) else found
            failure = WalClosedError(
                f"the writer of {self.url} failed, open it again: {cause!r}", reason="failed"
            )
            failure.__cause__ = cause
            self._commit_loop.fail(failure)
            raise failure from cause
        finally:
            # Whatever ended it, also a cancellation or the end of the program, no caller waits for ever.
            if not self._is_forgotten:
                self._commit_loop.fail(WalClosedError("the log is closed"))
                await self._release()

    @property
    def _is_forgotten(self) -> bool:
        """Whether this task is not running, but being destroyed by the garbage collector."""
        try:
            return asyncio.current_task() is not self._supervisor
        except RuntimeError:  # no event loop runs
            return True

    async def _release(self) -> None:
        await self._streams.drain()
        await self._guard.aclose()
        await self._session.aclose()

    async def _append(self, group: AppendRequest, expect_offset: int | None) -> int:
        """Append, and return the first offset; if that seems not to be as expected, read the newest
        manifest first."""
        if group.streams is not None or self._streams.has_waiting:
            await self._streams.enter(group.streams or ())
        try:
            ticket = await self._queue.add(group, expect_offset)
        except OffsetMismatchError:  # only if one is expected
            await self._commit_loop.settle()
            await self._commit_loop.refresh()
            ticket = await self._queue.add(group, expect_offset)
        return await ticket
