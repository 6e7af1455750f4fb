"""Engine: the parts of one open log, and the tasks that drive them from opening to closing.

:class:`walstore.Wal` is the façade over it. One supervisor task owns all others. It ends when the log
is closed, also after a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from walstore.core.append.append_rate import make_rate
from walstore.core.append.channel import Channel
from walstore.core.append.disk_watch import DiskWatch
from walstore.core.append.log_state import LogState
from walstore.core.append.writer import Writer
from walstore.core.batches.batch_builder import AppendRequest
from walstore.core.batches.conditions import AppendConditions
from walstore.core.files.locks import this_process
from walstore.core.files.spill import Spill
from walstore.core.ports import Clock, FileSystem
from walstore.core.read.tiered import TieredSource
from walstore.core.replication_port import Replicator
from walstore.core.runtime.error_mapping import copy_error, describe_open
from walstore.core.runtime.resource import MustClose, Unclosed, abandon_in_children, wait_closed
from walstore.core.runtime.tasks import start_task, wait_ended
from walstore.core.runtime.threads import Lane
from walstore.core.settings import Settings, parse_durability
from walstore.core.tier_port import Tier
from walstore.core.validation.arguments import TimestampCheck
from walstore.errors import (
    ExpectationError,
    FencedError,
    InvalidSettingsError,
    StorageUnavailableError,
    StreamClosedError,
    WalClosedError,
    WalError,
)
from walstore.log.log_resources import LogResources
from walstore.log.opening import Opened
from walstore.log.retention import LogPins, ReaderPins, Retention
from walstore.log.tier_source import Shipping, local_uploaded_limit
from walstore.positions.cursors.kept import KeptCursors, kept_cursors
from walstore.positions.cursors.store import CursorStore
from walstore.records import Durability

logger = logging.getLogger("walstore.log")

_CLOSINGS: Final = 10
"""How often closing something is retried when it is cancelled."""


class Engine(MustClose):
    """The implementation of a :class:`walstore.log.wal.Wal`. Belongs to the event loop that opened the
    log."""

    _is_closed_by_caller = False

    def __init__(
        self,
        *,
        path: Path,
        settings: Settings,
        fs: FileSystem,
        clock: Clock,
        opened: Opened,
        resources: LogResources,
        tier: Tier | None,
        replicator: Replicator | None = None,
    ) -> None:
        """Compose the parts and start the supervisor; see :func:`open_engine`."""
        loop = asyncio.get_running_loop()
        tail = opened.tail
        # Set once at open.
        self.path = path
        self.owner = this_process()
        self.settings = settings
        self.fs = fs
        self.clock = clock
        self.opened = opened
        self.tier = tier
        self.replicator = replicator
        self.resources = resources
        self.worker, self.reading = resources.writing, resources.reading
        self.state = LogState(
            loop=loop,
            head=tail.head,
            durable_limit=tail.durable_limit,
            uploaded_limit=local_uploaded_limit(tail, tier),
            sealed=opened.sealed,
            active=tail.active,
            cache_bytes=settings.cache_bytes,
            cache_budget=resources.cache,
            registers=tail.ledger.registers,
            shows_written=settings.sync == "os",
            is_replicated=replicator is not None,
        )
        self._rate = make_rate(settings, clock)
        self.channel = Channel(
            tail.durable_limit,
            settings,
            loop,
            tail.ledger.copy(),
            budget=resources.channel,
            rate=self._rate,
            monotonic=clock.monotonic,
            errors=self.state.errors,
        )
        self.source = TieredSource(
            state=self.state, channel=self.channel, fs=fs, worker=self.reading, tier=tier
        )
        self.writer = Writer(
            tail=tail,
            channel=self.channel,
            listener=self.state,
            settings=settings,
            clock=clock,
            worker=self.worker,
            freeing=resources.freeing,
        )
        self.pins = LogPins(fs, path, ReaderPins(tail.head), _kept(opened, replicator))
        self.retention = Retention(
            state=self.state,
            writer=self.writer,
            clock=clock,
            settings=settings,
            pins=self.pins,
            is_tiered=tier is not None,
        )
        self.disk_watch = resources.disk_watch or DiskWatch(
            fs=fs,
            path=path,
            min_free_bytes=settings.min_free_bytes,
            worker=self.reading,
            clock=clock,
        )
        self.disk_watch.add(self.channel)
        if resources.disk_watch is None:
            self.disk_watch.judge(opened.free_bytes)
        self.state.on_written = self.disk_watch.note_written
        self.syncs_always = settings.sync == "batch"
        self.timestamp = TimestampCheck(clock.now_us, settings.max_timestamp_lead_seconds)
        # Owned by the event loop.
        self.tier_failure: WalError | None = None
        self.shipping = Shipping(self.state, self.source, self.writer, opened.log_id.hex())
        self.tier_claimed: asyncio.Future[None] = loop.create_future()
        """Done once a replicated log may ship, since its copies have decided who leads it."""
        self.transactions_committed = 0
        self.transactions_rolled_back = 0
        self.spilled_bytes = 0
        self.spills: set[Spill] = set()
        """Files of transactions, to be deleted when the log closes unless they have become segments.
        Belongs to the spilling thread, and after its end to the writer's."""
        self.cursors: CursorStore | None = None
        """Made for the first cursor; closed with the log."""
        self._spilling: Lane | None = None
        self._spills_no_more = False
        self._spill_numbers = count(1)
        self._close_requested = asyncio.Event()
        self._ending = asyncio.Event()
        """Set with it, and when the log failed, which leaves it to its owner to close."""
        self._abandoned: WalClosedError | None = None
        self.writer.on_cancel = self.request_close
        self.writer.on_failed = self._ending.set
        self._loop = loop
        self._supervisor = self._start()
        abandon_in_children(self)

    # -- appending ---------------------------------------------------------------------------

    async def submit(self, request: AppendRequest, level: Durability) -> range:
        """Accept a request, wait until it is as safe as ``level`` says, and return its offsets.

        The error of a failed condition is raised once the state it was compared with is durable and
        current, so that no error reports a state that a crash undoes, or that is over.
        """
        try:
            start = await self.channel.put_wait(request)
        except (ExpectationError, FencedError, StreamClosedError):
            await self.settle_refusal()
            raise
        conditions = request.conditions
        span = range(start, start + request.count)
        if conditions is not None and conditions.span is not None:
            span = conditions.span
        if level is Durability.MEMORY:
            return span
        if not span or (conditions is not None and conditions.is_duplicate):
            await self.settle()
            if level is not Durability.DISK:
                await self._wait_copies()
                await self.check_current()  # nothing may have been written
        await self.wait(span.stop, level)
        return span

    @property
    def registers(self) -> Mapping[str, str]:
        """The registers, those that the log keeps for itself among them."""
        return self.state.registers

    async def change(self, conditions: AppendConditions) -> None:
        """Change registers or streams without a record; durable when this returns."""
        request = AppendRequest((), None, None, None, None, 0, conditions)
        replicated = self.replicator is not None
        await self.submit(request, Durability.REPLICATED if replicated else Durability.DISK)

    def change_nowait(self, conditions: AppendConditions) -> Callable[[], Awaitable[None]]:
        """Accept a change of registers; what is returned waits as :meth:`change` does.

        If this raises, nothing was changed; WouldBlock if there is no room.
        """
        self.check_copies()
        self.channel.put(AppendRequest((), None, None, None, None, 0, conditions))
        return partial(self._wait_changes, self.channel.tail, self.channel.serial)

    async def begin_change(self, conditions: AppendConditions) -> Callable[[], Awaitable[None]]:
        """The same, as soon as there is room."""
        await self.channel.put_wait(AppendRequest((), None, None, None, None, 0, conditions))
        return partial(self._wait_changes, self.channel.tail, self.channel.serial)

    async def wait_changes(self) -> None:
        """Return when everything accepted, records and other changes, is on enough machines, and current."""
        await self._wait_changes(self.channel.tail, self.channel.serial)
        await self.check_current()

    async def check_current(self) -> None:
        """Return once what this log knows is the present: that of a replicated log is confirmed.

        StorageUnavailableError if another machine may lead it.
        """
        self.check_home()
        if self.replicator is not None:
            await self.replicator.check_current()

    async def settle_refusal(self) -> None:
        """Return when what an error says of the log is durable and current, so that it holds."""
        await self.settle()
        await self.check_current()

    async def _wait_changes(self, limit: int, serial: int) -> None:
        await self._settle(limit, serial)
        await self._wait_copies()

    async def _wait_copies(self) -> None:
        """Return when what is durable here is on enough machines."""
        if self.replicator is None:
            return
        try:
            await self.replicator.wait_all()
        except WalError as error:
            if error.outcome == "not_written":  # it is written here, and maybe elsewhere
                error.outcome = "unknown"
            raise

    async def settle(self) -> None:
        """Return when everything accepted, records and other changes, is durable."""
        self.check_home()
        await self._settle(self.channel.tail, self.channel.serial)

    async def _settle(self, limit: int, serial: int) -> None:
        waiter = self.state.settled.waiter(serial)
        try:
            await self.wait(limit, Durability.DISK)
            await waiter
        finally:
            if not waiter.done():
                waiter.cancel()

    async def wait(self, limit: int, level: Durability) -> None:
        """Return when every offset below ``limit`` is as safe as ``level`` says."""
        self.channel.check_loop()
        if level is Durability.MEMORY:
            return
        replicated = self.state.replicated
        if level is not Durability.DISK and replicated is not None:
            if replicated.value < limit:  # which it never is before the limit is durable here
                waiter = replicated.waiter(limit)
                self.writer.request_sync()
                await waiter
        elif self.state.durable.value < limit or not self.syncs_always:
            waiter = self.state.durable.waiter(limit)
            self.writer.request_sync()
            await waiter
        if level is Durability.CLOUD and self.state.uploaded.value < limit:
            # After the disk: a failure from here on leaves the record durable, and its error says so.
            uploaded = self.state.uploaded.waiter(limit)
            self.state.request_cloud()
            await uploaded

    def level(self, durability: Durability | str | None) -> Durability:
        """Check a level before anything is accepted at it."""
        level = self.default_level if durability is None else parse_durability(durability)
        if level is Durability.REPLICATED:
            if self.replicator is None:
                raise InvalidSettingsError(
                    "durability 'replicated' needs a log opened with replication="
                )
            self.check_copies()
        if level is Durability.CLOUD:
            if self.tier is None:
                raise InvalidSettingsError("durability 'cloud' needs a log opened with tier=")
            self.check_copies()  # only what enough copies have is shipped
        return level

    def check_copies(self) -> None:
        """Raise StorageUnavailableError if the log is replicated and has too few copies now."""
        if self.replicator is not None and self.replicator.trouble is not None:
            raise copy_error(self.replicator.trouble)

    @property
    def default_level(self) -> Durability:
        """Level of an append that names none: of a replicated log ``replicated`` instead of ``disk``."""
        level = self.settings.durability
        is_raised = self.replicator is not None and level is Durability.DISK
        return Durability.REPLICATED if is_raised else level

    @property
    def spilling(self) -> Lane:
        """Thread for the files of large transactions: not the writer's, since appends wait for that one.

        WalClosedError if the log is closed and there was none.
        """
        if self._spilling is None:
            if self._spills_no_more:
                raise WalClosedError("the log is closed")
            self._spilling = self.resources.make_spilling()
        return self._spilling

    def make_spill(self) -> Spill:
        """Create the file of a large transaction; blocking, for :attr:`spilling`."""
        number = next(self._spill_numbers)
        spill = Spill(self.fs, self.path, number, compress=self.settings.compression is not None)
        self.spills = {other for other in self.spills if not other.is_placed}
        self.spills.add(spill)
        return spill

    def drop_spill(self, spill: Spill) -> None:
        """Delete the file of a transaction that does not commit; blocking, for :attr:`spilling`."""
        self.spills.discard(spill)
        spill.discard()

    @property
    def durable_lag_seconds(self) -> float:
        """Time since the oldest unsynced record was accepted. May be read on any thread."""
        since = self.writer.unsynced_since
        if since is None:
            since = self.channel.waiting_since
        return 0.0 if since is None else max(self.clock.monotonic() - since, 0.0)

    # -- closing -----------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether the log is closed or closing."""
        return self._close_requested.is_set() or self.writer.failure is not None

    async def wait_closing(self) -> None:
        """Return when the log begins to close, or has failed."""
        await self._ending.wait()

    def request_close(self) -> None:
        """Start closing. Cancelling a task of the log calls this, too."""
        self._close_requested.set()
        self._ending.set()

    async def close(self) -> None:
        """Drain and close; see :meth:`walstore.log.wal.Wal.aclose`."""
        self.check_home()
        self._is_closed_by_caller = True
        self.request_close()
        await wait_closed(self._supervisor)

    async def until_started(self) -> None:
        """Return once the tasks of the log run, so that cancelling them does not end them."""
        is_cancelled = False
        while not self.writer.started.done():
            if self._supervisor.done():
                self._supervisor = self._start()  # cancelled before it ran
            try:
                # The tasks start within two turns of the event loop; waiting for them takes four.
                await asyncio.sleep(0)  # noqa: TID251 - no wait is meant
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            self._is_closed_by_caller = True  # no caller ever had it
            self.request_close()
            # No other code knows this log, so nothing else would wait for it.
            await wait_ended(self._supervisor)
            raise asyncio.CancelledError

    def _start(self) -> asyncio.Task[None]:
        task = start_task(self._supervise(), name=f"walstore {self.path}")
        task.add_done_callback(_note_end)
        return task

    def check_process(self) -> None:
        """Raise WalClosedError in a child process of the one that opened the log."""
        if self._abandoned is not None:
            raise copy_error(self._abandoned)

    def check_home(self) -> None:
        """Raise WalClosedError in a child process, WrongLoopError in another thread or event loop."""
        self.check_process()
        self.channel.check_loop()

    def abandon(self, error: WalClosedError) -> None:
        """Refuse everything in a child process, which has neither the threads nor the file handles."""
        self._abandoned = error
        self.source.close(error)
        self.channel.abandon(error)
        self.writer.abandon(error)
        self.state.abandon(error)

    def _left_open(self) -> Unclosed | None:
        if not hasattr(self, "_supervisor") or self._abandoned or self._is_closed_by_caller:
            return None
        what = f"the log at {self.path}"
        if not self._supervisor.done():
            lost = self.channel.tail - self.state.durable.value
            return Unclosed(what, f"; {lost} accepted records were not written")
        if self.writer.failure is None:
            # Its tasks were cancelled, as at the end of asyncio.run: a program may rely on neither.
            return Unclosed(what, "; its accepted records were written")
        return None

    async def _supervise(self) -> None:
        """Own every task of this log, from open until it is closed.

        Cancelling it, or any of those tasks, starts closing: accepted records are written, and the lock
        is released after the last call of the writer's thread.
        """
        writer = self.writer
        writing = await self._start_writer()
        helpers = [self._loop.create_task(self._help(helper)) for helper in self._helpers()]
        shipping = self._loop.create_task(self._run_tier()) if self.tier else None
        try:
            await self._close_requested.wait()
        except asyncio.CancelledError:
            self.request_close()
        closed = WalClosedError("the log is closed")
        self.channel.close(closed)
        if not self._is_settled:
            await wait_ended(self._loop.create_task(self._settle_quietly()))
        if self.replicator is not None:
            await wait_ended(self._loop.create_task(self._end_replication(self.replicator)))
        self.state.drain()
        if shipping is not None:
            await wait_ended(shipping)
        for helper in helpers:
            helper.cancel()
        await wait_ended(*helpers)
        writer.stop()
        await wait_ended(writing)
        reason = writer.failure or closed
        self.source.close(reason)
        self.state.end(reason)
        await self._release()
        if shipping is not None and not shipping.cancelled():  # it may be, before it ran
            error = shipping.exception()
            if error is not None:
                raise error
        if writer.failure is not None:
            raise writer.failure

    @property
    def _is_settled(self) -> bool:
        """Whether everything accepted, records and other changes, is durable."""
        channel, state = self.channel, self.state
        return state.durable.value >= channel.tail and state.settled.value >= channel.serial

    async def _settle_quietly(self) -> None:
        """Wait until everything accepted is durable; a failure is reported to the waiters, not here."""
        with contextlib.suppress(WalError):
            await self.settle()

    async def _end_replication(self, replicator: Replicator) -> None:
        """Let the copies get what is written, as far as they can, and stop copying.

        A checkpoint of it goes along, so that the next primary has nothing to read.
        """
        try:
            with contextlib.suppress(WalError):  # reported by the log itself
                await self.writer.checkpoint()
            if self.writer.failure is None:
                await replicator.drain()
        finally:
            await replicator.aclose()

    async def _start_writer(self) -> asyncio.Task[None]:
        """Start the writer's task and return it once it runs."""
        while True:
            writing = self._loop.create_task(self.writer.run())
            while not self.writer.started.done() and not writing.done():
                try:
                    await asyncio.sleep(0)  # noqa: TID251 - no wait is meant
                except asyncio.CancelledError:
                    self.request_close()
            if self.writer.started.done():
                return writing

    def _helpers(self) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Yield the functions that run next to the writer while the log is open.

        Functions, not coroutines: a task cancelled before it runs would leave a coroutine that is never
        awaited.
        """
        yield self.retention.run
        if self.settings.min_free_bytes and self.resources.disk_watch is None:
            yield self.disk_watch.run
        if self.settings.segment_age_seconds is not None:
            yield self.writer.run_age_limit
        if not isinstance(self.settings.sync, str):
            yield self.writer.run_sync_interval
        if self._rate is not None:
            yield partial(self._rate.run, self.channel.admit)

    async def _help(self, helper: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a helper of the writer; a defect in it fails the log."""
        try:
            await helper()
        except Exception as error:
            logger.exception("a task of the log at %s ended by a defect", self.path)
            self.writer.fail(error)

    async def _close_through(
        self, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> BaseException | None:
        """Close something and return its error; if that is cancelled, retry a few times."""
        for _ in range(_CLOSINGS):
            closing = self._loop.create_task(close())
            await wait_ended(closing)
            if not closing.cancelled():
                return closing.exception()
        return asyncio.CancelledError()

    async def _release(self) -> None:
        """Release all resources of the log, then raise the first error."""
        errors: list[Exception] = []
        if self.cursors is not None:
            refused = await self._close_through(self.cursors.aclose)
            if isinstance(refused, OSError):
                errors.append(refused)
        self._spills_no_more = True
        if self._spilling is not None:  # none of its calls may run once the lock is released
            with contextlib.suppress(WalClosedError):
                await self._spilling.close_through()
        try:
            await self.worker.run_through(self._close_files, on_cancel=self.request_close)
        except Exception as error:  # noqa: BLE001 - raised once the rest is released
            errors.append(error)
        self.writer.observer.close()
        self.disk_watch.remove(self.channel)
        self.channel.drop()  # it is empty, unless the log failed
        self.resources.close()
        self.state.cache.clear()
        if self.tier is not None:
            refused = await self._close_through(self.tier.aclose)
            if refused is not None:
                logger.warning("closing the tier of the log at %s failed: %s", self.path, refused)
        self.resources.on_closed()
        if errors:
            # The caller that closed the log may have been cancelled.
            logger.warning("closing the log at %s failed: %s", self.path, errors[0])
            raise describe_open(errors[0], self.path) from errors[0]
        logger.info("%s: closed at %d", self.path, self.state.durable.value)

    def _close_files(self) -> None:
        """Close the files, then release the lock: the last call on the writer's thread.

        No one else may hold the lock while a write of this log may be in progress.
        """
        try:
            for spill in list(self.spills):  # some may have been rolled back meanwhile
                if not spill.is_placed:
                    with contextlib.suppress(OSError):  # deleted when the log is opened again
                        spill.discard()
            self.writer.close_tail()
        finally:
            self.opened.release()

    async def _run_tier(self) -> None:
        """Ship until the log drains. A tier that fails permanently does not stop the local log: callers
        that wait for the cloud get the error, and the records stay on disk for the next opening."""
        assert self.tier is not None
        try:
            if self.replicator is None or await self._wait_claimed():
                await self.tier.run(self.shipping)
        except asyncio.CancelledError:
            self.request_close()
            self._fail_tier(
                StorageUnavailableError(
                    f"shipping to {self.tier.url} was cancelled; open the log again to continue",
                    retriable=False,
                )
            )
        except FencedError as error:
            # The log continues elsewhere: records accepted here from now on would never be part of it.
            logger.error("the log at %s was taken over: %s", self.path, error)
            self.tier_failure = error
            self.writer.fail(error)
        except WalError as error:
            logger.error("shipping to %s ended: %s", self.tier.url, error)
            self._fail_tier(error)
        except BaseException as error:
            failure = StorageUnavailableError(f"the cloud tier failed: {error!r}", retriable=False)
            failure.__cause__ = error
            self._fail_tier(failure)
            if not isinstance(error, Exception):  # the program has to end
                self.request_close()
                raise
            logger.exception("shipping to %s ended by a defect", self.tier.url)

    async def _wait_claimed(self) -> bool:
        """Return whether the tier of a replicated log was claimed, once it is or the log drains."""
        both = self.tier_claimed, self.state.draining
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return self.tier_claimed.done()

    def _fail_tier(self, error: WalError) -> None:
        """Fail the callers that wait for the cloud; their records are on disk, see :meth:`wait`."""
        self.tier_failure = error
        self.state.errors.count(error)

        def make_error(target: int) -> WalError:
            twin = copy_error(error)
            twin.outcome = self.state.outcome_now(target)
            return twin

        self.state.uploaded.fail(make_error)


def _kept(opened: Opened, replicator: Replicator | None) -> KeptCursors | None:
    """Return the cursors of a replicated log, which are in it, or still in files that it will adopt."""
    if replicator is None:
        return None
    tail, found = opened.tail, opened.adopted
    return KeptCursors(kept_cursors(tail.ledger.registers) if found is None else found, tail.head)


def _note_end(supervisor: asyncio.Task[None]) -> None:
    """Retrieve the error of the closing: the waiters got it, and there may have been none."""
    if not supervisor.cancelled():
        supervisor.exception()
