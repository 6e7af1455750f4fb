"""PublishPipeline: fragments under way, made in parallel and published in order.

It does not know where the records come from, nor what follows a failure: its driver says how a fragment is
made (built and put), and is called when it is published. Runs of finished ones are published together, as
many runs at once as the root allows.

Invariants (tests/uploader/write/test_publish_pipeline.py)
  V1  Fragments are published in the order in which they were started, none before all before it.
  V2  At most ``max_making`` are being made behind the last one that may be published next, and
      ``max_in_flight`` wait, made, to be published.
  V3  After a fragment that could not be made (None), or published, no publishing begins.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from uploader.format.entries import Fragment
from uploader.root.root import Root
from uploader.write.cut_schedule import CutSchedule
from uploader.write.stall_guard import StallGuard
from walstore.errors import ContentionError, WalError
from walstore.ports import Clock

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
        *,
        root: Root,
        writer: str | Callable[[], str],
        stall_guard: StallGuard,
        clock: Clock,
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
        self._root = root
        self._writer = writer
        self._stall_guard = stall_guard
        self._clock = clock
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
        return self._schedule.due(self._clock.monotonic(), cuts, self._publishing)

    @property
    def earliest(self) -> float:
        """When the interval since the last fragment is over, by the monotonic clock."""
        last = self._making[-1] if self._making else self._made[-1] if self._made else None
        return 0.0 if last is None else last.cut_at + self._schedule.interval_seconds

    def start(self, make: Make) -> None:
        """Begin to make the fragment that follows those started before."""
        slot = _Slot(self._clock.monotonic())
        self._making.append(slot)
        self._running += 1
        self._tasks.create_task(self._make(slot, make))

    async def wait_change(self) -> None:
        """Return when something was made or published, or the pipeline halted."""
        await self._changed.wait()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return when ``condition()``, which depends on this pipeline, holds."""
        while not condition():
            await self._changed.wait()

    # -- inside ------------------------------------------------------------------------------

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
