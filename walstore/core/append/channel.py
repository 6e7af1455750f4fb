"""Channel: the entry of appends into the log. Bounded by bytes and records; assigns the offsets.

Offsets are assigned in the order of acceptance, never before there is room, so a caller that is refused
or cancelled while it waits uses none. The writer task takes whole batch builders from the other end.
Everything here belongs to the event loop; nothing blocks, and only room is awaited.

Invariants (tests/walstore/core/append/test_channel.py)
  C1  Offsets leave ``take`` in order and without gaps.
  C2  What accepted and not released records take in memory stays within the budget, except for one group
      larger than it.
  C3  Room is given in the order of the callers' requests; ``put`` never overtakes a waiting caller. Only
      what has no records overtakes callers that wait for the log's rate, of which it takes nothing.
  C4  Conditions are checked when a request is accepted, against everything accepted before it; a
      request whose conditions fail takes no offset and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from threading import get_ident

from walstore.core.append.append_rate import AppendRate
from walstore.core.append.budgets import ChannelBudget
from walstore.core.batches.append_request import make_record
from walstore.core.batches.batch_builder import (
    RECORD_OVERHEAD_BYTES,
    RECORD_ROOM_BYTES,
    AppendRequest,
    BatchBuilder,
)
from walstore.core.batches.conditions import CONDITIONS_BYTES, check_room, stream_marks
from walstore.core.batches.cost import BATCH_RECORDS, PART_COST_BYTES
from walstore.core.format.frame import MOST_RECORDS
from walstore.core.format.ledger import Ledger, Marks
from walstore.core.offset_range import OffsetRange
from walstore.core.runtime.admissions import Admissions
from walstore.core.runtime.error_mapping import copy_error
from walstore.core.runtime.resource import LoopGuard
from walstore.core.runtime.statistics import ErrorCounts
from walstore.core.runtime.watermark import Watermark
from walstore.core.settings import Settings
from walstore.errors import RecordTooLargeError, WalError, WouldBlock


class Channel:
    """Bounded queue of records between appenders and the writer."""

    # Every append reads several of these: 4 % of the fast path.
    __slots__ = (
        "_admissions",
        "_batch_bytes",
        "_builder",
        "_bytes_budget",
        "_closed",
        "_errors",
        "_filling",
        "_folded",
        "_guard",
        "_is_dropped",
        "_max_record_bytes",
        "_monotonic",
        "_poked",
        "_rate",
        "_ready",
        "_records_budget",
        "_refused",
        "_released",
        "_room_given",
        "_share",
        "_sleeper",
        "_taken",
        "_used_bytes",
        "_watchers",
        "accepted",
        "append_value",
        "is_alert",
        "ledger",
        "loop",
        "room",
        "serial",
        "tail",
        "thread",
    )

    def __init__(
        self,
        next_offset: int,
        settings: Settings,
        loop: asyncio.AbstractEventLoop,
        ledger: Ledger | None = None,
        *,
        budget: ChannelBudget | None = None,
        rate: AppendRate | None = None,
        monotonic: Callable[[], float] | None = None,
        errors: ErrorCounts | None = None,
    ) -> None:
        self.loop = loop
        """The event loop that opened the log."""
        self._guard = LoopGuard("log", loop)
        self.thread = self._guard.thread
        """Thread of the event loop when last checked; no other thread may use the log."""
        self._monotonic = monotonic or loop.time
        self._errors = errors or ErrorCounts()
        self.ledger = ledger or Ledger()
        """The ledger once everything accepted is written."""
        self.serial = 0
        """Counts appends that change the ledger; callers await their commit by this number."""
        self.accepted = Watermark(next_offset, loop)
        """Follows ``tail`` while there are waiters; otherwise it may lag."""
        self._watchers = 0  # callers in wait_accepted()
        self._bytes_budget = settings.channel_bytes
        self._records_budget = settings.channel_records
        # Batches stay well below a segment, so that segments stay near their size.
        self._batch_bytes = min(settings.batch_bytes, settings.segment_bytes // 4)
        self._max_record_bytes = settings.max_record_bytes
        self._rate = rate
        self.tail = next_offset
        """Next offset to be assigned."""
        self._released = next_offset
        self._used_bytes = 0  # held by closed builders, waiting or being written
        self._folded = 0  # records of the open builder that are counted in its sizes
        self._ready: deque[BatchBuilder] = deque()
        self._taken: deque[BatchBuilder] = deque()  # being written
        self._admissions = Admissions(
            loop, has_room=self._admits, accept=self._accept, settled=self._admitted
        )
        self._closed: WalError | None = None
        self._is_dropped = False
        self._refused: WalError | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._filling: asyncio.Future[None] | None = None
        self._poked = False
        # For the fast path, Wal.append_nowait, which saves a call by changing these as put() would.
        self.is_alert = True
        """Whether the next record has to call note_record()."""
        self.room = self._room_given = 0
        """Memory that may be taken without checking any limit; 0 whenever a check is needed."""
        self._share = None if budget is None else budget.share(self._admissions.admit)
        """This log's share of the store's budget."""
        self._begin_builder()

    # -- appenders ---------------------------------------------------------------------------

    def put_alert(self, value: bytes) -> int:
        """As the fast path, for a record that has to call note_record(); raises in a wrong thread."""
        if self._guard.is_home:
            self.thread = get_ident()
        else:
            self.check_loop()
        room = self.room - len(value) - RECORD_ROOM_BYTES
        if room < 0:
            return self.put(make_record(value, None, None, None, None))
        self.room = room
        self.append_value(value)
        self.tail += 1
        self.note_record()
        return self.tail - 1

    def put(self, request: AppendRequest) -> int:
        """Accept a whole request and return its first offset; raise WouldBlock if there is no room."""
        self._check(request)
        if not self._may_enter(request):
            why = f"{self._waiting_bytes()} bytes and {self.tail - self._released} records wait for the disk"
            if self._waits_for_rate(request):
                assert self._rate is not None
                most = self._rate.bytes_per_second
                why = f"the log takes {most} bytes a second, its max_append_bytes_per_second"
            raise WouldBlock(f"{why}; await append(), or try again later")
        return self._accept(request)

    async def put_wait(self, request: AppendRequest) -> int:
        """Accept a whole request as soon as there is room, and return its first offset.

        If cancelled while it waits, nothing was accepted; if cancelled while it is being accepted, the
        records are in the log although the caller sees the cancellation.
        """
        self._check(request)
        if self._may_enter(request):
            return self._accept(request)
        try:
            return await self._admissions.wait(request)
        except asyncio.CancelledError:
            self._serve_others()
            raise

    # -- writer ------------------------------------------------------------------------------

    async def wait_ready(self) -> None:
        """Return when there is something to take, or after :meth:`poke`."""
        if self._poked or not self.is_empty:
            self._poked = False
            return
        sleeper = self._sleeper = self.loop.create_future()
        self.is_alert = True
        try:
            await sleeper
        finally:
            self._sleeper = None
            self._poked = False

    async def wait_full(self, seconds: float) -> None:
        """Return when the next batch is full, after :meth:`poke`, or after that time."""
        if self._ready or self._poked:
            return
        filling = self._filling = self.loop.create_future()
        timer = self.loop.call_later(seconds, _finish, filling)
        try:
            await filling
        finally:
            self._filling = None
            timer.cancel()

    def take(self, max_bytes: int) -> list[BatchBuilder]:
        """Remove and return the oldest builders: at least one if there are any, at most about
        ``max_bytes``."""
        self._poked = False  # the caller has done what it was woken for, or does it next
        builder = self._builder
        has_some = builder.values or not builder.is_empty
        if has_some and len(self._ready) * self._batch_bytes < max_bytes:
            self._close_builder()
            self._begin_builder()
        taken: list[BatchBuilder] = []
        size = 0
        while self._ready and (not taken or size + self._ready[0].size_bytes <= max_bytes):
            if taken and self._ready[0].spill is not None:
                break  # it is a segment of its own, and a commit of its own
            taken.append(self._ready.popleft())
            size += taken[-1].size_bytes
            if taken[-1].spill is not None:
                break
        self._taken += taken
        return taken

    def release(self, builders: list[BatchBuilder]) -> None:
        """Release the room of builders that are on disk, and admit the callers waiting for it."""
        released_bytes = 0
        for builder in builders:
            released_bytes += builder.held_bytes
            self._taken.popleft()
        self._used_bytes -= released_bytes
        if builders:
            self._released = builders[-1].limit
        if self._share is not None:
            self._share.give(released_bytes)
            self.admit()
        elif self._admissions.waiting:
            self._admissions.admit()
        else:
            self._set_room()

    def admit(self) -> None:
        """Admit the callers that wait, as far as there is room and credit."""
        if self._admissions.waiting:
            self._admissions.admit()
        else:
            self._admitted()
        if self._share is not None:
            self._share.serve()

    def refuse(self, error: WalError | None) -> None:
        """Refuse further records with ``error`` until called with None; the log stays open.

        Callers waiting for room are refused too; accepted records are not affected.
        """
        self._refused = error
        if error is not None:
            self._fail_admissions(error)
        self._set_room()

    def poke(self) -> None:
        """Make ``wait_ready`` return even if there is nothing to take."""
        self._poked = True
        if self._filling is not None:
            _finish(self._filling)
        if self._sleeper is not None:
            self._wake()

    def close(self, error: WalError) -> None:
        """Refuse further records with ``error``; those accepted can still be taken."""
        if self._closed is None:
            self._closed = error
        self._fail_admissions(self._closed)
        self.accepted.fail(lambda _: copy_error(error))
        self._set_room()
        self.poke()

    def drop(self) -> None:
        """Drop everything accepted, after a failure: it will not be taken."""
        self._is_dropped = True
        self._ready.clear()
        self._begin_builder()
        if self._share is not None:
            self._share.close()

    def abandon(self, error: WalError) -> None:
        """Refuse everything and drop what was accepted, without waking waiters; see
        ``runtime/resource.py``."""
        self._closed = error
        self._is_dropped = True
        self.thread = 0
        self._ready.clear()
        self._builder = BatchBuilder(self.tail)
        self.append_value = self._builder.values.append
        self.room = self._room_given = 0
        self.accepted.refuse(lambda _: copy_error(error))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to take."""
        return not self._ready and not self._builder.values and self._builder.is_empty

    @property
    def waiting(self) -> tuple[int, int]:
        """Memory and number of the records accepted and not yet on disk."""
        return self._waiting_bytes(), self.tail - self._released

    @property
    def waiting_since(self) -> float | None:
        """When the oldest unwritten record was accepted; None if there is none.

        By the monotonic clock. May be read on any thread.
        """
        for builders in (self._taken, self._ready):
            with contextlib.suppress(IndexError):
                return builders[0].accepted_at
        return self._builder.accepted_at

    @property
    def blocked(self) -> int:
        """How many callers wait for room."""
        return len(self._admissions.waiting)

    def check_assigned(self, offset: int) -> None:
        """Raise OffsetNotWrittenError unless ``offset`` has been assigned to a record."""
        OffsetRange(1, self.tail).check_assigned(offset, "no record has this offset yet")

    # -- readers of unwritten records ------------------------------------------------------------

    @property
    def written_limit(self) -> int:
        """Every record below it was written and has left the channel."""
        return self._released

    @property
    def readable_limit(self) -> int:
        """Every record in ``[written_limit, readable_limit)`` is in :meth:`builders`: all up to the tail,
        except those of a large transaction and the records after them."""
        for builder in (*self._taken, *self._ready):
            if builder.spill is not None:
                return builder.start
        return self.tail

    def check_readable(self) -> None:
        """Raise the log's failure, if any: then accepted records that were not written are dropped."""
        if self._is_dropped:
            assert self._closed is not None
            raise copy_error(self._closed)

    def builders(self) -> Iterator[BatchBuilder]:
        """Yield the accepted and unwritten records, in order; the last builder is still growing."""
        yield from self._taken
        yield from self._ready
        yield self._builder

    async def wait_accepted(self, limit: int) -> None:
        """Return when the tail has reached ``limit``; raises when the log closes."""
        self.accepted.advance(self.tail)
        waiter = self.accepted.waiter(limit)
        self._watchers += 1
        self._set_room()  # leave the fast path, which wakes no waiters
        try:
            await waiter
        finally:
            self._watchers -= 1
            self._set_room()

    # -- inside ------------------------------------------------------------------------------

    def check_loop(self) -> None:
        """Raise WrongLoopError unless the caller runs in the log's event loop."""
        if self._guard.is_home:
            self.thread = get_ident()  # an event loop may continue in another thread
            return
        if self._closed is not None:
            raise copy_error(self._closed)
        self._guard.check()

    def _check(self, request: AppendRequest) -> None:
        if self._closed is not None:
            raise copy_error(self._closed)
        self.check_loop()
        conditions = request.conditions
        is_upkeep = conditions is not None and conditions.is_upkeep
        if self._refused is not None and not is_upkeep:
            raise self._counted(copy_error(self._refused))
        overhead = RECORD_OVERHEAD_BYTES * len(request.values)
        if len(request.values) > MOST_RECORDS:
            error = RecordTooLargeError(
                f"the atomic group has {len(request.values)} records; the maximum is {MOST_RECORDS}",
                size_bytes=request.size_bytes - overhead,
                limit_bytes=self._bytes_budget,
            )
            raise self._counted(error)
        is_record = len(request.values) == 1
        limit = self._max_record_bytes if is_record else self._bytes_budget
        if request.size_bytes - overhead > limit:
            what = "record" if is_record else "atomic group"
            name = "max_record_bytes" if is_record else "channel_bytes"
            error = RecordTooLargeError(
                f"the {what} has {request.size_bytes - overhead} bytes; {name} is {limit}",
                size_bytes=request.size_bytes - overhead,
                limit_bytes=limit,
            )
            raise self._counted(error)

    def _has_room(self, request: AppendRequest) -> bool:
        waiting = self._waiting_bytes()
        if not waiting:
            return True
        records = self.tail - self._released + request.count
        return (
            waiting + request.held_bytes <= self._bytes_budget and records <= self._records_budget
        )

    def _may_enter(self, request: AppendRequest) -> bool:
        """Return whether a request may be accepted at once, before those who wait."""
        if self._rate is not None:
            if self._waits_for_rate(request):
                return False
            if self._admissions.waiting and (_paid_bytes(request) or self._rate.credit_bytes > 0):
                return False
        elif self._admissions.waiting:
            return False
        share = self._share
        return self._has_room(request) and (share is None or share.has_room(request.held_bytes))

    def _waits_for_rate(self, request: AppendRequest) -> bool:
        if self._rate is None:
            return False
        self._fold_room()  # what the fast path took
        return _paid_bytes(request) > 0 and self._rate.credit_bytes <= 0

    def _accept(self, request: AppendRequest) -> int:
        """Accept a request, or raise the error of a failed condition; then it took no offset."""
        marks = None
        conditions = request.conditions
        if conditions is not None or request.streams is not None:
            try:
                marks = self._apply_conditions(request)
            except WalError as error:
                raise self._counted(error) from None
            if conditions is not None and conditions.is_duplicate:
                assert conditions.span is not None
                return conditions.span.start
        offset = self.tail
        self._fold_room()
        is_full = (
            self._builder.size_bytes + request.size_bytes > self._batch_bytes
            or len(self._builder.values) + len(request.values) > BATCH_RECORDS
        )
        if not self._builder.is_empty and (is_full or request.spill is not None):
            self._close_builder()
            self._begin_builder()
        if self._builder.accepted_at is None:
            self._builder.accepted_at = self._monotonic()
        if marks is not None:
            self._add_marks(marks)
        if request.spill is not None:
            self._builder.spill = request.spill
        elif request.values:
            self._builder.extend(request)
            self._folded = len(self._builder.values)
        self._builder.size_bytes += request.size_bytes
        self._builder.held_bytes += request.held_bytes
        self._take(request.held_bytes, _paid_bytes(request))
        self.tail = offset + request.count
        if request.spill is not None:
            self._close_builder()
            self._begin_builder()
        if self._watchers:
            self.accepted.advance(self.tail)
        self._set_room()
        self.note_record()
        return offset

    def _apply_conditions(self, request: AppendRequest) -> Marks | None:
        """Check a request's conditions, apply its changes to the ledger and return them."""
        conditions, ledger = request.conditions, self.ledger
        if conditions is not None:
            conditions.check(ledger, self.tail)
            if conditions.is_duplicate:
                return None
        marks = None
        if request.streams is not None:
            marks = stream_marks(ledger, request.streams, self.tail)
        if conditions is not None:
            more = conditions.marks(ledger, self.tail, request.count)
            if marks is None:
                marks = more
            elif more is not None:
                marks.merge(more)
        if marks is not None:
            check_room(ledger, marks)
            ledger.apply(marks)
        if conditions is not None:
            conditions.span = range(self.tail, self.tail + request.count)
        return marks

    def _add_marks(self, marks: Marks) -> None:
        self.serial += 1
        self._builder.serial = self.serial
        if self._builder.marks is None:
            self._builder.marks = Marks()
        self._builder.marks.merge(marks)
        self._builder.size_bytes += CONDITIONS_BYTES
        self._builder.held_bytes += CONDITIONS_BYTES
        if self._share is not None:
            self._share.take(CONDITIONS_BYTES)

    def _admits(self, request: AppendRequest) -> bool:
        """Return whether the first of those who wait may enter; else the share waits for its room, or the
        rate for credit."""
        if not self._has_room(request):
            return False
        if self._waits_for_rate(request):
            assert self._rate is not None
            self._rate.want()
            return False
        if self._share is not None and not self._share.has_room(request.held_bytes):
            self._share.wait(request.held_bytes)
            return False
        return True

    def _admitted(self) -> None:
        if self._share is not None and not self._admissions.waiting:
            self._share.leave()
        self._set_room()

    def _begin_builder(self) -> None:
        self._builder = BatchBuilder(self.tail)
        self.append_value = self._builder.values.append
        self._folded = 0
        self.is_alert = True
        self.room = self._room_given = 0
        self._set_room()

    def _close_builder(self) -> None:
        self._fold_room()
        self._builder.pad()
        self._used_bytes += self._builder.held_bytes
        self._ready.append(self._builder)
        if self._filling is not None:
            _finish(self._filling)

    def _fold_room(self) -> None:
        """Add the room taken by the fast path, for records of a value alone, to the open builder's sizes."""
        taken = self._room_given - self.room
        if not taken:
            return
        builder = self._builder
        size_bytes = taken - PART_COST_BYTES * (len(builder.values) - self._folded)
        self._folded = len(builder.values)
        builder.size_bytes += size_bytes
        builder.held_bytes += taken
        self._room_given = self.room
        if self._share is not None or self._rate is not None:
            self._take(taken, size_bytes)

    def _take(self, held_bytes: int, paid_bytes: int) -> None:
        """Take what was accepted of the store's budget, and of the log's rate."""
        if self._share is not None:
            self._share.take(held_bytes)
        if self._rate is not None:
            self._rate.take(paid_bytes)

    def _set_room(self) -> None:
        if self._room_given != self.room:
            self._fold_room()
        share = self._share
        if share is not None and self._builder.is_empty:
            # Leased only while records are being accepted, so that idle logs hold nothing.
            share.end_lease()
            self.room = self._room_given = 0
            return
        room = min(
            self._batch_bytes - self._builder.size_bytes,
            self._bytes_budget - self._used_bytes - self._builder.held_bytes,
        )
        # Within this room no record can be too large and there cannot be too many.
        records = min(
            self._records_budget - (self.tail - self._released),
            BATCH_RECORDS - len(self._builder.values),
        )
        largest = self._max_record_bytes + RECORD_ROOM_BYTES
        room = min(room, records * RECORD_ROOM_BYTES, largest)
        if self._rate is not None:
            room = min(room, int(self._rate.credit_bytes))
        is_watched = self._admissions.waiting or self._watchers
        if self._closed is not None or self._refused is not None or is_watched or room < 0:
            room = 0
        if share is not None:
            room = share.lease(room)
        self.room = self._room_given = room

    def _serve_others(self) -> None:
        if self._share is not None:
            self._share.serve()

    def _fail_admissions(self, error: WalError) -> None:
        self._admissions.fail(error)
        self._serve_others()

    def _counted(self, error: WalError) -> WalError:
        self._errors.count(error)
        return error

    def _waiting_bytes(self) -> int:
        return self._used_bytes + self._builder.held_bytes + self._room_given - self.room

    def note_record(self) -> None:
        """Record when the open builder got its first record, and wake the writer if it sleeps."""
        builder = self._builder
        if builder.accepted_at is None and (builder.values or not builder.is_empty):
            builder.accepted_at = self._monotonic()
        self.is_alert = builder.accepted_at is None
        if self._sleeper is not None:
            self._wake()

    def _wake(self) -> None:
        sleeper, self._sleeper = self._sleeper, None  # once is enough
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)


def _paid_bytes(request: AppendRequest) -> int:
    """Return what a request takes of the log's rate: nothing for a change without records."""
    spilled = 0 if request.spill is None else request.spill.size_bytes
    return request.size_bytes + spilled


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
