"""CommitLoop: takes appends to the store, side by side with other writers of the same log.

Parcels are cut from the intake, put several at once, and named by the root in order. No lease, no lock: the
root takes one fragment of each number, and the next one's offset follows from it. Whoever is late learns it
from the store, and appends anew behind.

What may happen to a fragment of ours, with number n and first offset o:

  * published: its records are committed, whoever published it;
  * the log went on past n with another one, or reached n at another offset than o: no root can ever name
    ours, so its records are surely not committed and are appended anew;
  * neither yet: if its object is in the store, somebody may still publish it. It is decided once the log
    has reached n. Until then its records are not appended anew, or they might be in the log twice.

Another's fragment where ours was to go is published for it if it continues the log, as wal3's recovery
does: it may be all that a dead writer left. If it cannot continue the log it is replaced, since nobody can
ever name it. The writer of an adopted fragment finds it published and learns that it is committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from uploader.format.closings import without_closings
from uploader.format.entries import Fragment
from uploader.root.root import Root
from uploader.runtime.task_groups import first_of, task_group
from uploader.stores.port import ObjectStore
from uploader.write.append_queue import AppendQueue
from uploader.write.building import Building, Records
from uploader.write.cut_schedule import TIMER_SECONDS, CutSchedule
from uploader.write.encoding import Encoding
from uploader.write.fragment_puts import FragmentPuts, Taken
from uploader.write.pending_fragment import PendingFragment
from uploader.write.publish_pipeline import PublishPipeline
from uploader.write.shared_tail import FragmentFate, SharedTail
from uploader.write.stall_guard import StallGuard
from uploader.write.stream_guard import StreamGuard
from uploader.write.teller import Teller
from uploader.write.writer_settings import WriterSettings
from walstore.errors import (
    ContentionError,
    LogSealedError,
    OutcomeUnknownError,
    WalError,
)
from walstore.ports import Clock
from walstore.runtime.error_mapping import copy_error
from walstore.runtime.threads import Worker

_LEAST_SLEEP_SECONDS = 1e-6
_UNLIMITED = 1 << 10


class CommitLoop:
    """Ships the parcels of one writer. Driven by one task, :meth:`run`."""

    def __init__(
        self,
        *,
        store: ObjectStore,
        root: Root,
        puts: FragmentPuts,
        patience: StallGuard,
        streams: StreamGuard,
        settings: WriterSettings,
        writer: str,
        clock: Clock,
        worker: Worker,
    ) -> None:
        """``writer`` is this writer's name, which no other one has."""
        self._store = store
        self._root = root
        self._puts = puts
        self._patience = patience
        self._streams = streams
        streams.on_change = self._know_streams
        self._settings = settings
        self._writer = writer
        self._clock = clock
        self._worker = worker
        self.pace = CutSchedule(
            interval_seconds=settings.interval_seconds, max_publishing=root.max_publishing
        )
        self._end = SharedTail(
            store=store,
            root=root,
            puts=puts,
            patience=patience,
            streams=streams,
            writer=writer,
            worker=worker,
        )
        self._wake = asyncio.Event()
        self._teller = Teller(asyncio.get_running_loop())
        self.intake = AppendQueue(
            settings, asyncio.get_running_loop(), tail=root.manifest.next_offset, notify=self.wake
        )
        self._under_way: deque[PendingFragment] = deque()  # cut, oldest first
        self._returned: deque[PendingFragment] = (
            deque()
        )  # to be cut again, before what is in the intake
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
        return self._end.adopted_fragments

    @property
    def fragments_under_way(self) -> int:
        """Fragments cut and not committed."""
        return len(self._under_way)

    def wake(self) -> None:
        """Look whether there is something to do."""
        self._wake.set()

    def close(self, error: WalError) -> None:
        """Refuse what comes from now on with ``error``; :meth:`run` returns once the rest is decided."""
        self.intake.close(error)
        self.wake()

    async def start(self, *, is_loaded: bool = False) -> None:
        """Do what :meth:`recover` does, as long as the store answers now and then.

        With ``is_loaded`` the root was just read and holds records, so it is not read again.
        """
        await self._patience.guard(partial(self.recover, is_loaded=is_loaded))

    async def recover(self, *, is_loaded: bool = False) -> None:
        """Read the root, publish what others put and did not live to publish, and go on behind it.

        ContentionError if the log belongs to somebody else, LogSealedError, CorruptionError for damaged
        objects. Faults of the store that may pass are waited out.
        """
        if not is_loaded:
            await self._end.load()
        await self._end.adopt_orphans()
        await self._go_on()
        self._is_stale = False

    async def settle(self) -> None:
        """Return when everything accepted before the call is decided; it is cut at once."""
        loop = asyncio.get_running_loop()
        parcels = [*self._under_way, *self._returned, *self.intake.parcels]
        if parcels:
            self._in_a_hurry = self._has_work
            self.wake()
            await asyncio.wait([parcel.wait_decided(loop) for parcel in parcels])

    async def refresh(self) -> None:
        """Read the root anew, once nothing is under way: offsets then follow the newest one.

        Raises what :meth:`close` was given if that was called before: nobody would serve it.
        """
        self.intake.check_open()
        refreshed = asyncio.get_running_loop().create_future()
        self._refreshes.append(refreshed)
        self.wake()
        await refreshed

    def fail(self, error: WalError) -> None:
        """Refuse everything from now on with ``error``, and tell every append that is left."""
        self.close(error)
        self._give_up(error)

    async def run(self) -> None:
        """Ship until :meth:`close`, then what is left. Asks the store for nothing while idle."""
        while True:
            self._wake.clear()
            if self._has_work or self._refreshes:
                await self._serve()
            elif self.intake.is_closed:
                return
            else:
                await self._wake.wait()

    # -- a session: from the first append to the end of the last, or to contention -------------------

    @property
    def _has_work(self) -> bool:
        return bool(self._returned) or not self.intake.is_empty

    async def _serve(self) -> None:
        refreshes = list(self._refreshes)
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._patience.run_out())
                await self._session(tasks, must_look=bool(refreshes))
                watching.cancel()
        except* WalError as errors:
            self._abandon(first_of(errors))
        for refreshed in refreshes:
            if not refreshed.done():
                refreshed.set_result(None)
        del self._refreshes[: len(refreshes)]

    async def _session(self, tasks: asyncio.TaskGroup, *, must_look: bool) -> None:
        if self._is_stale:
            await self.recover()
        elif must_look:
            await self._end.load()
            await self._go_on()
        conveyor = PublishPipeline(
            tasks,
            root=self._root,
            writer=lambda: self._streams.signature,
            patience=self._patience,
            clock=self._clock,
            pace=self.pace,
            max_in_flight=self._settings.max_in_flight,
            max_making=self._puts.max_at_once,
            on_published=self._on_published,
            halts_on=(ContentionError,),
            notify=self.wake,
        )
        await self._ship(tasks, conveyor)
        if conveyor.is_halted:
            await conveyor.wait_until(lambda: conveyor.is_quiet)
            self.contentions += 1
            await self._decide()

    async def _ship(self, tasks: asyncio.TaskGroup, conveyor: PublishPipeline) -> None:
        """Cut and ship until all is published, or the conveyor halts."""
        while not conveyor.is_halted:
            self._wake.clear()
            if not self._has_work or self._refreshes:
                if conveyor.is_empty:
                    return
                await self._wake.wait()
            elif not conveyor.has_room or len(self._under_way) >= self._window:
                await self._wake.wait()
            else:
                seconds = self._seconds_left(conveyor)
                if seconds >= _LEAST_SLEEP_SECONDS:
                    await self._wait(self._until_head_start(tasks, seconds))
                    continue
                parcel = self._cut()
                if parcel is not None:
                    conveyor.start(partial(self._make, parcel))

    def _seconds_left(self, conveyor: PublishPipeline) -> float:
        """Return how long the next fragment should gather company."""
        urgent = self._in_a_hurry or self.intake.is_closed or self._returned or self.intake.is_full
        if conveyor.is_empty or urgent:
            return 0.0
        now = self._clock.monotonic()
        if self.intake.is_large and now + self._settings.interval_seconds <= conveyor.due:
            return max(conveyor.earliest - now, 0.0)
        return conveyor.due - now - TIMER_SECONDS

    def _until_head_start(self, tasks: asyncio.TaskGroup, seconds: float) -> float:
        """Return how long to wait for what comes next, which is a cut after ``seconds`` at the latest.

        Begins to build the fragment to be cut when little time is left until then.
        """
        if self._returned:
            return seconds
        parcel = self.intake.parcels[0]
        if parcel.encoding is not None or parcel.is_conditional:
            return seconds
        early = seconds - self.pace.head_start_seconds
        if early >= _LEAST_SLEEP_SECONDS:
            return early
        if self.pace.deserves_head_start(parcel.count, parcel.size_bytes):
            now_us = self._clock.now_us()
            parcel.encoding = self._encoding(self._next_offset, now_us)
            records = parcel.encoding.take(parcel.draft, now_us)
            tasks.create_task(self._start_building(parcel.encoding.building, records))
        return seconds

    async def _start_building(self, building: Building, records: Records) -> None:
        began = self._clock.monotonic()
        await building.add(records)
        self.pace.note_head_start(self._clock.monotonic() - began)

    async def _wait(self, seconds: float) -> None:
        """Return after that time, or when something has changed."""
        async with task_group() as group:
            sleeping = group.create_task(self._clock.sleep(seconds))
            waking = group.create_task(self._wake.wait())
            await asyncio.wait((sleeping, waking), return_when=asyncio.FIRST_COMPLETED)
            sleeping.cancel()
            waking.cancel()

    def _cut(self) -> PendingFragment | None:
        """Give the next parcel its place behind the last one; None if all of it was refused."""
        parcel = self._take()
        if not self._place(parcel, self._next_seq_no, self._next_offset):
            self._drop(parcel)
            return None
        self._next_seq_no += 1
        self._next_offset = parcel.limit
        self._under_way.append(parcel)
        return parcel

    def _take(self) -> PendingFragment:
        parcel = self._returned.popleft() if self._returned else self.intake.take()
        if not self._has_work:
            self._in_a_hurry = False
        return parcel

    def _place(self, parcel: PendingFragment, seq_no: int, start: int) -> bool:
        """Give a parcel its place; False if none of its appends may be there."""
        before = parcel.count
        table = self._streams.table
        is_open = table is None or not table.closings or table.is_open(parcel.draft_streams)
        parcel.place(seq_no, start, None if is_open or table is None else table.check)
        if parcel.count < before:
            self.intake.release(0, before - parcel.count)
            self._recount()
        return parcel.count > 0

    async def _make(self, parcel: PendingFragment) -> Fragment | None:
        """Build and put a parcel; None if something else lies in its place."""
        encoding, now_us = parcel.encoding, self._clock.now_us()
        if encoding is None or not self._fits(encoding, parcel):
            encoding = self._encoding(parcel.start, now_us)
        parcel.encoding = None
        parcel.closings = encoding.closings or 0
        records = encoding.take(parcel.draft, now_us)
        self._end.floor_us = encoding.latest_us

        def is_built() -> None:
            parcel.is_exposed = True

        parcel.built, found = await self._puts.build(
            encoding.building, records, parcel.seq_no, is_built=is_built
        )
        if isinstance(found, Taken):
            parcel.taken = found
            return None
        parcel.entry = found
        return found

    def _encoding(self, start: int, now_us: int) -> Encoding:
        return Encoding(
            start=start,
            timestamp_us=now_us,
            floor_us=self._end.floor_us,
            writer=self._writer,
            worker=self._worker,
            closings=self._streams.closings,
        )

    def _fits(self, encoding: Encoding, parcel: PendingFragment) -> bool:
        """Return whether what was encoded early is good for the place that the parcel got."""
        return (
            encoding.start == parcel.start
            and encoding.closings == self._streams.closings
            and encoding.floor_us >= self._end.floor_us
            and not encoding.building.is_broken
        )

    def _know_streams(self) -> None:
        """Append under the newest closings, unless a fragment under way must be decided first."""
        self._streams.adopt((parcel.streams, parcel.closings) for parcel in self._under_way)

    def _on_published(self, run: Sequence[Fragment]) -> None:
        for entry in run:
            # The oldest one, unless another writer put as many records in the place of those before it.
            parcel = next(parcel for parcel in self._under_way if parcel.entry is entry)
            self._under_way.remove(parcel)
            self._commit(parcel)
        self._know_streams()
        self._streams.note_published()
        if without_closings(self._root.manifest.writer) == self._writer:
            self._window = min(self._window * 2, _UNLIMITED)
        else:  # somebody else published it for us: let them have their turn, too
            self._window = 1

    # -- after contention ----------------------------------------------------------------------

    async def _decide(self) -> None:
        """Find out what became of each parcel under way; the lost ones are to be cut again."""
        self._window = 1
        await self._end.load()
        lost: deque[PendingFragment] = deque()
        try:
            await self._decide_each(lost)
        finally:
            self._returned.extendleft(reversed(lost))
        await self._go_on()

    async def _decide_each(self, lost: deque[PendingFragment]) -> None:
        while self._under_way:
            parcel = self._under_way[0]
            fate = await self._end.fate(parcel)
            if fate is FragmentFate.COMMITTED:
                self._commit(self._under_way.popleft())
            elif fate is FragmentFate.LOST:
                # Now: if the next one of ours fits behind what is there instead, it will be the last one.
                await self._end.learn_floor()
                self._under_way.popleft()
                if self._may_try_again(parcel):
                    lost.append(parcel)
            elif not await self._fill(lost):
                self._leave_open()

    async def _fill(self, lost: deque[PendingFragment]) -> bool:
        """Put something where the log ends, so that what lies behind it gets decided.

        Returns False if there is nothing to put.
        """
        await self._end.learn_floor()
        manifest = self._root.manifest
        while lost or self._has_work:
            parcel = lost.popleft() if lost else self._take()
            if self._place(parcel, manifest.next_seq_no, manifest.next_offset):
                self._under_way.appendleft(parcel)
                await self._make(parcel)
                return True
            self._drop(parcel)
        return False

    def _leave_open(self) -> None:
        """Nothing of ours is left to be put before them: whether they will ever count is not for us."""
        error = OutcomeUnknownError(
            f"another writer was quicker; the records may still be taken over from {self._store.url}: read "
            "before appending them again"
        )
        while self._under_way:
            self._fail(self._under_way.popleft(), error)

    def _may_try_again(self, parcel: PendingFragment) -> bool:
        parcel.attempts += 1
        if parcel.attempts <= self._settings.contention_attempts:
            self.reappended_fragments += 1
            return True
        error = ContentionError(
            f"other writers of {self._store.url} were quicker {parcel.attempts} times; append again",
            retriable=True,
        )
        self._fail(parcel, error)
        return False

    async def _go_on(self) -> None:
        """Continue behind the root as it is known."""
        await self._end.learn_floor()
        self._next_seq_no = self._root.manifest.next_seq_no
        self._next_offset = self._root.manifest.next_offset
        self._recount()

    # -- telling the appends ---------------------------------------------------------------------

    def _commit(self, parcel: PendingFragment) -> None:
        self.committed_records += parcel.count
        self.committed_bytes += parcel.size_bytes
        self._end.note_ours(parcel.seq_no)
        self._teller.tell(parcel)
        self.intake.release(parcel.size_bytes, parcel.count)

    def _fail(self, parcel: PendingFragment, error: WalError) -> None:
        if isinstance(error, OutcomeUnknownError):
            self.unknown_records += parcel.count
        parcel.fail(error)
        self.intake.release(parcel.size_bytes, parcel.count)

    def _drop(self, parcel: PendingFragment) -> None:
        """Forget a parcel whose appends were all refused."""
        self._teller.tell(parcel)
        self.intake.release(parcel.size_bytes, 0)

    def _abandon(self, error: WalError) -> None:
        """Tell everybody that the store gave up, or that nothing may be written any more."""
        self._is_stale = True
        self._give_up(error)
        self._recount()

    def _give_up(self, error: WalError) -> None:
        """Tell every append that is left: what may be in the store is in doubt, the rest not written."""
        refused = _not_written(error)
        unknown = OutcomeUnknownError(
            f"{error}; read the log before appending the records again", retriable=error.retriable
        )
        unknown.__cause__ = error
        while self._under_way:
            parcel = self._under_way.popleft()
            is_open = parcel.is_exposed and not isinstance(error, LogSealedError)
            self._fail(parcel, unknown if is_open else refused)
        for refreshed in self._refreshes:
            _refuse(refreshed, refused)
        while self._has_work:
            self._fail(self._take(), refused)

    def _recount(self) -> None:
        """Tell the intake where the next record comes to lie."""
        waiting = sum(parcel.count for parcel in (*self._returned, *self.intake.parcels))
        self.intake.tail = self._next_offset + waiting


def _not_written(error: WalError) -> WalError:
    """Return what an append is told that never left this process, after an error of something else.

    An error that says by its type that an outcome is in doubt would not be true of it.
    """
    if isinstance(error, OutcomeUnknownError):
        refused: WalError = ContentionError(f"nothing was written: {error}", retriable=True)
        refused.__cause__ = error
    else:
        refused = copy_error(error)
        refused.outcome = "not_written"
    return refused


def _refuse(waiter: asyncio.Future[None], error: WalError) -> None:
    if not waiter.done():
        waiter.set_exception(copy_error(error))
        waiter.exception()  # a caller cancelled at this moment never looks
