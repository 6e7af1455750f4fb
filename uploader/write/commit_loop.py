"""CommitLoop: takes appends to the store, next to other writers of the same log.

Fragments are cut from the queue, put several at once, and named by the root in order. No lease, no lock:
the root takes one fragment of each number, and the next one's offset follows from it. A writer that is
late learns it from the store, and appends again behind the others.

What may happen to a fragment of ours, with number n and first offset o:

  * published: its records are committed, whoever published it;
  * the log went on past n with another one, or reached n at another offset than o: no root can ever name
    ours, so its records are certainly not committed and are appended again;
  * neither yet: if its object is in the store, another writer may still publish it. It is decided once the
    log has reached n. Until then its records are not appended again, or they might be in the log twice.

If another writer's fragment is where ours was to go and continues the log, this writer publishes it, as
wal3's recovery does: it may be all that a dead writer left. If it cannot continue the log it is replaced,
since nobody can ever name it. The writer of an adopted fragment finds it published and so committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from uploader.format.entries import Fragment
from uploader.format.stream_table import without_closings
from uploader.runtime.task_groups import LoopTaskGroup, check_cancelled, first_of
from uploader.write.ack_dispatch import AppendAcks
from uploader.write.append_queue import AppendQueue
from uploader.write.fragment_puts import FragmentPuts
from uploader.write.pending_fragment import Encoding, PendingFragment, refuse
from uploader.write.publish_pipeline import TIMER_SECONDS, CutSchedule, PublishPipeline
from uploader.write.shared_tail import FragmentFate, SharedTail
from uploader.write.stall_guard import WriteContext
from uploader.write.stream_guard import StreamGuard
from uploader.write.writer_settings import WriterSettings
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.time_limit import within
from walstore.errors import (
    ContentionError,
    LogSealedError,
    OutcomeUnknownError,
    WalError,
)

_LEAST_SLEEP_SECONDS = 1e-6
_UNLIMITED = 1 << 10


class CommitLoop:
    """Ships the fragments of one writer. Driven by one task, :meth:`run`."""

    def __init__(
        self, context: WriteContext, streams: StreamGuard, settings: WriterSettings
    ) -> None:
        self._context = context
        self._root = root = context.root
        self._clock = context.clock
        self._stall_guard = context.stall_guard
        self._streams = streams
        streams.on_change = self._know_streams
        self._settings = settings
        self.puts = FragmentPuts(
            context,
            max_in_flight=settings.max_in_flight,
            is_parallel=settings.parallel_puts,
            may_inline=True,
        )
        self.schedule = CutSchedule(
            interval_seconds=settings.interval_seconds, max_publishing=root.max_publishing
        )
        self._tail = SharedTail(context, self.puts, streams)
        self._wake = asyncio.Event()
        self._acks = AppendAcks(asyncio.get_running_loop())
        self.queue = AppendQueue(
            settings, asyncio.get_running_loop(), tail=root.manifest.next_offset, notify=self.wake
        )
        self._under_way: deque[PendingFragment] = deque()  # cut, oldest first
        self._returned: deque[PendingFragment] = deque()  # to be cut again, before the queue
        self._next_seq_no = 0
        self._next_offset = 0
        self._window = _UNLIMITED  # fragments under way at most, while others write too
        self._is_stale = True
        self._in_a_hurry = False
        self._refreshes: list[asyncio.Future[None]] = []
        self.committed_records = 0
        self.committed_bytes = 0
        self.contentions = 0
        self.reappended_fragments = 0
        self.unknown_records = 0

    @property
    def adopted_fragments(self) -> int:
        """Fragments of others that this writer published."""
        return self._tail.adopted_fragments

    @property
    def fragments_under_way(self) -> int:
        """Fragments cut and not committed."""
        return len(self._under_way)

    def wake(self) -> None:
        """Check whether there is work."""
        self._wake.set()

    def close(self, error: WalError) -> None:
        """Refuse new appends with ``error``; :meth:`run` returns once the rest is decided."""
        self.queue.close(error)
        self.wake()

    async def start(self, *, is_loaded: bool = False) -> None:
        """Do what :meth:`recover` does, as long as the store answers now and then.

        With ``is_loaded`` the root was just read and holds records, so it is not read again.
        """
        await self._stall_guard.guard(partial(self.recover, is_loaded=is_loaded))

    async def recover(self, *, is_loaded: bool = False) -> None:
        """Read the root, publish what dead writers put and did not publish, and continue behind it.

        ContentionError if the log belongs to a local log, LogSealedError, CorruptionError for damaged
        objects. Transient faults of the store are waited out.
        """
        if not is_loaded:
            await self._tail.load()
        await self._tail.adopt_orphans()
        await self._go_on()
        self._is_stale = False

    async def settle(self) -> None:
        """Return when everything accepted before the call is decided; it is cut at once."""
        loop = asyncio.get_running_loop()
        fragments = [*self._under_way, *self._returned, *self.queue.fragments]
        if fragments:
            self._in_a_hurry = self._has_work
            self.wake()
            await asyncio.wait([pending.wait_decided(loop) for pending in fragments])

    async def refresh(self) -> None:
        """Read the root again, once nothing is under way: offsets then follow the newest one.

        Raises the error of :meth:`close` if that was called before: the loop serves no more requests.
        """
        self.queue.check_open()
        refreshed = asyncio.get_running_loop().create_future()
        self._refreshes.append(refreshed)
        self.wake()
        await refreshed

    def fail(self, error: WalError) -> None:
        """Refuse everything from now on with ``error``, and fail every append that is left."""
        self.close(error)
        self._give_up(error)

    async def run(self) -> None:
        """Ship until :meth:`close`, then the rest. Makes no requests while idle."""
        while True:
            self._wake.clear()
            if self._has_work or self._refreshes:
                await self._serve()
            elif self.queue.is_closed:
                return
            else:
                await self._wake.wait()

    # -- a session: from the first append to the end of the last, or to contention -------------------

    @property
    def _has_work(self) -> bool:
        return bool(self._returned) or not self.queue.is_empty

    async def _serve(self) -> None:
        refreshes = list(self._refreshes)
        try:
            async with LoopTaskGroup() as tasks:
                watching = tasks.create_task(self._stall_guard.run_out())
                await self._session(tasks, must_look=bool(refreshes))
                watching.cancel()
        except* WalError as errors:
            self._abandon(first_of(errors))
        check_cancelled()
        for refreshed in refreshes:
            if not refreshed.done():
                refreshed.set_result(None)
        del self._refreshes[: len(refreshes)]

    async def _session(self, tasks: asyncio.TaskGroup, *, must_look: bool) -> None:
        if self._is_stale:
            await self.recover()
        elif must_look:
            await self._tail.load()
            await self._go_on()
        pipeline = PublishPipeline(
            tasks,
            self._context,
            writer=lambda: self._streams.signature,
            schedule=self.schedule,
            max_in_flight=self._settings.max_in_flight,
            max_making=self.puts.max_at_once,
            on_published=self._on_published,
            halts_on=(ContentionError,),
            on_change=self.wake,
        )
        await self._ship(pipeline)
        if pipeline.is_halted:
            await pipeline.wait_until(lambda: pipeline.is_quiet)
            self.contentions += 1
            await self._decide()

    async def _ship(self, pipeline: PublishPipeline) -> None:
        """Cut and ship until all is published, or the pipeline halts."""
        while not pipeline.is_halted:
            self._wake.clear()
            if not self._has_work or self._refreshes:
                if pipeline.is_empty:
                    return
                await self._wake.wait()
            elif not pipeline.has_room or len(self._under_way) >= self._window:
                await self._wake.wait()
            else:
                seconds = self._seconds_left(pipeline)
                if seconds >= _LEAST_SLEEP_SECONDS:
                    seconds = self._until_head_start(pipeline, seconds)
                    with suppress(TimeoutError):
                        await within(seconds, self._wake.wait(), sleep=self._clock.sleep)
                    continue
                pending = self._cut()
                if pending is not None:
                    pipeline.start(partial(self._make, pending))

    def _seconds_left(self, pipeline: PublishPipeline) -> float:
        """Return how long the next fragment should gather more records."""
        urgent = self._in_a_hurry or self.queue.is_closed or self._returned or self.queue.is_full
        if pipeline.is_empty or urgent:
            return 0.0
        now = self._clock.monotonic()
        if self.queue.is_large and now + self._settings.interval_seconds <= pipeline.due:
            return max(pipeline.earliest - now, 0.0)
        return pipeline.due - now - TIMER_SECONDS

    def _until_head_start(self, pipeline: PublishPipeline, seconds: float) -> float:
        """Return how long to wait for the next thing to do, at most the ``seconds`` until the cut.

        Begins to build the fragment to be cut when little time is left until then.
        """
        if self._returned:
            return seconds
        pending = self.queue.fragments[0]
        if pending.encoding is not None or pending.is_conditional:
            return seconds
        early = seconds - self.schedule.head_start_seconds
        if early >= _LEAST_SLEEP_SECONDS:
            return early
        if self.schedule.deserves_head_start(pending.count, pending.size_bytes):
            now_us = self._clock.now_us()
            pending.encoding = self._encoding(self._next_offset, now_us)
            records = pending.encoding.take(pending.builder, now_us)
            pipeline.begin(pending.encoding.building, records)
        return seconds

    def _cut(self) -> PendingFragment | None:
        """Give the next fragment its place behind the last one; None if all of it was refused."""
        pending = self._take()
        if not self._place(pending, self._next_seq_no, self._next_offset):
            self._drop(pending)
            return None
        self._next_seq_no += 1
        self._next_offset = pending.limit
        self._under_way.append(pending)
        return pending

    def _take(self) -> PendingFragment:
        pending = self._returned.popleft() if self._returned else self.queue.take()
        if not self._has_work:
            self._in_a_hurry = False
        return pending

    def _place(self, pending: PendingFragment, seq_no: int, start: int) -> bool:
        """Give a fragment its place; False if none of its appends may be there."""
        before = pending.count
        table = self._streams.table
        is_open = table is None or not table.closings or table.is_open(pending.record_streams)
        pending.place(seq_no, start, None if is_open or table is None else table.check)
        if pending.count < before:
            self.queue.release(0, before - pending.count)
            self._recount()
        return pending.count > 0

    async def _make(self, pending: PendingFragment) -> Fragment | None:
        """Build and put a fragment; None if its place holds something else."""
        encoding, now_us = pending.encoding, self._clock.now_us()
        if encoding is None or not self._fits(encoding, pending):
            encoding = self._encoding(pending.start, now_us)
        pending.encoding = None
        pending.closings = encoding.closings or 0
        records = encoding.take(pending.builder, now_us)
        self._tail.floor_us = encoding.latest_us

        def is_built() -> None:
            pending.is_exposed = True

        def is_refused() -> None:
            pending.is_exposed = False

        pending.built, found = await self.puts.build(
            encoding.building, records, pending.seq_no, is_built=is_built, is_refused=is_refused
        )
        pending.note_put(found)
        return pending.entry

    def _encoding(self, start: int, now_us: int) -> Encoding:
        return Encoding(
            start=start,
            timestamp_us=now_us,
            floor_us=self._tail.floor_us,
            writer=self._streams.writer,
            worker=self._context.worker,
            closings=self._streams.closings,
        )

    def _fits(self, encoding: Encoding, pending: PendingFragment) -> bool:
        """Return whether what was encoded early fits the place that the fragment got."""
        return (
            encoding.start == pending.start
            and encoding.closings == self._streams.closings
            and encoding.floor_us >= self._tail.floor_us
            and not encoding.building.is_broken
        )

    def _know_streams(self) -> None:
        """Append under the newest closings, unless a fragment under way must be decided first."""
        self._streams.adopt((pending.streams, pending.closings) for pending in self._under_way)

    def _on_published(self, run: Sequence[Fragment]) -> None:
        for entry in run:
            # The oldest one, unless another writer put as many records in the place of those before it.
            pending = next(pending for pending in self._under_way if pending.entry is entry)
            self._under_way.remove(pending)
            self._commit(pending)
        self._know_streams()
        self._streams.note_published()
        if without_closings(self._root.manifest.writer) == self._streams.writer:
            self._window = min(self._window * 2, _UNLIMITED)
        else:  # another writer published it for us: let it have its turn, too
            self._window = 1

    # -- after contention ----------------------------------------------------------------------

    async def _decide(self) -> None:
        """Find out what became of each fragment under way; the lost ones are cut again."""
        self._window = 1
        await self._tail.load()
        lost: deque[PendingFragment] = deque()
        try:
            await self._decide_each(lost)
        finally:
            self._returned.extendleft(reversed(lost))
        await self._go_on()

    async def _decide_each(self, lost: deque[PendingFragment]) -> None:
        while self._under_way:
            pending = self._under_way[0]
            fate = await self._tail.fate(pending)
            if fate is FragmentFate.COMMITTED:
                self._commit(self._under_way.popleft())
            elif fate is FragmentFate.LOST:
                # Read it now: if our next one fits behind what is there instead, it will be the last one.
                await self._tail.learn_floor()
                self._under_way.popleft()
                if self._may_try_again(pending):
                    lost.append(pending)
            elif not await self._fill(lost):
                self._leave_open()

    async def _fill(self, lost: deque[PendingFragment]) -> bool:
        """Put something where the log ends, so that the fragments behind it get decided.

        Returns False if there is nothing to put.
        """
        await self._tail.learn_floor()
        manifest = self._root.manifest
        while lost or self._has_work:
            pending = lost.popleft() if lost else self._take()
            if self._place(pending, manifest.next_seq_no, manifest.next_offset):
                self._under_way.appendleft(pending)
                await self._make(pending)
                return True
            self._drop(pending)
        return False

    def _leave_open(self) -> None:
        """Nothing of ours is left to be put before them: this writer cannot decide their outcome."""
        error = OutcomeUnknownError(
            f"another writer was quicker; the records may still be taken over from {self._context.url}: read "
            "before appending them again"
        )
        while self._under_way:
            self._fail(self._under_way.popleft(), error)

    def _may_try_again(self, pending: PendingFragment) -> bool:
        pending.attempts += 1
        if pending.attempts <= self._settings.contention_attempts:
            self.reappended_fragments += 1
            return True
        error = ContentionError(
            f"other writers of {self._context.url} were quicker {pending.attempts} times; append again",
            retriable=True,
        )
        self._fail(pending, error)
        return False

    async def _go_on(self) -> None:
        """Continue behind the root as it is known."""
        await self._tail.learn_floor()
        self._next_seq_no = self._root.manifest.next_seq_no
        self._next_offset = self._root.manifest.next_offset
        self._recount()

    # -- outcomes of appends ---------------------------------------------------------------------

    def _commit(self, pending: PendingFragment) -> None:
        self.committed_records += pending.count
        self.committed_bytes += pending.size_bytes
        self._tail.note_ours(pending.seq_no)
        self._acks.send(pending)
        self.queue.release(pending.size_bytes, pending.count)

    def _fail(self, pending: PendingFragment, error: WalError) -> None:
        if isinstance(error, OutcomeUnknownError):
            self.unknown_records += pending.count
        pending.fail(error)
        self.queue.release(pending.size_bytes, pending.count)

    def _drop(self, pending: PendingFragment) -> None:
        """Drop a fragment whose appends were all refused."""
        self._acks.send(pending)
        self.queue.release(pending.size_bytes, 0)

    def _abandon(self, error: WalError) -> None:
        """Fail all appends: the store was given up, or nothing may be written any more."""
        self._is_stale = True
        self._give_up(error)
        self._recount()

    def _give_up(self, error: WalError) -> None:
        """Fail every append that is left: what may be in the store is in doubt, the rest not written."""
        refused = _not_written(error)
        unknown = OutcomeUnknownError(
            f"{error}; read the log before appending the records again", retriable=error.retriable
        )
        unknown.__cause__ = error
        while self._under_way:
            pending = self._under_way.popleft()
            is_open = pending.is_exposed and not isinstance(error, LogSealedError)
            self._fail(pending, unknown if is_open else refused)
        for refreshed in self._refreshes:
            refuse(refreshed, copy_error(refused))
        while self._has_work:
            self._fail(self._take(), refused)

    def _recount(self) -> None:
        """Set the queue's tail: the offset that the next record gets."""
        waiting = sum(pending.count for pending in (*self._returned, *self.queue.fragments))
        self.queue.tail = self._next_offset + waiting


def _not_written(error: WalError) -> WalError:
    """Return the error for an append that never left this process, after an error of something else.

    An error whose type says that an outcome is in doubt would be wrong for it.
    """
    if isinstance(error, OutcomeUnknownError):
        refused: WalError = ContentionError(f"nothing was written: {error}", retriable=True)
        refused.__cause__ = error
    else:
        refused = copy_error(error)
        refused.outcome = "not_written"
    return refused
