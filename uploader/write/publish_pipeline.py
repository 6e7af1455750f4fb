"""PublishPipeline: fragments under way, made in parallel and published in order; and when to cut the next.

The pipeline does not know where the records come from, nor what follows a failure: its driver says how a
fragment is made (built and put), and is called when it is published. Runs of finished ones are published
together, as many runs at once as the root allows.

A record is durable in the cloud after two successive requests: the put of its fragment, and the change of
the root that names it. Roots may only follow one another (``max_publishing`` 1), so a fragment cut as
soon as there is something to ship would mostly wait for the change under way, and with it every record
that could have come along. So :class:`CutSchedule` has it cut so that its put ends when that change is
expected to end. Expectations are medians of the last requests' times.

Invariants (tests/uploader/write/test_publish_pipeline.py)
  V1  Fragments are published in the order in which they were started, none before all before it.
  V2  At most ``max_making`` are being made behind the last one that may be published next, and
      ``max_in_flight`` wait, made, to be published.
  V3  After a fragment that could not be made (None), or published, no publishing begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from statistics import median
from typing import Final

from uploader.format.entries import Fragment
from uploader.format.setsum import ITEM_WORK
from uploader.fragments.fragment_builder import Building, Records
from uploader.write.stall_guard import WriteContext
from walstore.errors import ContentionError, WalError

Make = Callable[[], Awaitable[Fragment | None]]
"""Builds and puts a fragment. None: it could not be put, and nothing behind it may be published."""


@dataclass(slots=True, eq=False)
class _Slot:
    """One fragment that is being made."""

    cut_at: float
    is_made: bool = False
    entry: Fragment | None = None


class PublishPipeline:
    """Makes and publishes fragments of one log. Driven by one task; for one TaskGroup's life."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        context: WriteContext,
        *,
        writer: str | Callable[[], str],
        schedule: CutSchedule,
        max_in_flight: int,
        max_making: int | None = None,
        on_published: Callable[[Sequence[Fragment]], None],
        halts_on: tuple[type[WalError], ...] = (),
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """Run in ``tasks``: what fails there, fails the group.

        Errors of publishing among ``halts_on`` halt the pipeline instead. ``writer`` is the writer that the
        root records, or a function that returns it. ``max_making`` is ``max_in_flight`` if left out; with 1
        none is begun before the one before is made. ``on_change`` is called at every change, when
        :meth:`wait_change` returns.
        """
        self._tasks = tasks
        self._root = context.root
        self._stall_guard = context.stall_guard
        self._clock = context.clock
        self._writer = writer
        self._schedule = schedule
        self._max_making = max_in_flight if max_making is None else max_making
        self._max_made = max_in_flight
        self._on_published = on_published
        self._halts_on = halts_on
        self._on_change = on_change
        self._making: deque[_Slot] = deque()
        self._made: deque[_Slot] = deque()
        self._running = 0
        self._is_holding = False
        self._publishing: deque[float] = deque()  # when each began
        self._last_cut_at = -inf
        self._last_publishing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.is_halted = False
        """Whether a fragment could not be made or published: nothing more is published."""

    @property
    def has_room(self) -> bool:
        """Whether another fragment may be started."""
        has_room = len(self._making) < self._max_making and len(self._made) < self._max_made
        return has_room and not self.is_halted

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is being made or published."""
        return not (self._running or self._publishing or self._is_holding)

    @property
    def is_empty(self) -> bool:
        """Whether everything that was started is published."""
        return self.is_quiet and not self._making and not self._made

    @property
    def due(self) -> float:
        """When the next fragment should be cut, by the monotonic clock; now or earlier: at once."""
        cuts = [slot.cut_at for slot in (*self._made, *self._making)]
        due = self._schedule.due(self._clock.monotonic(), cuts, self._publishing)
        return max(due, self.earliest)

    @property
    def earliest(self) -> float:
        """When the interval since the last fragment is over, by the monotonic clock."""
        return self._last_cut_at + self._schedule.interval_seconds

    def start(self, make: Make) -> None:
        """Begin to make the fragment that follows those started before."""
        slot = _Slot(self._clock.monotonic())
        self._last_cut_at = slot.cut_at
        self._making.append(slot)
        self._running += 1
        self._tasks.create_task(self._make(slot, make))

    def begin(self, building: Building, records: Records) -> None:
        """Begin to build what the next fragment has so far; learn how long that takes."""
        self._tasks.create_task(self._begin(building, records))

    def build(self, building: Building, records: Records, turn: asyncio.Semaphore) -> None:
        """Build a whole fragment before there is room for it, when it is its turn."""
        self._tasks.create_task(building.build(records, turn))

    async def wait_change(self) -> None:
        """Return when something was made or published, or the pipeline halted."""
        await self._changed.wait()

    async def wait_room(self) -> None:
        """Return when another fragment may be started."""
        await self.wait_until(lambda: self.has_room)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition()``, which depends on this pipeline, holds."""
        while not condition():
            await self._changed.wait()

    # -- inside ------------------------------------------------------------------------------

    async def _begin(self, building: Building, records: Records) -> None:
        began = self._clock.monotonic()
        await building.add(records)
        self._schedule.note_head_start(self._clock.monotonic() - began)

    async def _make(self, slot: _Slot, make: Make) -> None:
        slot.entry = await make()
        slot.is_made = True
        self._running -= 1
        if slot.entry is None:
            self.is_halted = True
        else:
            self._schedule.note_put(self._clock.monotonic() - slot.cut_at)
        while self._making and self._making[0].is_made and not self.is_halted:
            self._made.append(self._making.popleft())
        self._publish_next()
        self._notify()

    def _publish_next(self, *, holds: bool = True) -> None:
        """Begin to publish what is made, if the root lets another change begin."""
        if self.is_halted or not self._made or len(self._publishing) >= self._root.max_publishing:
            return
        began = self._clock.monotonic()
        if holds and self._making:
            cut_at = self._making[0].cut_at
            seconds = self._schedule.hold_seconds(began, cut_at, len(self._publishing))
            if seconds > 0:
                if not self._is_holding:
                    self._is_holding = True
                    self._tasks.create_task(self._hold(seconds))
                return
        run = [slot.entry for slot in self._made if slot.entry is not None]
        self._made.clear()
        self._publishing.append(began)
        publishing = self._publish(run, began, self._last_publishing)
        self._last_publishing = self._tasks.create_task(publishing)

    async def _hold(self, seconds: float) -> None:
        """Wait a little for the next fragment, which is about to be made."""
        await self._clock.sleep(seconds)
        self._is_holding = False
        self._publish_next(holds=False)
        self._notify()

    async def _publish(
        self, run: list[Fragment], began: float, before: asyncio.Task[None] | None
    ) -> None:
        try:
            is_done = await self._stall_guard.call(self._attempts(run, before))
        except self._halts_on:
            is_done = False
        if before is not None and not before.done():  # it has the answer, but has not run yet
            await asyncio.wait((before,))
        if is_done:
            self._schedule.note_publish(self._clock.monotonic() - began)
        self._publishing.remove(began)
        if not is_done:
            self.is_halted = True
        # Begin the next change before this one is reported to anyone.
        self._publish_next()
        if is_done:
            self._on_published(run)
        self._notify()

    def _attempts(
        self, run: list[Fragment], before: asyncio.Task[None] | None
    ) -> Callable[[], Awaitable[bool]]:
        """Return a function that publishes a run, to be called until it does; it returns False if one
        before it halted the pipeline.

        The first attempt is made while those before may be under way. A root needs calls in order, so
        further attempts are made after those before have ended. Contention does not count until then: the one
        before may just have failed, and the root lacks it until it is published again.
        """
        is_first = True

        async def publish() -> None:
            writer = self._writer if isinstance(self._writer, str) else self._writer()
            await self._root.publish(run, writer)

        async def attempt() -> bool:
            nonlocal is_first
            if is_first:
                is_first = False
                try:
                    await publish()
                    return True
                except ContentionError:
                    if before is None or before.done():
                        raise
            if before is not None:
                await asyncio.wait((before,))
            if self.is_halted:
                return False
            await publish()
            return True

        return attempt

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        if self._on_change is not None:
            self._on_change()


_SAMPLES: Final = 9
_NEAR: Final = 0.25
"""Part of the time between two changes in which a second fragment for the same one does not pay."""
_LATE: Final = 0.1
"""Part of the time between two changes by which a fragment may be cut too late and still be waited for."""
_OVERDUE: Final = 0.125
"""Part of a put's delay after which it is checked again: an overdue put is expected at any moment, so the
next cut would stay equally far ahead at every check."""

TIMER_SECONDS: Final = 0.0005
"""Timers of asyncio's event loop are late by up to a millisecond: set this much earlier, they are on time on
average."""
_HEAD_START_SECONDS: Final = 0.02
"""How long before its cut a fragment is begun, when nothing is known yet."""
_HEAD_START_WORK: Final = 384 << 10
"""A fragment of less work is built as fast in one go."""
_AMPLE: Final = 1.5
"""Encoding that began early should end before the cut even if it takes this many times as long."""


class CutSchedule:
    """When one writer cuts its fragments. Times are seconds of one monotonic clock."""

    def __init__(self, *, interval_seconds: float, max_publishing: int) -> None:
        """``interval_seconds`` is the least time between two cuts while something is under way."""
        self.interval_seconds = interval_seconds
        self._max_publishing = max_publishing
        self._puts: deque[float] = deque(maxlen=_SAMPLES)
        self._publishes: deque[float] = deque(maxlen=_SAMPLES)
        self._head_starts: deque[float] = deque(maxlen=_SAMPLES)
        self.put_seconds = 0.0
        """How long building and putting a fragment is expected to take; 0 before the first one."""
        self.publish_seconds = 0.0
        """How long naming it is expected to take; 0 before the first time."""
        self.head_start_seconds = _HEAD_START_SECONDS
        """How long before its cut a fragment should be begun to be encoded."""

    def deserves_head_start(self, records: int, size_bytes: int) -> bool:
        """Return whether a fragment of this size should be begun before it is cut."""
        return size_bytes + ITEM_WORK * records >= _HEAD_START_WORK

    def note_put(self, seconds: float) -> None:
        """Learn how long a fragment took to be built and put."""
        self._puts.append(seconds)
        self.put_seconds = median(self._puts)

    def note_publish(self, seconds: float) -> None:
        """Learn how long a change of the root took."""
        self._publishes.append(seconds)
        self.publish_seconds = median(self._publishes)

    def note_head_start(self, seconds: float) -> None:
        """Learn how long it took to encode what a fragment had before it was cut."""
        self._head_starts.append(seconds)
        self.head_start_seconds = _AMPLE * median(self._head_starts)

    def due(self, now: float, cuts: Iterable[float], publishing: Sequence[float]) -> float:
        """Return when the next fragment should be cut; now or earlier means at once.

        ``cuts`` are the cut times of fragments that are not being published yet, oldest first;
        ``publishing`` are the start times of the changes under way.
        """
        spacing = self.publish_seconds / self._max_publishing
        free = now
        if len(publishing) >= self._max_publishing:
            free = max(now, publishing[0] + self.publish_seconds)
        turn: float | None = None  # when the change begins that takes the fragments so far
        last: float | None = None
        expected = now  # when the oldest put under way should have ended
        for last in cuts:
            ready = last + self.put_seconds
            if turn is None:
                expected = ready
                turn = max(free, ready)
            elif ready > turn:
                turn = max(turn + spacing, ready)
        if turn is None or last is None:
            return free - self.put_seconds
        due = turn - self.put_seconds  # to go with the last one, else with the change after
        due = _next(due, spacing, last + max(self.interval_seconds, spacing * _NEAR))
        # A little too late is better than a whole change later.
        due = _next(due, spacing, now - spacing * _LATE)
        if turn == now < due and spacing > 0 and self.put_seconds > 0:
            due = max(due, now + _OVERDUE * (now - expected))
        return max(due, last + self.interval_seconds)

    def hold_seconds(self, now: float, cut: float, publishing: int) -> float:
        """Return how long a change that could begin now should wait for a fragment cut at ``cut``.

        A fragment that misses the only change that can be under way waits for a whole one, and it was
        cut to be put just now. 0 if it is not expected soon, or another change could take it.
        """
        longest = self.publish_seconds / self._max_publishing * _LATE
        is_scarce = publishing + 1 >= self._max_publishing
        is_near = abs(cut + self.put_seconds - now) <= longest
        return longest if is_scarce and is_near else 0.0


def _next(time: float, spacing: float, bound: float) -> float:
    """Return the first of ``time``, ``time + spacing``, ... that is not before ``bound``."""
    if time >= bound:
        return time
    return bound if spacing <= 0 else time + ceil((bound - time) / spacing) * spacing
