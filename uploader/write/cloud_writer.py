"""CloudWriter: appends straight to object storage, without a local log.

The public face; appends go through ``append_queue.py`` and ``commit_loop.py``. Any number of writers,
in any number of processes, may append to one log: see docs/cloud_writer.md.
"""

from __future__ import annotations

import asyncio
import secrets
from asyncio import get_running_loop
from collections.abc import Iterable, Mapping
from functools import partial

from uploader.chain.chain_settings import ChainSettings
from uploader.cursors.cloud_cursors import CloudCursors
from uploader.format.manifest import Manifest
from uploader.layouts.open_root import Layout, find_root, needs_swaps
from uploader.root.notifying_root import Note, with_note
from uploader.root.ownership import check_direct, direct_writer_name
from uploader.root.root import Root
from uploader.root.write_guard import check_exists, check_unsealed, has_records
from uploader.runtime.shared_worker import SharedWorker
from uploader.runtime.task_groups import main_error
from uploader.stores.port import ObjectStore
from uploader.stores.probe import require_conditional_puts
from uploader.stores.retry import RetryPolicy
from uploader.stores.url import chosen_store
from uploader.write.commit_loop import CommitLoop
from uploader.write.fragment_puts import FragmentPuts, puts_at_once
from uploader.write.stall_guard import StallGuard
from uploader.write.stream_door import StreamDoor
from uploader.write.stream_guard import StreamGuard
from uploader.write.writer_settings import WriterSettings, WriterStatistics
from walstore.batches.append_request import make_group, make_record
from walstore.batches.batch_builder import AppendRequest
from walstore.errors import OffsetMismatchError, WalClosedError
from walstore.format.ledger import StreamInfo
from walstore.ports import Clock
from walstore.runtime.clock import SystemClock
from walstore.runtime.forks import abandon_in_children
from walstore.runtime.resource import Opening, warn_unclosed
from walstore.runtime.threads import Worker
from walstore.validation.arguments import as_settings


class CloudWriter:
    """A log in object storage, for appending. Make one with :meth:`open`.

    All methods belong to the event loop that opened it: from another thread or event loop they raise
    WrongLoopError, in a forked child WalClosedError, and so do those of :attr:`cursors`. Only what is looked
    at without waiting may be asked for anywhere. Appends of this writer that are under way together
    are committed in their order, unless another writer comes between.
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
        later ``await log.aclose()``. Fragments that a writer put and did not live to publish are published
        first. A new log gets the layout ``"swap"``, wal3's, unless ``layout`` says ``"chain"``
        (docs/chain.md), which answers sooner; ``chain`` says how that is written. ``note`` is awaited with
        fragments before they are published (:meth:`uploader.DirtyLog.note_for`). ``store`` replaces the one
        that the URL names; it is closed with the log all the same. ``retry`` says how conditional puts are
        repeated.

        Raises ContentionError if a local log ships to that place, InvalidSettingsError if the log has the
        other layout than ``layout``, LogSealedError, LogNotFoundError if it was destroyed, or there is none
        and ``create`` is false, CorruptionError for damaged objects, UnsupportedStoreError, and
        StorageUnavailableError once the store did nothing for ``patience_seconds``.
        """
        found = chosen_store(url, store)
        time = clock or SystemClock()
        policy = retry or RetryPolicy(clock=time)
        chosen = as_settings(settings, WriterSettings)

        async def open_it() -> CloudWriter:
            worker = SharedWorker("cloud", 2)
            patience = StallGuard(
                url=found.url, retry=policy, clock=time, silent_seconds=chosen.patience_seconds
            )

            async def find() -> Root:
                root = await find_root(
                    found,
                    retry=policy,
                    worker=worker,
                    layout=layout,
                    chain=chain,
                    roll_up=chosen.roll_up,
                )
                if not create:
                    await check_exists(found, root)
                await require_conditional_puts(
                    found, with_swaps=needs_swaps(root), is_new=not root.is_known, retry=policy
                )
                return root

            try:
                root = await patience.guard(partial(patience.call, find))
                log = cls(found, with_note(root, note), worker, chosen, policy, time, patience)
            except BaseException:
                worker.close()
                await found.aclose()
                raise
            try:
                await log._start()
            except BaseException:
                await log._release()
                raise
            return log

        return Opening(open_it)

    def __init__(
        self,
        store: ObjectStore,
        root: Root,
        worker: Worker,
        settings: WriterSettings,
        retry: RetryPolicy,
        clock: Clock,
        patience: StallGuard,
    ) -> None:
        """Not for callers; see :meth:`open`."""
        self.settings = settings
        self.writer = direct_writer_name(secrets.token_hex(8))
        """What manifests say of this writer; no other has that name."""
        self._store = store
        self._root = root
        self._worker = worker
        self._clock = clock
        self._lead_us = int(settings.max_timestamp_lead_seconds * 1e6)
        self._puts = FragmentPuts(
            store=store,
            root=root,
            patience=patience,
            retry=retry,
            worker=worker,
            max_at_once=puts_at_once(
                root, most=settings.max_in_flight, is_parallel=settings.parallel_puts
            ),
        )
        self._guard = StreamGuard(
            store=store,
            root=root,
            patience=patience,
            writer=self.writer,
            retry=retry,
            worker=worker,
        )
        self._shipper = CommitLoop(
            store=store,
            root=root,
            puts=self._puts,
            patience=patience,
            streams=self._guard,
            settings=settings,
            writer=self.writer,
            clock=clock,
            worker=worker,
        )
        self._intake = self._shipper.intake
        self._loop = get_running_loop()
        self._cursors = CloudCursors.of_store(
            store,
            retry=retry,
            clock=clock,
            worker=worker,
            check_home=self._intake.check_home,
        )
        self._streams = StreamDoor(
            self._guard,
            root=root,
            url=store.url,
            patience=patience,
            settle=self._shipper.settle,
            check_open=self._intake.check_open,
        )
        self._supervisor: asyncio.Task[None] | None = None
        self._is_abandoned = False

    # -- appending ---------------------------------------------------------------------------

    async def append(
        self,
        value: bytes,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        *,
        expect_offset: int | None = None,
    ) -> int:
        """Append one record and return its offset once a manifest in the store names it.

        With ``expect_offset`` it is appended only if it gets that offset (OffsetMismatchError); the newest
        manifest is read before it is refused. ``timestamp_us`` is microseconds since 1970 UTC, now if left
        out; one older than the record before is raised to that. Waits while too much is pending.

        Cancelled while it waits for room, nothing was appended; later, the record will be in the log.

        Raises:
            ContentionError: Other writers were quicker, again and again. Not written: append again.
            OutcomeUnknownError: The store did not answer. Read the log before appending again.
            StorageUnavailableError: The store did not answer before anything was put. Not written.
            RecordTooLargeError: It exceeds ``max_record_bytes``.
            LogSealedError: The log takes no more records.
            StreamClosedError: The stream is closed. Not written.
            LimitExceededError: The log has as many streams as it can have. Not written.
            WalClosedError: The writer is closed.
        """
        if get_running_loop() is not self._loop:
            self.check_home()
        times = self._timestamp(timestamp_us)
        group = make_record(value, key, stream, headers, times)
        if stream is not None or self._streams.has_waiting:
            await self._streams.enter(group.streams or ())
        if expect_offset is None:
            return await (await self._intake.add(group))
        return await self._append_at(group, expect_offset)

    async def append_many(
        self,
        values: Iterable[bytes],
        *,
        key: bytes | None = None,
        stream: str | None = None,
        headers: Mapping[str, bytes] | None = None,
        timestamp_us: int | None = None,
        expect_offset: int | None = None,
    ) -> range:
        """Append records as one atomic group and return their offsets; else as :meth:`append`.

        They are in one fragment: all of them are in the log or none. The options hold for each record.
        The group may have up to ``pending_bytes``. An empty group is a ValueError.
        """
        if get_running_loop() is not self._loop:
            self.check_home()
        times = self._timestamp(timestamp_us)
        group = make_group(values, key, stream, headers, times)
        if stream is not None or self._streams.has_waiting:
            await self._streams.enter(group.streams or ())
        if expect_offset is None:
            start = await (await self._intake.add(group))
        else:
            start = await self._append_at(group, expect_offset)
        return range(start, start + group.count)

    async def flush(self) -> None:
        """Return when everything accepted before the call is committed, or its append has raised.

        What waits for company is shipped at once. Cancelling has no effect on the records.
        """
        self.check_home()
        await self._shipper.settle()

    # -- streams -----------------------------------------------------------------------------

    async def open_stream(self, name: str, *, metadata: Mapping[str, str] | None = None) -> None:
        """Open a stream, or open it again, with ``metadata``; in the store when this returns.

        The first append to a stream opens it too, without metadata. A name has 1 to 256 characters, metadata
        4096 together. LimitExceededError if the log has 65 536 streams already, or the table of streams would
        be longer than 16 MiB; UnsupportedStoreError if the store has no swaps.

        OutcomeUnknownError, or StorageUnavailableError, if the store does not answer, and cancelled: it may
        be open or not, or may come to be; call again.
        """
        self.check_home()
        await self._streams.open(name, metadata)

    async def close_stream(self, name: str) -> None:
        """Close a stream: appends to it, by whatever writer, raise StreamClosedError until it is opened
        again.

        Its records stay. Appends to it that this writer accepted before come first. When it returns the
        stream has no records but those that the newest manifest names. StreamClosedError if there is no such
        stream, LogNotFoundError if the log was destroyed. Closing one twice is allowed, and finishes what an
        interrupted call began. Else as :meth:`open_stream`.
        """
        self.check_home()
        await self._streams.close(name)

    async def streams(self) -> dict[str, StreamInfo]:
        """Return every stream that was opened or appended to, by name, in the order of opening.

        The answer is the table of streams, by which this writer's appends go: one request, and another one if
        the table is empty. It lacks streams of records that were appended before there was a table; see
        :meth:`uploader.CloudLog.streams`.
        LogNotFoundError if the log was destroyed.
        """
        self.check_home()
        table = await self._streams.table()
        return table.infos()

    # -- looking -----------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the log lies, without credentials."""
        return self._store.url

    @property
    def cursors(self) -> CloudCursors:
        """Named positions that keep garbage collection off what lies behind them."""
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

    def statistics(self) -> WriterStatistics:
        """Return a snapshot of the writer's counters, also after closing."""
        shipper, intake = self._shipper, self._intake
        return WriterStatistics(
            head=self.head,
            tail=self.tail,
            waiting_bytes=intake.waiting_bytes,
            waiting_records=intake.waiting_records,
            blocked_appends=intake.blocked,
            fragments_under_way=shipper.fragments_under_way,
            committed_records=shipper.committed_records,
            committed_bytes=shipper.committed_bytes,
            put_fragments=self._puts.put_fragments,
            put_bytes=self._puts.put_bytes,
            adopted_fragments=shipper.adopted_fragments,
            contentions=shipper.contentions,
            reappended_fragments=shipper.reappended_fragments,
            unknown_records=shipper.unknown_records,
            put_seconds=shipper.pace.put_seconds,
            publish_seconds=shipper.pace.publish_seconds,
        )

    # -- closing -----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Refuse further appends, ship what was accepted, and release connections and threads.

        Twice is allowed. Cancelling the wait does not stop the closing. A store that does nothing for
        ``patience_seconds`` is given up; the appends are told.
        """
        self.check_home()
        assert self._supervisor is not None
        self._shipper.close(WalClosedError("the log is closed"))
        await asyncio.shield(self._supervisor)

    def check_home(self) -> None:
        """Raise WrongLoopError in another thread or event loop, WalClosedError in a child process."""
        self._intake.check_home()

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything in a child process, which has none of the threads."""
        self._is_abandoned = True
        self._intake.abandon(error)

    def __del__(self) -> None:
        supervisor = getattr(self, "_supervisor", None)
        if supervisor is not None and not supervisor.done() and not self._is_abandoned:
            pending = self._intake.waiting_records
            warn_unclosed(
                f"the writer of {self.url}", f"; {pending} accepted records may not be committed"
            )

    def __repr__(self) -> str:
        return f"<CloudWriter {self.url}>"

    # -- inside ------------------------------------------------------------------------------

    async def _start(self) -> None:
        check_unsealed(self._root.manifest, url=self.url)
        check_direct(self._root.manifest, url=self.url)
        await self._shipper.start(is_loaded=has_records(self._root.manifest))
        self._supervisor = self._loop.create_task(self._supervise(), name=f"walstore {self.url}")
        abandon_in_children(self)

    async def _supervise(self) -> None:
        """Own the writer's tasks until it is closed. Never cancelled by us.

        A defect is told as WalClosedError, to the appends and to whoever closes the writer. If the writer
        is forgotten, nobody is left to be told, and there may be no event loop to wait on.
        """
        try:
            await self._shipper.run()
        except Exception as found:  # noqa: BLE001 - whatever it is, appends are told and it is raised
            if self._is_forgotten:
                return
            cause = main_error(found) if isinstance(found, ExceptionGroup) else found
            failure = WalClosedError(
                f"the writer of {self.url} failed, open it again: {cause!r}", reason="failed"
            )
            failure.__cause__ = cause
            self._shipper.fail(failure)
            raise failure from cause
        finally:
            # Whatever ended it, a cancellation or the end of the program too, nobody waits for ever.
            if not self._is_forgotten:
                self._shipper.fail(WalClosedError("the log is closed"))
                await self._release()

    @property
    def _is_forgotten(self) -> bool:
        """Whether the task that asks is not run, but taken apart by the garbage collector."""
        try:
            return asyncio.current_task() is not self._supervisor
        except RuntimeError:  # no event loop runs
            return True

    async def _release(self) -> None:
        await self._streams.drain()
        await self._guard.aclose()
        await self._root.aclose()
        self._worker.close()
        await self._store.aclose()

    async def _append_at(self, group: AppendRequest, expect_offset: int) -> int:
        """Append at an offset, after a look at the newest manifest if that seems wrong."""
        try:
            ticket = await self._intake.add(group, expect_offset)
        except OffsetMismatchError:
            await self._shipper.settle()
            await self._shipper.refresh()
            ticket = await self._intake.add(group, expect_offset)
        return await ticket

    def _timestamp(self, timestamp_us: int | None) -> int | None:
        """Check a caller's timestamp."""
        if timestamp_us is None:
            return None
        if isinstance(timestamp_us, bool) or not isinstance(timestamp_us, int):
            raise TypeError(f"timestamp_us must be an int, not {type(timestamp_us).__name__}")
        latest = self._clock.now_us() + self._lead_us
        if not 0 <= timestamp_us <= latest:
            raise ValueError(
                f"timestamp_us {timestamp_us} is not between 0 and {latest}, which is "
                "max_timestamp_lead_seconds from now; is it in microseconds?"
            )
        return timestamp_us
